"""Batches and a growing cache as they move: every recorded state is the scheduler's, or a plan's."""

import json

import pytest

from minikv.course.lessons.l11a.load import Ask, random_load, run_batches, run_load
from minikv.course.motion import BatchingMotion, MemoryBarMotion, scene_module
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import LANGUAGES
from minikv.plan import plan_memory
from minikv.units import GIB

OPTIONS = dict(num_blocks=40, block_size=4, max_num_seqs=3, max_batched_tokens=24)


@pytest.mark.parametrize("seed", range(4))
def test_every_column_is_a_step_of_the_scheduler(seed):
    asks = random_load(9, (3, 20), (1, 12), seed)
    runs = {"static": run_batches(asks, 3, **OPTIONS), "continuous": run_load(asks, **OPTIONS)}
    motion = BatchingMotion("en", runs, 3)
    assert len(motion.states) == 1 + max(ran.steps for ran in runs.values())
    for place, ran in enumerate(runs.values()):
        idle = 0
        for step, state in enumerate(motion.states[1 : ran.steps + 1]):
            run = state["runs"][place]
            busy = {number for number, parts in enumerate(ran.parts) if parts[step]}
            assert {number for number in run["column"] if number is not None} == busy
            assert run["waiting"] == [number for number, row in enumerate(ran.chart) if row[step] == "."]
            for number, prompt in zip(run["column"], run["prompt"], strict=True):
                assert prompt == (number is not None and ran.chart[number][step] == "#")
            idle += run["column"].count(None)
            assert f"{idle:,} of {3 * (step + 1):,} cells idle" in run["said"]
            assert f"{sum(ran.tokens[: step + 1]):,} tokens" in run["said"]
        ended = [state["runs"][place]["ended"] for state in motion.states]
        assert ended == [step > ran.steps for step in range(len(ended))]


def test_each_request_takes_its_seat_once_and_the_text_has_every_step():
    asks = [Ask(tuple(range(10 * number, 10 * number + 5)), new) for number, new in enumerate((3, 1, 6, 2))]
    motion = BatchingMotion("en", {"one": run_load(asks, **OPTIONS)}, 3)
    seats = {}
    for state in motion.states:
        for seat, number in enumerate(state["runs"][0]["column"]):
            if number is not None:
                assert seats.setdefault(number, seat) == seat
    assert sorted(seats) == [0, 1, 2, 3]
    text = motion.text()
    assert all(state["status"] in text for state in motion.states)
    assert "on the seats 0 1 2; waiting 3" in text


def test_weights_that_are_too_much_by_themselves_are_drawn_too():
    motion = MemoryBarMotion("en", "Llama-3.1-70B", "H100 SXM 80GB", context=4096, steps=2)
    weights = motion.states[0]["sizes"][0]
    assert weights > motion.form["limit"]
    assert all(state["over"] == sum(state["sizes"]) - motion.form["limit"] for state in motion.states)
    assert motion.form["most"] == sum(motion.states[-1]["sizes"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_bar_is_the_plan_at_every_length_and_says_how_much_is_too_much(lang):
    motion = MemoryBarMotion(lang, "Llama-3.1-8B", "H100 SXM 80GB", context=32768, batch=32, steps=8)
    for state, length in zip(motion.states, [1, *range(4096, 32769, 4096)], strict=True):
        plan = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB", context=length, batch=32)
        assert state["sizes"][-1] == plan.needed_bytes
        assert sum(state["sizes"]) == plan.limit_bytes - plan.kv_bytes + plan.needed_bytes
        assert state["over"] == max(0, plan.needed_bytes - plan.kv_bytes)
        assert bool(state["over_text"]) is not plan.fits
        assert f"{state['over'] / GIB:,.1f} GiB" in state["status"] or plan.fits
        assert f"{plan.needed_bytes:,}" in motion.text()
    form = motion.form
    assert form["limit"] < form["total"] <= form["most"]
    assert form["most"] >= max(sum(state["sizes"]) for state in motion.states), (
        "what is too much is drawn too"
    )


def test_what_cannot_be_drawn_is_refused():
    for options in ({"context": 0}, {"context": 8, "steps": 0}):
        with pytest.raises(ArgumentError):
            MemoryBarMotion("en", "Llama-3.1-8B", "T4", **options)
    with pytest.raises(MiniKVError):
        MemoryBarMotion("en", "Llama-3.1-8B", "no such card", context=8)


@pytest.mark.parametrize("name", ["batching", "memory_bar", "paging"])
def test_a_module_is_plain(name):
    module = scene_module(name)
    assert "anywidget" not in module
    assert module.count("export ") == 1
    assert "const mount" in module


def test_states_are_json():
    motion = MemoryBarMotion("zh", "Llama-3.1-8B", "H100 SXM 80GB", context=4096, steps=3)
    assert json.loads(json.dumps(motion.scene)) == motion.scene
