"""The growth widget without a browser: what it draws is what two real caches say, and what cannot be is a sentence."""

import json
import random
import threading

import pytest
import torch

from minikv.cache import LinearKVCache, PagedKVCache
from minikv.course.widgets.growth import BLOCK_SIZES, LENGTHS, MAX_TOKENS, ROOMS, SMALL, GrowthWidget
from minikv.errors import ArgumentError
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec, LayerSpec
from minikv.units import exact_bytes


def figures(widget: GrowthWidget) -> dict[str, list[str]]:
    return {row["key"]: row["values"] for row in widget.view["table"]}


def some_state(rng: random.Random) -> dict[str, int]:
    return {
        "step": rng.randint(0, 256),
        "length": rng.choice(LENGTHS),
        "max_seq": rng.choice(ROOMS),
        "block_size": rng.choice(BLOCK_SIZES),
    }


def test_what_is_drawn_is_what_the_two_caches_hold():
    rng = random.Random(3)
    widget = GrowthWidget()
    refused = 0
    for _ in range(40):
        state = some_state(rng)
        widget.state = state
        view, room, size = widget.view, state["max_seq"], state["block_size"]
        lengths = [max(1, state["length"] >> place) + state["step"] for place in range(4)]
        assert [sum(row["paged"]["filled"]) for row in view["rows"]] == lengths
        for row, length in zip(view["rows"], lengths, strict=True):
            assert all(0 < tokens <= size for tokens in row["paged"]["filled"])
            assert row["paged"]["slots"] == -(-length // size) * size <= view["scale"]
            assert row["linear"]["filled"] <= row["linear"]["slots"] == room <= view["scale"]
        # A linear row goes on until the longest is full; then no row goes on.
        if max(lengths) <= room:
            taken = lengths
        elif state["length"] <= room:
            taken = [length - (max(lengths) - room) for length in lengths]
        else:
            taken = [0, 0, 0, 0]
        assert [row["linear"]["filled"] for row in view["rows"]] == taken
        assert view["error"] == (max(lengths) > room)
        refused += view["error"]
        blocks = sum(len(row["paged"]["filled"]) for row in view["rows"])
        linear, paged = LinearKVCache(SMALL, 4, room), PagedKVCache(SMALL, blocks, size)
        for key in ("planned", "measured"):
            for cache, value in zip((linear, paged), figures(widget)[key], strict=True):
                assert value == exact_bytes(cache.nbytes)
        assert figures(widget)["slots"] == [f"{4 * room:,}", f"{blocks * size:,}"]
        assert figures(widget)["tokens"] == [f"{sum(taken):,}", f"{sum(lengths):,}"]
        assert figures(widget)["empty"] == [f"{4 * room - sum(taken):,}", f"{blocks * size - sum(lengths):,}"]
    assert 5 <= refused <= 35


def test_planned_bytes_are_the_measured_ones_to_the_byte_for_other_models_too():
    specs = [
        SMALL,
        CacheSpec(layers=(LayerSpec("latent", kv_heads=1, k_dim=32, v_dim=8),) * 3),
        CacheSpec(
            layers=(LayerSpec("full", kv_heads=3, k_dim=8, v_dim=12, itemsize=4),) * 2, kv_dtype="fp32"
        ),
    ]
    for spec in specs:
        for state in ({}, {"step": 17, "block_size": 64}, {"length": 1, "max_seq": 33}):
            shown = figures(GrowthWidget(spec=spec, device="cpu", **state))
            assert shown["planned"] == shown["measured"]


def test_one_hundred_and_fifty_steps_of_the_document():
    """1 -> 100 -> 150: the tokens of row A after the prompt and after fifty steps."""
    widget = GrowthWidget(length=100)
    assert widget.view["rows"][0]["linear"]["filled"] == 100
    before = figures(widget)["measured"][0]
    widget.state = {"step": 50}
    assert widget.view["rows"][0]["linear"]["filled"] == 150
    assert figures(widget)["measured"][0] == before, "the linear cache reserved it all at the start"


def test_one_knob_leaves_the_others_where_they_are_and_reset_is_the_start():
    widget = GrowthWidget(step=3, length=64)
    widget.state = {"block_size": 32}
    assert widget.state == {"step": 3, "length": 64, "max_seq": 256, "block_size": 32}
    assert widget.form["defaults"] == {"step": 3, "length": 64, "max_seq": 256, "block_size": 16}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    "bad", [{"step": -1}, {"length": 0}, {"max_seq": MAX_TOKENS + 1}, {"block_size": 1.5}]
)
def test_a_setting_that_cannot_be_is_a_sentence_and_the_widget_goes_on(lang, bad):
    widget = GrowthWidget(lang)
    before = widget.text()
    widget.state = bad
    assert widget.view["error"]
    assert widget.view["rows"] == []
    (value,) = bad.values()
    assert str(value) in widget.view["status"]
    assert widget.view["status"] in widget.text()
    widget.state = dict(widget.form["defaults"])
    assert widget.text() == before
    with pytest.raises(ArgumentError):
        GrowthWidget(lang, **bad)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_text_is_deterministic_and_in_the_readers_language(lang):
    widget = GrowthWidget(lang, step=200)
    assert widget.text() == GrowthWidget(lang, step=200).text()
    for number in ("300", "304", "256.00 KiB (262,144 B)", "79.2%"):
        assert number in widget.text()
    assert ("分页" in widget.text()) == (lang == "zh")
    assert widget.text().isascii() == (lang == "en")


def test_what_is_synced_is_plain_json():
    widget = GrowthWidget(step=9)
    for trait in ("form", "state", "view"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_turns_from_many_threads_end_in_the_last_state():
    widget = GrowthWidget()

    def turn(first: int) -> None:
        for step in range(first, first + 10):
            widget.set_state({"state": {**widget.state, "step": step}})

    threads = [threading.Thread(target=turn, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    step = widget.state["step"]
    assert widget.view["rows"][0]["linear"]["filled"] == 100 + step


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_allocator_holds_at_least_the_tensors_and_gives_them_back():
    before = torch.cuda.memory_allocated()
    widget = GrowthWidget(step=7, device="cuda")
    linear, paged = (
        int(value.split("(")[1].split(" ")[0].replace(",", "")) for value in figures(widget)["allocated"]
    )
    measured = [
        int(value.split("(")[1].split(" ")[0].replace(",", "")) for value in figures(widget)["measured"]
    ]
    assert 0 <= linear - measured[0] < 2048
    assert 0 <= paged - measured[1] < 2048
    assert torch.cuda.memory_allocated() == before
    assert "memory_allocated" not in widget.text()
