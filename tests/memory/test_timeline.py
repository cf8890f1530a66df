"""MemoryTimeline with a clock of our own: every sample in order, and no thread is left behind."""

import threading

import pytest

from minikv.errors import ArgumentError
from minikv.memory import MemoryStats, MemoryTimeline


class Clock:
    """Time that moves only when the sampling thread is let go: ``tick()`` gives it one turn and waits for it."""

    def __init__(self):
        self.time = 100.0
        self.waits = []
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.over = False

    def now(self):
        return self.time

    def wait(self, stop, seconds):
        self.waits.append(seconds)
        self.back.release()
        while not (stop.is_set() or self.go.acquire(timeout=0.001)):
            pass
        return stop.is_set()

    def settle(self):
        """Until the thread waits."""
        assert self.back.acquire(timeout=30)

    def tick(self, seconds):
        self.time += seconds
        self.go.release()
        self.settle()


def reader(fails_at=None):
    """Figures that tell the samples apart: ``allocated`` counts the reads."""
    reads = 0

    def read(device):
        nonlocal reads
        reads += 1
        if reads == fails_at:
            raise RuntimeError("driver gone")
        return MemoryStats(str(device), 10, 5, reads, 20, None, None)

    return read


def ours():
    return [thread for thread in threading.enumerate() if thread.name == "minikv memory timeline"]


def test_samples_and_marks_stand_in_order_of_time():
    clock = Clock()
    with MemoryTimeline("cpu", hz=4, read=reader(), clock=clock) as timeline:
        clock.settle()
        clock.tick(0.25)
        clock.time += 0.1
        mark = timeline.mark("load")
        clock.tick(0.15)
        assert len(ours()) == 1
    assert ours() == []
    samples = timeline.samples
    assert [sample.name for sample in samples] == ["start", None, "load", None, "stop"]
    assert [round(sample.seconds, 9) for sample in samples] == [0, 0.25, 0.35, 0.5, 0.5]
    assert [sample.stats.allocated for sample in samples] == [1, 2, 3, 4, 5]
    assert mark == samples[2]
    assert set(clock.waits) == {0.25}


def test_the_thread_ends_when_the_block_raises():
    clock = Clock()
    timeline = MemoryTimeline(read=reader(), clock=clock)

    def block():
        with timeline:
            clock.settle()
            raise KeyError("mine")

    with pytest.raises(KeyError):
        block()
    assert ours() == []
    assert [sample.name for sample in timeline.samples] == ["start"]


def test_a_reader_that_fails_in_the_thread_is_told_at_the_end():
    clock = Clock()
    timeline = MemoryTimeline(read=reader(fails_at=2), clock=clock)

    def block():
        with timeline:
            clock.settle()
            clock.go.release()
            timeline._thread.join(30)

    with pytest.raises(RuntimeError, match="driver gone"):
        block()
    assert isinstance(timeline.error, RuntimeError)
    assert ours() == []


def test_a_reader_that_fails_at_the_start_starts_no_thread():
    with pytest.raises(RuntimeError, match="driver gone"), MemoryTimeline(read=reader(fails_at=1)):
        pytest.fail("the block must not run")
    assert ours() == []


def test_a_reader_that_fails_at_the_last_sample_still_ends_the_thread():
    clock = Clock()
    with (
        pytest.raises(RuntimeError, match="driver gone"),
        MemoryTimeline(read=reader(fails_at=2), clock=clock),
    ):
        clock.settle()
    assert ours() == []


def test_the_real_clock_and_reader():
    with MemoryTimeline("cpu") as timeline:
        timeline.mark("here")
    names = [sample.name for sample in timeline.samples if sample.name]
    assert names == ["start", "here", "stop"]
    assert all(sample.stats.total == timeline.samples[0].stats.total for sample in timeline.samples)
    assert ours() == []


@pytest.mark.parametrize("hz", [0, -1, 5.1, True, "5", None, float("nan")])
def test_a_rate_outside_is_refused(hz):
    with pytest.raises(ArgumentError) as caught:
        MemoryTimeline(hz=hz)
    assert caught.value.code == "out_of_range"


def test_marks_need_a_name_and_a_block_that_runs():
    timeline = MemoryTimeline(read=reader())
    with pytest.raises(ArgumentError) as caught:
        timeline.mark("early")
    assert caught.value.code == "timeline_not_running"
    with timeline:
        for name in ("", None, 3):
            with pytest.raises(ArgumentError) as caught:
                timeline.mark(name)
            assert caught.value.code == "timeline_name"
    with pytest.raises(ArgumentError) as caught:
        timeline.mark("late")
    assert caught.value.code == "timeline_not_running"
    with pytest.raises(ArgumentError) as caught, timeline:
        pytest.fail("a timeline runs once")
    assert caught.value.code == "timeline_used"
