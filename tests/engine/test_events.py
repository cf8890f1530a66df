"""Events and what is summed up from them."""

import pytest

from minikv.engine import Event, EventLog, SamplingParams, StepEvent, summary
from minikv.errors import ArgumentError
from tests.engine.drive import Engine


def test_a_log_is_the_same_after_writing_and_reading(tmp_path):
    engine = Engine([(12, None), (10, 7)], max_num_seqs=4, max_batched_tokens=16)
    for number in range(6):
        engine.add(f"request {number}", [1, 2, 3, 4, 5], SamplingParams(max_tokens=9, n=2))
    engine.run()
    engine.log.write(tmp_path / "events.jsonl")
    again = EventLog.read(tmp_path / "events.jsonl")
    assert again.events == engine.log.events
    assert summary(again.events) == summary(engine.log.events)


@pytest.mark.parametrize("line", ["", "{", "[]", "5", '{"kind": "step"}', '{"kind": "free", "colour": 1}'])
def test_a_line_that_is_no_event_is_named(tmp_path, line):
    path = tmp_path / "events.jsonl"
    log = EventLog()
    log(Event("arrive", 0.0, "a", 0, 5))
    log.write(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ArgumentError) as error:
        EventLog.read(path)
    assert error.value.values["line"] == 2
    assert error.value.text("en") != error.value.text("zh")


def test_the_waste_of_a_step_is_what_the_manager_counts():
    engine = Engine([(40, None), (30, 5)], 4, max_num_seqs=8, max_batched_tokens=24)
    for number in range(9):
        engine.add(number, list(range(number + 1)), SamplingParams(max_tokens=7, n=1 + number % 3))
    counted = []
    while engine.scheduler.has_work:
        step = engine.scheduler.schedule()
        stats = engine.manager.stats()
        counted.append((stats.wasted_slots, tuple(pool.used for pool in stats.pools)))
        engine.scheduler.finish(step, engine.model.forward(step, engine.requests.__getitem__))
    assert [(event.wasted_slots, event.used) for event in engine.log.of("step")] == counted


def step_event(time, seconds, prefill, decode, used, wasted):
    return StepEvent(time, 0, seconds, prefill, decode, 1, 0, (used,), (0,), (10,), (wasted,), 4)


def test_the_summary_of_a_run_that_can_be_checked_by_hand():
    metrics = summary(
        [
            Event("arrive", 1.0, "a", 0, 8),
            Event("hit", 2.0, "a", 0, 4, (1,)),
            step_event(3.0, 1.0, 4, 0, 2, 0),
            Event("first", 3.0, "a", 0, 1),
            step_event(6.0, 3.0, 0, 1, 4, 8),
            Event("preempt", 6.0, "b", 0, 5),
            Event("finish", 6.0, "a", 0, 4),
            Event("arrive", 6.0, "a", 0, 8),  # the id once more: its times are its own
            Event("abort", 9.0, "a", 0, 0),
        ]
    )
    assert metrics.seconds == 8
    assert (metrics.steps, metrics.finished, metrics.aborted, metrics.failed) == (2, 1, 1, 0)
    assert (metrics.computed_tokens, metrics.generated_tokens) == (5, 4)
    assert metrics.tokens_per_second == 0.5
    assert metrics.hit_rate == 0.5
    assert metrics.occupancy == pytest.approx((0.2 * 1 + 0.4 * 3) / 4)
    assert metrics.peak_occupancy == 0.4
    assert metrics.waste == pytest.approx((8 * 3) / (8 * 1 + 16 * 3))
    assert (metrics.preemptions, metrics.lost_tokens) == (1, 5)
    assert (metrics.ttft.p50, metrics.ttft.p99, metrics.ttft.count) == (2.0, 2.0, 1)
    assert metrics.tpot.p50 == 1.0


def test_without_a_step_there_is_nothing_to_sum_up():
    with pytest.raises(ArgumentError):
        summary([])
