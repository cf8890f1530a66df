"""The eviction monitor: what the layers really hold, seen between forwards and never inside of one."""

import copy
import gc
import threading
import weakref

import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.course import monitor
from minikv.course.widgets.monitor_eviction import BINS, EvictionMonitor, Gate, shades
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError
from minikv.eviction import eviction_report, install_kv_eviction
from minikv.eviction.hf.cache import evicting_layers
from tests.course.engine_widget_world import bare_model
from tests.course.monitor_world import SECONDS, Parked, no_thread_is_left, ours
from tests.eviction.hf.masking import small

OPTIONS = dict(policy="h2o", budget=8, n_sink=2, n_recent=4)


@pytest.fixture(autouse=True)
def _ends():
    with no_thread_is_left():
        yield


@pytest.fixture
def model():
    return small("llama", number=3)


def watch(model, lang="en") -> EvictionMonitor:
    clock = Parked()
    made = EvictionMonitor(model, lang, 5, clock)
    clock.settle()
    return made


def texts(length, rows=1, seed=0):
    return torch.randint(1, 90, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("scope", ["layer", "head"])
@pytest.mark.parametrize("rows", [1, 3])
def test_after_every_forward_it_shows_what_is_there(model, scope, rows):
    ids = texts(90, rows)
    with install_kv_eviction(model, **OPTIONS, scope=scope) as eviction:
        made = watch(eviction)
        assert made.view["map"] == []
        cache = eviction.new_cache()
        for start, end in ((0, 20), *((at, at + 1) for at in range(20, 80)), (80, 90)):
            model(ids[:, start:end], past_key_values=cache)
            made.tick()
            layers = evicting_layers(cache)
            width = max(1, -(-end // BINS))
            assert len(made.view["map"]) == len(layers)
            for layer, row, drawn in zip(layers, made.view["rows"], made.view["map"], strict=True):
                assert row["values"][0] == f"{layer.resident}"
                heads = layer.positions.shape[1]
                there = [(layer.positions // width == place).sum().item() for place in range(BINS)]
                assert sum(there) == layer.resident * rows * heads
                for place, (count, letter) in enumerate(zip(there, drawn["shades"], strict=True)):
                    size = min(width, end - place * width)
                    if size <= 0:
                        assert letter == "."
                    elif count == 0:
                        assert letter == "-"
                    else:
                        assert letter == str(min(8, int(count / (size * rows * heads) * 9)))
            chart = made.view["chart"]
            assert chart["values"]["resident"][-1] + chart["values"]["gone"][-1] == end
        report = eviction_report(model)
        for row, values in zip(made.view["rows"], report.layers.values(), strict=True):
            told = [f"{values[name]:,}" for name in ("evictions", "dropped")]
            assert row["values"][3:] == told
        assert all(finding.text("en") in made.view["status"] for finding in report.findings)
        made.close()


def test_shades_tell_few_from_all_and_from_none():
    assert shades((-1.0, 0.0, 1e-9, 0.5, 1.0)) == ".-048"


def test_text_is_the_same_in_every_run_and_outlives_the_cache(model):
    said = []
    for _ in range(2):
        with install_kv_eviction(model, **OPTIONS):
            made = watch(model)
            model.generate(texts(20), max_new_tokens=20, do_sample=False)
            gc.collect()
            made.stop()
            said.append((made.text(), made.text("zh")))
            made.close()
    assert said[0] == said[1]
    assert "H2O" in said[0][0]
    assert said[0][0] != said[0][1]


@torch.no_grad()
def test_a_look_waits_for_the_forward_and_the_forward_for_it(model):
    ids, inside, go, seen = texts(30), threading.Event(), threading.Event(), []
    with install_kv_eviction(model, **OPTIONS) as eviction:
        made = watch(model)
        cache = eviction.new_cache()
        model(ids[:, :20], past_key_values=cache)

        def halfway(module, args, output):
            inside.set()
            assert go.wait(SECONDS)

        hook = model.model.layers[0].register_forward_hook(halfway)
        forward = threading.Thread(target=lambda: model(ids[:, 20:21], past_key_values=cache))
        forward.start()
        assert inside.wait(SECONDS)
        look = threading.Thread(target=lambda: seen.append((made.tick(), cache.layers[1].get_seq_length())))
        look.start()
        look.join(0.05)
        assert look.is_alive(), "one layer is written, the other is not"
        go.set()
        forward.join(SECONDS)
        look.join(SECONDS)
        assert seen == [(True, 21)]
        hook.remove()
        made.close()


@torch.no_grad()
def test_a_forward_that_fails_or_is_refused_keeps_nobody_waiting(model):
    ids = texts(20)
    with install_kv_eviction(model, **OPTIONS) as eviction:
        made = watch(model)

        def breaks(module, args, output):
            raise error

        for error in (RuntimeError("broken"), KeyboardInterrupt()):
            hook = model.model.layers[1].register_forward_hook(breaks)
            with pytest.raises(type(error)):
                model(ids, past_key_values=eviction.new_cache())
            hook.remove()
            model(ids, past_key_values=eviction.new_cache())
            assert looks_from_elsewhere(made)
        mask = torch.ones_like(ids)
        mask[:, -3:] = 0
        with pytest.raises(ArgumentError):  # refused before it begins: padding at the right
            model(ids, attention_mask=mask, past_key_values=eviction.new_cache())
        assert looks_from_elsewhere(made)
        made.close()


@torch.no_grad()
def test_closing_after_ctrl_c_lets_the_thread_go(model):
    with install_kv_eviction(model, **OPTIONS) as eviction:
        made = watch(model)

        def breaks(module, args, output):
            raise KeyboardInterrupt

        hook = model.model.layers[1].register_forward_hook(breaks)
        with pytest.raises(KeyboardInterrupt):
            model(texts(20), past_key_values=eviction.new_cache())
        hook.remove()
        looked = threading.Thread(target=made.tick, daemon=True)
        looked.start()
        made.close()
        looked.join(SECONDS)
        assert not looked.is_alive()


def looks_from_elsewhere(made) -> bool:
    looked = []
    thread = threading.Thread(target=lambda: looked.append(made.tick()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return looked == [True]


@torch.no_grad()
def test_closing_leaves_the_model_as_it_was(model):
    ids = texts(20)
    with install_kv_eviction(model, **OPTIONS) as eviction:
        hooks = (len(model._forward_hooks), len(model._forward_pre_hooks))
        made = watch(model)
        assert (len(model._forward_hooks), len(model._forward_pre_hooks)) != hooks
        other = copy.deepcopy(model)
        model(ids)
        other(ids)
        assert made.tick()
        made.close()
        assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks
        gate = Gate(model)
        gone = weakref.ref(gate)
        del gate
        gc.collect()
        assert gone() is None
        assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks
        assert eviction.model is model


@torch.no_grad()
def test_a_generate_that_ends_before_the_next_look_is_seen(model):
    with install_kv_eviction(model, **OPTIONS):
        made = watch(model)
        for length in (30, 20):
            out = model.generate(texts(length), max_new_tokens=5, min_new_tokens=5, do_sample=False)
            assert out.shape[1] == length + 5
            gc.collect()
            made.tick()
            chart = made.view["chart"]
            assert chart["values"]["resident"][-1] + chart["values"]["gone"][-1] == length
            assert {row["values"][0] for row in made.view["rows"]} == {"14"}, (
                "budget, sinks and recent tokens"
            )
        made.close()


@torch.no_grad()
def test_it_holds_no_cache(model):
    with install_kv_eviction(model, **OPTIONS) as eviction:
        made, threads = watch(model), len(ours())
        cache = eviction.new_cache()
        model(texts(40), past_key_values=cache)
        made.tick()
        shown, gone = made.view["map"], weakref.ref(cache)
        del cache
        gc.collect()
        assert gone() is None
        for _ in range(1000):
            assert made.tick()
        assert made.view["map"] == shown, "what was seen last stays"
        assert len(made.view["chart"]["seconds"]) <= 122
        assert len(ours()) == threads
        made.close()


def test_a_model_without_eviction_is_refused(model):
    for nothing in (model, None, "h2o"):
        with pytest.raises(ArgumentError):
            monitor.eviction(nothing)


def test_an_llm_that_evicts_sequence_by_sequence():
    sizes = dict(num_blocks=60, block_size=4, max_num_seqs=4, max_model_len=128, seed=1)
    params = EvictionConfig(policy="streaming", budget=0, n_sink=2, n_recent=10, evict_every=4)
    with LLM(bare_model(), **sizes, eviction=params) as llm:
        made = watch(llm)
        for number in range(3):
            prompt = texts(12, seed=number)[0].tolist()
            llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        gone = 0
        while llm.has_work:
            llm.step()
            made.tick()
            running = llm.snapshot().running
            for seq, row in zip(running, made.view["rows"], strict=True):
                told = [seq.num_computed, seq.num_resident, seq.num_computed - seq.num_resident]
                assert row["values"] == [f"{count:,}" for count in told]
                gone = max(gone, told[2])
        assert gone > 20
        assert made.view["chart"]["top"] > 0
        made.stop()
        assert made.text() == made.text()
        assert made.text("zh") != made.text("en")
        made.close()
    with LLM(bare_model(), **sizes) as llm:
        with pytest.raises(ArgumentError) as refused:
            monitor.eviction(llm)
        assert refused.value.code == "monitor_llm_keeps"
