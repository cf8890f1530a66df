"""The engine widget without a browser: what it shows is the engine's state, and its thread comes to an end."""

import gc
import random
import weakref
from itertools import count

import pytest

from minikv import SamplingParams
from minikv.course.widgets import EngineWidget
from minikv.course.widgets.engine_drawing import MAX_ROWS
from minikv.course.widgets.engine_picture import MAX_CELLS
from minikv.course.widgets.engine_run import EngineRun
from minikv.course.widgets.engine_worker import Worker
from minikv.course.widgets.parts import letters
from minikv.engine import EventLog, FinishReason
from tests.course.engine_widget_world import (
    GREEDY,
    PROMPTS,
    SECONDS,
    STEM,
    Gate,
    bare_model,
    finish,
    llms,
    look,
    nothing_held,
    threads,
)
from tests.models.running import World


@pytest.fixture(scope="module")
def model():
    return bare_model()


@pytest.fixture
def make(model):
    with llms(model) as one:
        yield one


def test_it_answers_as_generate_does(make):
    expected = [out.token_ids for out in make().generate(PROMPTS, GREEDY)]
    for arrivals in (None, [0, 0, 3, 3, 1, 50]):
        llm = make()
        widget = finish(EngineWidget(llm, PROMPTS, GREEDY, arrivals=arrivals))
        assert [out.token_ids for out in widget.outputs] == expected
        assert widget.error is None
        assert nothing_held(llm)
        alone = EngineWidget(make(), PROMPTS, GREEDY, arrivals=arrivals)
        while alone.step():
            pass
        assert [out.token_ids for out in alone.outputs] == expected
        assert alone.text() == widget.text(), "whoever computes the steps"


def test_after_every_step_the_picture_is_the_engines_state(make):
    rng = random.Random(0)
    for _ in range(4):
        size = rng.choice([2, 3, 4])
        llm = make(num_blocks=rng.randint(32, 60), block_size=size, max_batched_tokens=rng.randint(4, 20))
        prompts = [
            STEM[: rng.randint(1, 10)] + [rng.randint(30, 40) for _ in range(rng.randint(1, 12))]
            for _ in range(6)
        ]
        params = [
            SamplingParams(max_tokens=rng.randint(1, 12), n=rng.choice([1, 1, 2]), seed=3) for _ in prompts
        ]
        arrivals = [rng.randint(0, 12) for _ in prompts]
        order = sorted(range(6), key=lambda number, arrivals=arrivals: arrivals[number])
        widget = EngineWidget(llm, prompts, params, arrivals=arrivals)
        more = True
        while more:
            more = widget.step()
            view, pool = llm.snapshot(), llm.manager.pools[0]
            rows = widget.view["rows"]
            live = [row for row in rows if row["state"] in ("waiting", "prefill", "decode")]
            states = [row["state"] for row in live]
            assert states.count("prefill") + states.count("decode") == len(view.running)
            assert states.count("waiting") >= len(view.waiting), (
                "samples wait for their prompt outside the queue"
            )
            for seq in view.running:
                number = order[int(str(seq.id.request).split()[1])]  # "request 0" was added first
                name = letters(number) + (str(seq.id.sample + 1) if params[number].n > 1 else "")
                cached, computed, left, generated = next(row["parts"] for row in live if row["name"] == name)
                assert cached + computed + left == seq.num_prompt
                assert cached + computed == min(seq.num_computed, seq.num_prompt)
                assert generated == seq.num_output
            cells = widget.view["pools"][0]["cells"]
            assert len(cells) == pool.num_blocks
            for block, (kind, drawn, mark, owners) in enumerate(cells):
                holders = owners.split("+") if owners else []
                assert len(holders) == pool.ref_count(block)
                assert kind == {0: "cached" if pool.is_published(block) else "empty", 1: "own"}.get(
                    len(holders), "shared"
                )
                assert drawn >= 0
                assert mark
                assert set(holders) <= {row["name"] for row in live}
        assert nothing_held(llm)
        done = {row["name"]: row["parts"] for row in widget.view["rows"]}
        for number, out in enumerate(widget.outputs):
            for sample in out.completions:
                name = letters(number) + (str(sample.sample + 1) if len(out.completions) > 1 else "")
                cached, computed, left, generated = done[name]
                assert (cached, left, generated) == (out.num_cached, 0, len(sample.token_ids))
                assert cached + computed == len(out.prompt_token_ids)


