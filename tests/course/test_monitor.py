"""What every monitor does: it looks at most so often, stops, ends where nothing is to be seen, and keeps nothing."""

import gc
import random
import subprocess
import sys
import threading
import tracemalloc
import weakref

import pytest

from minikv.course.widgets.history import MOST, History
from minikv.course.widgets.monitor import Monitor
from minikv.course.widgets.ticker import MAX_HZ, Ticker
from minikv.errors import ArgumentError
from tests.course.monitor_world import SECONDS, Counted, CountedMonitor, Parked, no_thread_is_left, ours


@pytest.fixture(autouse=True)
def _ends():
    with no_thread_is_left():
        yield


def made(watched=None, lang="en", hz=5) -> tuple[CountedMonitor, Counted, Parked]:
    watched, clock = watched or Counted(), Parked()
    monitor = CountedMonitor(watched, lang, hz, clock)
    clock.settle()
    return monitor, watched, clock


def press(monitor: Monitor, action: str) -> None:
    monitor._handle_custom_msg({"action": action}, [])


def test_it_looks_from_the_start_until_it_is_stopped():
    monitor, watched, clock = made(hz=4)
    assert (monitor.running, monitor.view["seen"], monitor.view["running"]) == (True, 1, True)
    for turn in range(2, 6):
        clock.tick()
        assert monitor.view["seen"] == watched.looks == turn
    assert set(clock.waits) == {0.25}
    monitor.stop()
    assert (monitor.running, monitor.view["seen"], monitor.view["running"]) == (False, 6, False)
    assert ours() == []
    monitor.stop()
    monitor.start()
    clock.settle()
    assert (monitor.running, monitor.view["running"]) == (True, True)
    monitor.start()
    assert len(ours()) == 1
    monitor.close()
    assert watched.closed == 1


def test_the_buttons_start_and_stop():
    monitor, watched, clock = made()
    press(monitor, "stop")
    assert not monitor.running
    assert not monitor.view["running"]
    press(monitor, "start")
    clock.settle()
    assert monitor.view["running"]
    press(monitor, "explode")
    assert monitor.running
    press(monitor, "stop")
    seen = watched.looks
    press(monitor, "stop")
    assert watched.looks == seen + 1, "Stop shows how it is now"


def test_a_with_block_stops_it_also_when_it_raises():
    monitor, _, _ = made()
    with monitor as inside:
        assert inside is monitor
        assert monitor.running
    assert not monitor.running
    monitor.start()
    with pytest.raises(ZeroDivisionError), monitor:
        raise ZeroDivisionError
    assert not monitor.running


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_cannot_be_seen_any_more_ends_it_and_the_last_picture_stays(by_hand, lang):
    monitor, watched, clock = made(Counted(fails=(3,)), lang)
    clock.tick()
    (thread,) = ours()
    if by_hand:
        assert not monitor.tick()
    else:
        clock._go.release()
    thread.join(SECONDS)
    assert not monitor.running
    assert monitor.view["seen"] == 2
    assert monitor.view["error"]
    assert "look 3 failed" in monitor.view["status"]
    assert isinstance(monitor.error, RuntimeError)
    assert "look 3 failed" in monitor.text()
    assert watched.looks == 3, "text of what has ended looks no more"
    monitor.start()
    assert (monitor.error, monitor.view["error"], monitor.view["seen"]) == (None, False, 4)
    monitor.close()


def test_a_look_that_took_too_long_is_not_shown_after_a_later_one():
    monitor, watched, clock = made(Counted(hold=2))
    clock._go.release()
    assert watched.held.wait(SECONDS)
    (thread,) = ours()
    monitor.stop()  # it does not wait for ever
    assert monitor.view["seen"] == 3
    watched.go.set()
    thread.join(SECONDS)
    assert (monitor.view["seen"], monitor.view["running"]) == (3, False)


