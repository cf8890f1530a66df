"""Steps ahead in the scheduler: the tokens are those of one request at a time, whatever ends, fails or comes meanwhile.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random
from collections import Counter

import pytest

from minikv.engine import FinishReason, SamplingParams, SequenceStatus, summary
from minikv.engine.core.rules import peak_blocks
from minikv.engine.ext.overlap import schedule_next
from minikv.errors import ArgumentError
from minikv.plan.preemption import TransferRates
from tests.engine.drive_ahead import AheadEngine
from tests.engine.fake_model import Broken
from tests.engine.test_random import PROFILES, workload

LONG = int(os.environ.get("MINIKV_LONG", "1"))
POINTS = ("store", "forward", "sample")
PLAIN = SamplingParams(max_tokens=6)


def run(profile, seed, failing=False, **host):
    groups, size, seqs, budget = PROFILES[profile]
    draw = random.Random(f"{profile} {seed} ahead")
    engine = AheadEngine(groups, size, max_num_seqs=seqs, max_batched_tokens=budget, **host)

    def abort():
        engine.scheduler.abort(draw.choice(list(engine.requests)))

    def step():
        points = [draw.choice(POINTS) if failing and draw.random() < 0.05 else None for _ in range(2)]
        engine.step(*points, inside=abort if draw.random() < 0.08 else None)
        if draw.random() < 0.08:
            abort()
            engine.land()
            engine.check()

    for number, (wait, prompt, params, salt) in enumerate(workload(draw, 16)):
        for _ in range(wait * 2):
            if engine.scheduler.has_work:
                step()
        stored = len(prompt) + params.max_tokens - 1
        if all(peak_blocks(stored, window, size) <= blocks for blocks, window in groups):
            engine.add(number, prompt, params, salt)
    for _ in range(5000):
        if not engine.scheduler.has_work:
            break
        step()
    assert not engine.scheduler.has_work, "a livelock"
    assert len(engine.scheduler.open_steps) == 0
    engine.check_empty()
    return engine


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("failing", [False, True])
def test_outputs_are_those_of_one_request_at_a_time(profile, failing):
    reasons, events, ahead = Counter(), Counter(), 0
    for seed in range(4 * LONG):
        engine = run(profile, seed, failing)
        reasons += engine.check_outputs()
        events += Counter(event.kind for event in engine.log.events)
        assert summary(engine.log.events).steps == len(engine.log.of("step"))
        for group, pool in enumerate(engine.manager.pools):
            assert sum(event.blocks[group] for event in engine.log.of("evict")) == pool.stats().evictions
        times = [event.time for event in engine.log.events]
        assert times == sorted(times)
        ahead += engine.ahead
    assert reasons[FinishReason.LENGTH]
    assert reasons[FinishReason.STOP]
    assert bool(reasons[FinishReason.ERROR]) == failing
    assert ahead > 5
    assert events["preempt"] or profile not in ("tight", "large blocks")


@pytest.mark.parametrize("profile", ["tight", "two groups", "large blocks"])
def test_with_host_memory_nothing_is_overwritten_that_should_have_been_saved(profile):
    rates = TransferRates(to_host=1e12, to_device=1e12, prefill=1.0)  # a swap is always cheaper
    events, ahead = Counter(), 0
    for seed in range(4 * LONG):
        engine = run(profile, seed, failing=bool(seed % 2), host_blocks=30, rates=rates)
        engine.check_outputs()
        events += Counter(event.kind for event in engine.log.events)
        ahead += engine.ahead
    assert events["swap_out"]
    assert events["swap_in"]
    assert ahead > 10


def decoding(count=3, blocks=40, size=4, params=PLAIN, **limits):
    """An engine whose ``count`` requests have their first token."""
    engine = AheadEngine([(blocks, None)], size, **limits)
    for number in range(count):
        engine.add(number, [number, 1, 2], params)
    return engine


def test_all_but_the_first_step_are_ahead():
    engine = decoding()
    engine.run()
    assert [(step.batch.sources is not None) for step in engine.steps] == [False] + [True] * 5
    assert engine.ahead == 5
    engine.check_outputs()
    steps = engine.log.of("step")
    assert [step.decode_tokens for step in steps] == [0, 3, 3, 3, 3, 3]
    begun = [step.time - step.seconds for step in steps]
    assert begun[1:] == pytest.approx([step.time for step in steps[:-1]]), "no second counts twice"


@pytest.mark.parametrize("lengths", [(1, 6, 6), (2, 3, 6), (6, 6, 6), (3, 3, 2)])
def test_who_has_all_its_tokens_is_not_in_the_step_behind(lengths):
    engine = AheadEngine([(40, None)])
    for number, length in enumerate(lengths):
        engine.add(number, [number, 1, 2], SamplingParams(max_tokens=length))
    engine.run()
    assert [len(step.items) for step in engine.steps] == [
        sum(length > place for length in lengths) for place in range(max(lengths))
    ], "no row is computed for nobody"
    engine.check_outputs()


def test_a_dropped_row_holds_its_blocks_until_its_step_is_done_and_publishes_nothing():
    """Its last token fills the block, so that a commit of the row would make it known."""
    engine = AheadEngine([(40, None)], 4)
    first = engine.add("a", [5, 6], PLAIN)
    engine.run()
    stop = first.sequences[0].output[1]
    assert stop not in first.sequences[0].output[:1]
    engine = AheadEngine([(40, None)], 4)
    stopped = engine.add("a", [5, 6], SamplingParams(max_tokens=6, stop_token_ids=[stop])).sequences[0]
    engine.add("b", [7, 8], PLAIN)
    engine.step()
    engine.step()
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.id in engine.manager.sequences(), "the step in flight writes into its blocks"
    assert not engine.scheduler.abort("a"), "it has ended"
    again = engine.add("a", [5, 6, 1], PLAIN)  # its id may be used again
    engine.step()
    assert stopped.id not in engine.manager.sequences()
    assert engine.manager.match([*stopped.tokens, 1]).num_tokens == 0, "3 of its 4 slots were committed"
    engine.run()
    assert again.sequences[0].finish_reason is FinishReason.LENGTH
    assert engine.steps[1].batch.sources is not None
    del engine.requests["a"]
    engine.check_outputs()


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("somebody waits", lambda engine: engine.add("late", [1, 2], PLAIN)),
        ("nobody goes on", lambda engine: [engine.scheduler.abort(number) for number in range(3)]),
        ("drafts", lambda engine: setattr(engine.drafts, "most", 2)),
        ("no block", lambda engine: engine.manager.allocate("other", range(200))),
        ("a copy", lambda engine: engine.manager.fork(engine.requests[0].sequences[0].id, "other")),
    ],
)
def test_none_where_the_next_step_may_be_another(why, change):
    """Each of them alone; nothing has changed, and what is open can be finished."""
    engine = decoding(size=1 if why == "no block" else 40, blocks=210)
    engine.scheduler.finish(engine.scheduler.schedule(), [1, 2, 3])
    step = engine.scheduler.schedule()
    change(engine)
    before = engine.manager.stats()
    assert schedule_next(engine.scheduler) is None
    assert engine.manager.stats() == before
    assert len(engine.scheduler.open_steps) == 1
    if why in ("no block", "a copy"):
        engine.manager.free("other")
    assert bool(schedule_next(engine.scheduler)) == (why in ("no block", "a copy"))
    engine.scheduler.finish(step, [1, 2, 3])


def test_none_without_an_open_step_while_a_prompt_goes_on_or_forks():
    engine = AheadEngine([(40, None)], max_num_seqs=4, max_batched_tokens=4)
    assert schedule_next(engine.scheduler) is None
    engine.add("a", [1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=4, n=3))
    for _ in range(2):  # half of the prompt, and its end with three samples
        step = engine.scheduler.schedule()
        assert schedule_next(engine.scheduler) is None
        engine.scheduler.finish(step, [9] * len(step.sampled))
    step = engine.scheduler.schedule()
    assert step.copies, "they part"
    assert schedule_next(engine.scheduler) is not None
    engine.scheduler.finish(step, [1, 2, 3])
    engine.scheduler.finish(engine.scheduler.open_step, [1, 2, 3])


def test_steps_end_in_order_and_are_refused_otherwise():
    engine = decoding(1)
    first = engine.scheduler.schedule()
    second = schedule_next(engine.scheduler)
    with pytest.raises(ArgumentError) as refused:
        engine.scheduler.schedule()
    assert refused.value.code == "step_still_open"
    for call in (engine.scheduler.finish, engine.scheduler.fail):
        with pytest.raises(ArgumentError) as refused:
            call(second, [1])
        assert refused.value.code == "step_not_open"
    engine.scheduler.finish(first, [7])
    assert engine.scheduler.open_step is second
    with pytest.raises(ArgumentError):
        engine.scheduler.schedule()
    engine.scheduler.finish(second, [8])
    assert engine.requests[0].sequences[0].output == [7, 8]


def test_a_step_that_fails_takes_the_one_behind_it_along():
    engine = decoding(2)
    first = engine.scheduler.schedule()
    assert schedule_next(engine.scheduler) is not None
    error = Broken("forward")
    failed = engine.scheduler.fail(first, error)
    assert [request.id for request in failed] == [0, 1]
    assert all(request.sequences[0].error is error for request in failed)
    assert len(engine.scheduler.open_steps) == 0
    engine.check_empty()
    assert [event.failed for event in engine.log.of("step")] == [True, True]


@pytest.mark.parametrize("name", ["reserve_slot", "rows", "block_tables", "num_tokens"])
def test_an_exception_in_schedule_ahead_leaves_the_open_step_as_it_was(name, monkeypatch):
    """Even one that nobody expects, such as Ctrl+C."""
    for call in range(3):
        engine = decoding(size=1)
        engine.scheduler.finish(engine.scheduler.schedule(), [1, 2, 3])
        step = engine.scheduler.schedule()
        before = engine.manager.stats(), [seq.num_placed for seq in engine.scheduler.running_sequences]
        real, calls = getattr(engine.manager, name), []

        def broken(*args, real=real, calls=calls, call=call, **kwargs):
            calls.append(args)
            if len(calls) == call + 1:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(engine.manager, name, broken)
            try:
                ahead = schedule_next(engine.scheduler)
            except KeyboardInterrupt:
                ahead = None
                now = engine.manager.stats(), [seq.num_placed for seq in engine.scheduler.running_sequences]
                assert now == before
                assert len(engine.scheduler.open_steps) == 1
            else:
                assert ahead is not None
        if ahead is None:
            ahead = schedule_next(engine.scheduler)
        engine.scheduler.finish(step, [4, 5, 6])
        engine.scheduler.finish(ahead, [7, 8, 9])
        assert [seq.output for seq in engine.scheduler.running_sequences] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
        engine.manager.check_invariants()


def test_a_clock_that_raises_changes_nothing(monkeypatch):
    engine = decoding()
    step = engine.scheduler.schedule()
    before = engine.manager.stats()
    monkeypatch.setattr(engine.scheduler, "clock", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        schedule_next(engine.scheduler)
    assert engine.manager.stats() == before
    monkeypatch.undo()
    assert schedule_next(engine.scheduler) is not None
    engine.scheduler.finish(step, [1, 2, 3])


def test_an_abort_of_all_in_flight_leaves_a_step_that_nobody_wants():
    engine = decoding(2)
    engine.step()
    assert engine.scheduler.open_step_is_wanted
    engine.scheduler.abort(0)
    assert engine.scheduler.open_step_is_wanted
    engine.scheduler.abort(1)
    assert not engine.scheduler.open_step_is_wanted
    assert not engine.scheduler.has_work
    assert engine.manager.sequences(), "until the forward has ended"
    engine.land()
    assert not engine.scheduler.open_step_is_wanted
    engine.check_empty()
    states = {seq.status for request in engine.requests.values() for seq in request.sequences}
    assert states == {SequenceStatus.ABORTED}