def test_a_run_step_by_step(make):
    widget = EngineWidget(
        make(), PROMPTS[:3], SamplingParams(temperature=0, max_tokens=2), arrivals=[0, 0, 9]
    )
    assert look(widget) == []
    assert "Nothing has run yet, requests ready: 3." in widget.text()
    assert widget.step()
    assert look(widget) == [("A", "decode", 0, 11, 0, 1), ("B", "prefill", 0, 5, 6, 0)], "16 tokens a step"
    assert widget.step()
    assert look(widget)[1:] == [("B", "decode", 0, 11, 0, 1)]
    assert look(widget)[0] == ("A", "length", 0, 11, 0, 2)
    assert "Requests that have not arrived: 1." in widget.text()
    assert widget.step()
    assert widget.step(), "C comes at once where nobody else is left"
    assert look(widget)[2] == ("C", "decode", 8, 3, 0, 1)
    assert not widget.step()
    figures = dict(zip([key for key, _ in widget.form["figures"]], widget.view["figures"], strict=True))
    assert (figures["steps"], figures["ended"], figures["hits"]) == ("5", "3 of 3", "8")
    assert float(figures["speed"].replace(",", "")) > 0
    assert widget.step(), "after the end it begins again"
    assert look(widget)[0] == ("A", "decode", 8, 3, 0, 1)


def test_samples_share_the_blocks_of_their_prompt(make):
    llm = make()
    params = SamplingParams(max_tokens=3, n=3, seed=5)
    widget = EngineWidget(llm, [PROMPTS[0][:8]], params)
    widget.step()
    assert [row[0] for row in look(widget)] == ["A1", "A2", "A3"]
    cells = widget.view["pools"][0]["cells"]
    assert [cell[3] for cell in cells[:2]] == ["A1+A2+A3"] * 2
    assert [cell[2] for cell in cells[:2]] == ["A1+"] * 2
    assert "2 of them shared" in widget.view["status"]
    finish(widget)
    assert nothing_held(llm)


def test_a_preemption_is_seen_and_counted(make):
    llm = make(num_blocks=8, emit=EventLog())
    params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
    widget, seen = EngineWidget(llm, [STEM[:4], STEM[4:8]], params), set()
    while widget.step():
        seen |= {(row["state"], row["parts"][2] > 0, row["parts"][3] > 0) for row in widget.view["rows"]}
    preempted = sum(each.num_preemptions for out in widget.outputs for each in out.completions)
    assert preempted
    assert f"preemptions: {preempted}." in widget.text()
    assert ("waiting", True, True) in seen, "its tokens are there, their K and V are not"


def test_layers_of_two_kinds_have_two_grids(make):
    llm = make(model=World.bare("gemma3_text"), num_blocks=None, kv_bytes=200_000)
    widget = EngineWidget(llm, PROMPTS[:2], GREEDY)
    widget.step()
    assert len(llm.manager.pools) == 2
    for pool, drawn in zip(llm.manager.pools, widget.view["pools"], strict=True):
        used = [block for block, cell in enumerate(drawn["cells"]) if cell[0] in ("own", "shared")]
        assert used == [block for block in range(len(drawn["cells"])) if pool.ref_count(block)]
    assert "KV cache group 1" in widget.text()
    finish(widget)
    assert nothing_held(llm)