def test_text_is_of_now_while_it_runs_and_of_the_end_after_it():
    monitor, watched, _ = made()
    before = watched.looks
    assert monitor.text() == "seen en"
    assert monitor.text("zh") == "seen zh"
    assert watched.looks == before + 2
    monitor.stop()
    before = watched.looks
    assert monitor.text() == "seen en"
    assert watched.looks == before
    assert repr(monitor) == "CountedMonitor(running=False)"
    with pytest.raises(ArgumentError):
        monitor.text("fr")


def test_the_picture_is_in_its_language_and_still():
    monitor, _, _ = made(lang="zh")
    page = monitor.photo_html()
    assert '"running": false' in page
    assert "counted zh" in page
    monitor.stop()


@pytest.mark.parametrize("hz", [0, -1, MAX_HZ + 0.1, True, "5", None, float("nan"), float("inf")])
def test_more_than_five_a_second_is_refused(hz):
    with pytest.raises(ArgumentError):
        CountedMonitor(Counted(), "en", hz)


def test_what_cannot_be_made_leaves_no_thread():
    with pytest.raises(RuntimeError):
        CountedMonitor(Counted(fails=(1,)), "en", 5)
    with pytest.raises(ArgumentError):
        CountedMonitor(Counted(), "fr", 5)


def test_nothing_grows_in_a_thousand_updates():
    monitor, watched, clock = made()
    for _ in range(50):
        clock.tick()
    clock.waits = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            clock.tick()
            clock.waits.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert watched.looks >= 1050
    assert len(ours()) == 1
    assert grown < 20_000, f"{grown} B more"
    monitor.stop()


def test_the_thread_keeps_no_monitor_and_ends_without_one():
    monitor, watched, _ = made()
    (thread,) = ours()
    gone, seen = weakref.ref(monitor), weakref.ref(watched)
    monitor.close()
    del monitor, watched
    gc.collect()
    assert gone() is None
    assert seen() is None
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_monitor_that_is_dropped_unclosed_ends_its_thread():
    clock, ticks = Parked(), []

    class Holder:
        def tick(self):
            ticks.append(1)
            return True

    holder = Holder()
    mine = weakref.WeakMethod(holder.tick)

    def tick():
        alive = mine()
        return alive is not None and alive()

    ticker = Ticker(tick, 5, clock)
    ticker.start()
    clock.settle()
    clock.tick()
    (thread,) = ours()
    del holder
    clock._go.release()
    thread.join(SECONDS)
    assert len(ticks) == 1
    assert not ticker.running


def test_a_tick_may_stop_its_own_ticker():
    clock = Parked()

    def tick():
        ticker.stop()
        return True

    ticker = Ticker(tick, 5, clock)
    ticker.start()
    clock.settle()
    (thread,) = ours()
    clock._go.release()
    thread.join(SECONDS)
    assert not ticker.running


def test_one_thread_whoever_starts():
    clock = Parked()
    ticker = Ticker(lambda: True, 5, clock)
    threads = [threading.Thread(target=ticker.start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ours()) == 1
    ticker.stop()


END = """
from tests.course.monitor_world import Counted, CountedMonitor
monitor = CountedMonitor(Counted(), "en", 5)
assert monitor.running
print("done")
"""


def test_python_ends_while_one_runs():
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_history_is_whole_and_bounded():
    for number in range(12):
        rng = random.Random(number)
        most = rng.choice([2, 3, 8, MOST])
        history, added = History(most), []
        for turn in range(rng.choice([1, most, most + 1, 5 * most, 1000])):
            values = {"a": rng.randint(0, 100), "b": rng.randint(0, 100)}
            added.append((float(turn), values))
            history.add(100 + turn, values)
            points = history.points
            assert len(points) <= most + 2
            assert points[-1].seconds == turn
            assert points[-1].values == values
            seconds = [point.seconds for point in points]
            assert seconds == sorted(set(seconds))
            assert max(point.total for point in points) == max(sum(one.values()) for _, one in added)
            assert history.peak.total == max(sum(one.values()) for _, one in added)
        kept = {(point.seconds, tuple(point.values.items())) for point in points}
        assert kept <= {(second, tuple(values.items())) for second, values in added}
