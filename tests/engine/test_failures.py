"""A step that raises, wherever it does: no block is lost, its requests fail, and the others get their tokens."""

import random

import pytest

from minikv.engine import FinishReason, SamplingParams, SequenceStatus
from tests.engine.drive import Engine
from tests.engine.fake_model import Broken
from tests.longer import every_value

POINTS = ["copy", "store", "forward", "sample"]


def crowd(forks=False, seed=3):
    """Seven requests on a tight pool: prefixes in common, forks, two salts; not all run at once.

    ``forks``: each has three sequences, and the pool is so small that they preempt each other.
    """
    draw = random.Random(seed)
    groups = [(8, None)] if forks else [(16, None), (14, 9)]
    engine = Engine(groups, max_num_seqs=5, max_batched_tokens=12)
    stem = [draw.randrange(50) for _ in range(9)]
    for number in range(7):
        prompt = stem[: draw.randrange(10)] + [draw.randrange(50) for _ in range(1 + number % 4)]
        params = SamplingParams(max_tokens=8, n=3 if forks else 1 + number % 3)
        engine.add(number, prompt, params, "ab"[number % 2])
    return engine


def length_of_the_run(forks=False):
    engine = crowd(forks)
    engine.run()
    assert bool(engine.log.of("preempt")) or not forks
    return len(engine.steps)


@pytest.mark.parametrize(("forks", "point"), every_value([False, True], POINTS))
def test_any_step_may_fail_at_any_point(point, forks):
    """Every step at two of the points; in turns with forks and without."""
    for failing in range(POINTS.index(point) // 2, length_of_the_run(forks), 2):
        engine = crowd(forks)
        for _ in range(failing):
            engine.step()
        failed = engine.step(fail_at=point)
        assert failed
        assert all(seq.finish_reason is not None for request in failed for seq in request.sequences)
        assert any(isinstance(seq.error, Broken) for request in failed for seq in request.sequences)
        assert {item.id.request for item in engine.steps[-1].items} == {request.id for request in failed}
        engine.run()
        engine.check_empty()
        engine.check_outputs()
        others = [request for request in engine.requests.values() if request not in failed]
        assert all(
            seq.finish_reason is FinishReason.LENGTH for request in others for seq in request.sequences
        )
        assert all(seq.error is None for request in others for seq in request.sequences)


@pytest.mark.parametrize(
    "name", ["append", "append_tokens", "match", "allocate", "decode_slots", "slot_mapping", "block_tables"]
)
def test_an_exception_inside_schedule_gives_everything_back(name, monkeypatch):
    """Even one that nobody expects, such as Ctrl+C: the next schedule() goes on as if it had not been."""
    for call in range(0, 60, 4):
        engine = crowd()
        real, calls = getattr(engine.manager, name), []

        def broken(*args, real=real, calls=calls, call=call, **kwargs):
            calls.append(args)
            if len(calls) == call + 1:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        monkeypatch.setattr(engine.manager, name, broken)
        interrupted = 0
        while engine.scheduler.has_work:
            try:
                engine.step()
            except KeyboardInterrupt:
                interrupted += 1
                assert engine.scheduler.open_step is None
                engine.check()
        assert interrupted == (call < len(calls))
        engine.check_empty()
        assert set(engine.check_outputs()) == {FinishReason.LENGTH}
        monkeypatch.undo()


def test_an_emit_that_raises_leaves_the_step_to_be_failed():
    engine = crowd()
    engine.scheduler.extensions[-1].emit = lambda event: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.scheduler.schedule()
    engine.scheduler.extensions[-1].emit = engine.log
    failed = engine.scheduler.fail(engine.scheduler.open_step, ZeroDivisionError())
    assert failed
    engine.check()
    engine.run()
    engine.check_empty()


def test_abort_in_every_step_and_outside_frees_once():
    for steps in range(0, length_of_the_run(), 3):
        for victim in range(steps % 2, 7, 2):
            engine = crowd()
            for _ in range(steps):
                engine.step()
            if (steps + victim) // 2 % 2:
                engine.step(inside=lambda engine=engine, victim=victim: engine.scheduler.abort(victim))
            else:
                engine.scheduler.abort(victim)
                engine.check()
            assert not engine.scheduler.abort(victim), "it has ended"
            engine.run()
            engine.check_empty()
            engine.check_outputs()


def test_an_id_may_be_used_again_while_the_aborted_one_is_in_a_step():
    engine = crowd()
    old = engine.requests[1]

    def again():
        engine.scheduler.abort(1)
        engine.add(1, [1, 2, 3], SamplingParams(max_tokens=4))

    engine.step(inside=again)
    engine.run()
    engine.check_empty()
    assert {seq.status for seq in old.sequences} == {SequenceStatus.ABORTED}
    assert engine.requests[1] is not old
    assert engine.check_outputs().keys() == {FinishReason.LENGTH}