def test_what_is_too_much_is_counted(make):
    llm = make(num_blocks=MAX_CELLS + 40)
    prompts = [[*STEM[:3], 20 + number] for number in range(MAX_ROWS + 9)]
    widget = EngineWidget(llm, prompts, SamplingParams(temperature=0, max_tokens=4))
    while widget.step():
        rows, view = widget.view["rows"], llm.snapshot()
        assert len(rows) == MAX_ROWS
        drawn = {row["name"] for row in rows}
        assert {letters(int(str(seq.id.request).split()[1])) for seq in view.running} <= drawn
        assert f"Sequences not drawn: {len(prompts) - MAX_ROWS}" in widget.view["more"]
    assert look(widget)[-1][0] == letters(len(prompts) - 1), "the longest ended are left out first"
    assert len(widget.view["pools"][0]["cells"]) == MAX_CELLS
    assert "Blocks not drawn: 40, of which 0 are used." in widget.text()


def test_stop_in_the_middle_gives_everything_back(make):
    llm = make()
    gate, widget = Gate(llm, free=3), EngineWidget(llm, PROMPTS, GREEDY, arrivals=[0, 0, 0, 0, 0, 40])
    widget.start()
    assert gate.reached.wait(SECONDS)
    assert not nothing_held(llm)
    assert widget.running
    gate.let(1000)
    widget.stop()
    assert not widget.running
    assert not threads()
    assert nothing_held(llm)
    if len(widget.outputs) < 5:  # the thread may be quicker than Stop
        assert {out.finish_reason for out in widget.outputs} >= {FinishReason.ABORT}
    assert [row["state"] in ("abort", "length") for row in widget.view["rows"]] == [True] * 5
    assert len(llm.generate(PROMPTS, GREEDY)) == 6
    assert len(finish(widget).outputs) == 6


def test_stop_is_heard_before_the_next_step(make):
    llm = make()
    params = SamplingParams(temperature=0, max_tokens=30)
    gate, widget = Gate(llm, free=2), EngineWidget(llm, PROMPTS, params)
    widget.start()
    assert gate.reached.wait(SECONDS)
    widget._handle_custom_msg({"action": "stop"}, [])  # it does not wait: the step is still held
    gate.let(2)  # that step, and the one in which the outputs of the aborted come
    assert widget.wait(SECONDS)
    assert widget.view["status"].startswith("Stopped: ")
    assert [out.finish_reason for out in widget.outputs] == [FinishReason.ABORT] * 6
    assert "Step 3." in widget.text()
    assert nothing_held(llm)


def test_stop_between_single_steps(make):
    llm = make()
    widget = EngineWidget(llm, PROMPTS, GREEDY)
    widget.stop()
    assert "Nothing has run yet" in widget.text(), "there was nothing to stop"
    widget.step()
    widget.stop()
    assert nothing_held(llm)
    assert look(widget)[:2] == [("A", "abort", 0, 11, 0, 1), ("B", "abort", 0, 5, 6, 0)], "how far they came"
    stopped = widget.text()
    widget.stop()
    assert widget.text() == stopped


def test_start_twice_does_nothing_and_after_the_end_runs_again(make):
    llm = make()
    gate, widget = Gate(llm), EngineWidget(llm, PROMPTS[:2], GREEDY)
    widget.start()
    assert gate.reached.wait(SECONDS)
    first = threads()
    widget.start()
    assert widget.step(), "nor does Step, while the thread runs"
    assert threads() == first
    assert len(first) == 1
    gate.let(1000)
    assert widget.wait(SECONDS)
    outputs = widget.outputs
    finish(widget)
    assert [out.token_ids for out in widget.outputs] == [out.token_ids for out in outputs]
    assert [out.num_cached for out in widget.outputs] == [8, 8], "the cache remembers the first run"
    assert not threads()


def test_wait_has_an_end(make):
    llm = make()
    gate, widget = Gate(llm), EngineWidget(llm, PROMPTS[:1], GREEDY)
    assert widget.wait(0), "nothing to wait for"
    widget.start()
    assert not widget.wait(0)
    gate.let(1000)
    assert widget.wait(SECONDS)


