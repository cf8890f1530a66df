"""The guard alone: time, prints, and whose line it was."""

import signal
import sys
import threading
import time

import pytest

from minikv.course import guard


@pytest.fixture(params=["timer", "thread"])
def call(request):
    """``guard.call`` in the main thread, and in a thread where no signal can be used."""
    if request.param == "timer":
        return guard.call

    def in_a_thread(fn, limit_s):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(guard.call(fn, limit_s)))
        thread.start()
        thread.join()
        return answers[0]

    return in_a_thread


def test_a_value_comes_back(call):
    assert call(lambda: 42, 5.0) == (guard.Returned(42), "")


def test_a_sleep_is_cut_short(call):
    def sleeps():
        for _ in range(10_000):
            time.sleep(0.01)

    assert call(sleeps, 0.05)[0] == guard.TimedOut()


def test_no_time_left_means_timed_out(call):
    def spins():
        while True:
            pass

    assert call(spins, -1.0)[0] == guard.TimedOut()


def test_a_thread_that_swallows_everything_is_left_behind(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    stop = threading.Event()

    def swallows():
        while not stop.is_set():
            try:
                time.sleep(0.001)
            except:  # noqa: E722
                continue

    try:
        assert guard.call(swallows, 0.05)[0] == guard.TimedOut()
    finally:
        stop.set()


def test_a_generous_limit_does_not_disturb_the_function_after_it(call):
    call(lambda: None, 0.05)
    end = time.monotonic() + 0.2
    while time.monotonic() < end:  # a timer left behind would raise here
        pass


def test_standard_output_and_error_are_captured_and_put_back(call):
    before = sys.stdout, sys.stderr

    def prints():
        print("one")
        print("two", file=sys.stderr)

    assert call(prints, 5.0)[1] == "one\ntwo"
    assert (sys.stdout, sys.stderr) == before


def test_a_huge_line_does_not_fill_the_memory_or_the_page(call):
    def prints():
        for _ in range(100):
            print("x" * 1_000_000, end="")

    assert len(call(prints, 30.0)[1]) <= 2000


def test_the_line_of_an_error_from_pure_library_code_is_the_callers():
    import json

    outcome, _ = guard.call(lambda: json.loads("["), 5.0)
    assert outcome.source == 'outcome, _ = guard.call(lambda: json.loads("["), 5.0)'


def test_an_error_without_a_line_of_the_learners():
    outcome, _ = guard.call(len, 5.0)  # len() without an argument: only our own frame
    assert (outcome.kind, outcome.line, outcome.source) == (TypeError, 0, "")
