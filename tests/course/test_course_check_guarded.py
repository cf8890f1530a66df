"""check: a function that raises, loops for ever, prints much or changes its input gets an answer, not a crash."""

import gc
import signal
import sys
import threading
import time

import pytest

from minikv.course import run_check
from minikv.course.compare import size
from tests.course.sample import BLOCKS, said
from tests.course.sample import blocks_needed as right

pytestmark = pytest.mark.usefixtures("lesson_99")


def test_an_error_names_the_learners_own_line_and_no_line_of_ours(capsys):
    def helper(lengths):
        return lengths[99]  # the line

    out = said(capsys, lambda lengths, block_size: helper(lengths))
    assert "IndexError: list index out of range" in out
    assert "return lengths[99]  # the line" in out
    assert "minikv" not in out


def test_an_error_inside_a_library_names_the_learners_line():
    import json

    def parses(lengths, block_size):
        return json.loads("{")

    assert run_check(BLOCKS, parses).error.source == 'return json.loads("{")'


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, RecursionError, BaseException])
def test_whatever_is_raised_becomes_a_verdict(error):
    def raises(lengths, block_size):
        raise error("out")

    verdict = run_check(BLOCKS, raises)
    assert (verdict.kind, verdict.error.kind, verdict.error.message) == ("raised", error, "out")


def test_sys_exit_and_endless_recursion(capsys):
    assert "SystemExit: 3" in said(capsys, lambda lengths, block_size: sys.exit(3))

    def deep(lengths, block_size):
        return deep(lengths, block_size)

    assert "RecursionError" in said(capsys, deep)


class Finalized:
    """Garbage that only a collection can find."""

    ended = 0

    def __init__(self):
        self.cycle = self

    def __del__(self):
        Finalized.ended += 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_of_others_is_not_collected_in_the_learners_time(enabled):
    def collects(lengths, block_size):
        for _ in range(20):
            Finalized()
        before = Finalized.ended
        many = [[] for _ in range(20_000)]  # far more containers than the threshold of a collection
        seen.append(Finalized.ended - before)
        return len(many)

    seen = []
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert run_check(BLOCKS, collects).kind == "wrong"
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen
    assert set(seen) == {0}


def test_ctrl_c_passes_through():
    def interrupted(lengths, block_size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_check(BLOCKS, interrupted)


def spins(lengths, block_size):
    while True:
        pass


def swallows_exceptions(lengths, block_size):
    while True:
        try:  # noqa: SIM105
            len(lengths)
        except Exception:
            pass


def swallows_everything(lengths, block_size):
    while True:
        try:  # noqa: SIM105
            time.sleep(0.001)
        except:  # noqa: E722
            pass


@pytest.mark.parametrize("fn", [spins, swallows_exceptions, swallows_everything])
def test_an_endless_loop_is_stopped_and_the_alarm_is_put_back(fn, capsys):
    before = signal.getsignal(signal.SIGALRM)
    out = said(capsys, fn)
    assert "no answer within 0.5 s" in out
    assert "0.5 秒内没有得到结果" in said(capsys, fn, lang="zh")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("fn", [spins, swallows_exceptions])
def test_an_endless_loop_is_stopped_outside_of_the_main_thread_too(fn):
    verdicts = []
    before = set(threading.enumerate())
    thread = threading.Thread(target=lambda: verdicts.append(run_check(BLOCKS, fn)))
    thread.start()
    thread.join(30)
    assert [verdict.kind for verdict in verdicts] == ["timed_out"]
    assert set(threading.enumerate()) <= before, "the learner's thread is still running"


def test_without_a_timer_signal_everything_else_works_alike(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")  # as on Windows
    assert run_check(BLOCKS, right).passed
    assert run_check(BLOCKS, spins).kind == "timed_out"
    assert run_check(BLOCKS, lambda lengths, block_size: sys.exit()).kind == "raised"
    with pytest.raises(KeyboardInterrupt):
        run_check(BLOCKS, interrupts)


def interrupts(lengths, block_size):
    raise KeyboardInterrupt


def test_a_changed_argument_is_named_even_if_the_answer_is_right(capsys):
    def sorts(lengths, block_size):
        lengths.sort(reverse=True)
        lengths.append(0)
        return right(lengths, block_size)

    verdict = run_check(BLOCKS, sorts)
    assert (verdict.kind, verdict.argument) == ("mutated", "lengths")
    assert verdict.case == min(BLOCKS.draw(0), key=size)
    assert "`lengths`" in said(capsys, sorts)
    assert "修改了参数 `lengths`" in said(capsys, sorts, lang="zh")


def test_much_printing_is_cut_and_shown_only_with_a_failure(capsys):
    def chatty(lengths, block_size):
        for number in range(2000):
            print("line", number)
        return -1

    out = said(capsys, chatty)
    assert "| line 0" in out
    assert len(out.splitlines()) < 25

    def chatty_but_right(lengths, block_size):
        print("debugging", file=sys.stderr)
        return right(lengths, block_size)

    assert "debugging" not in said(capsys, chatty_but_right)