def test_closing_stops_and_the_thread_keeps_no_widget(make):
    llm = make()
    gate, widget = Gate(llm), EngineWidget(llm, PROMPTS, SamplingParams(max_tokens=40, ignore_eos=True))
    widget.start()
    assert gate.reached.wait(SECONDS)
    (thread,) = threads()
    gone = weakref.ref(widget)
    widget.close()
    del widget
    gc.collect()
    assert gone() is None
    gate.let(1000)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert nothing_held(llm)


def test_a_run_that_nobody_looks_at_ends(make):
    llm, ticks = make(), count()
    run = EngineRun(llm, PROMPTS, SamplingParams(max_tokens=40, ignore_eos=True), None)
    worker = Worker(run, lambda picture: False, clock=lambda: next(ticks))
    worker.start()
    assert worker.wait(SECONDS)
    assert run.picture().progress == "stopped"
    assert nothing_held(llm)


def test_five_pictures_a_second_and_the_last_one_always(make):
    for step_seconds, between in ((1 / 16, 4), (1 / 4, 1), (0, None)):
        now, pictures = [0.0], []  # seconds
        llm = make()
        run = EngineRun(llm, PROMPTS, GREEDY, None, clock=lambda now=now: now[0])
        original = llm.step

        def step(original=original, now=now, step_seconds=step_seconds):
            now[0] += step_seconds
            return original()

        llm.step = step
        worker = Worker(
            run, lambda picture, pictures=pictures: not pictures.append(picture), lambda now=now: now[0]
        )
        worker.start()
        assert worker.wait(SECONDS)
        every = [picture for batch in pictures for picture in batch]
        assert [picture.progress for picture in every] == ["running"] * (len(every) - 1) + ["ended"]
        assert [picture.steps for picture in every] == list(range(every[-1].steps + 1)), "no step is left out"
        steps = [batch[-1].steps for batch in pictures]
        total = steps[-1]
        assert steps[0] == 0
        assert steps[1:-1] == ([] if between is None else list(range(between, total, between)))
        assert every[-1].seconds == pytest.approx(total * step_seconds)


def test_with_a_speed_every_step_is_a_message_and_the_widget_keeps_them_all(make):
    widget, told = EngineWidget(make(), PROMPTS, GREEDY, speed=1000), []
    widget.observe(lambda change: told.append([view["steps"] for view in change["new"]]), "recent")
    finish(widget)
    last = told[-1][-1]
    assert told == [[step] for step in range(last + 1)]
    widget._handle_custom_msg({"action": "history"}, [])
    assert [view["steps"] for view in widget.recent] == list(range(last + 1)), "for a page that came later"
    assert widget.recent[-1] == widget.view
    widget.speed = -3
    assert widget.speed == 0
    widget.step()
    widget._handle_custom_msg({"action": "history"}, [])
    assert [view["steps"] for view in widget.recent] == [0, 1], "a new run takes the old one's place"


def test_a_pause_holds_the_run_and_start_goes_on(make):
    llm = make()
    expected = [out.token_ids for out in llm.generate(PROMPTS, GREEDY)]
    llm.reset_prefix_cache()
    gate, widget = Gate(llm, free=2), EngineWidget(llm, PROMPTS, GREEDY)
    widget.pause()
    widget.start()
    assert gate.reached.wait(SECONDS)
    widget._handle_custom_msg({"action": "pause"}, [])
    gate.let(1)
    assert widget.wait(SECONDS)
    assert "Step 3." in widget.text()
    assert not nothing_held(llm), "the sequences keep their blocks"
    gate.let(1000)
    assert widget.step()
    finish(widget)
    assert [out.token_ids for out in widget.outputs] == expected
    assert nothing_held(llm)


def test_a_pause_can_still_become_a_stop(make):
    llm = make()
    gate, widget = Gate(llm, free=1), EngineWidget(llm, PROMPTS, GREEDY)
    widget.start()
    assert gate.reached.wait(SECONDS)
    widget.pause()
    widget._handle_custom_msg({"action": "stop"}, [])
    gate.let(1000)
    assert widget.wait(SECONDS)
    assert widget.view["status"].startswith("Stopped: ")
    assert nothing_held(llm)
