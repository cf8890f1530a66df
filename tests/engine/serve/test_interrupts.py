"""Ctrl+C at any line: books that are open are closed first. Real signals, sent while the line is about to run."""

import signal
import sys
import threading
from contextlib import contextmanager

import pytest

from minikv.engine import FinishReason
from minikv.engine.serve.interrupts import Interrupts
from tests.engine.llm_world import check_empty, greedy, make, reference
from tests.engine.overlap import Late, Prompt, overlapping
from tests.longer import usual_if

BOOKS = (
    "minikv/blocks/",
    *(f"engine/core/{name}.py" for name in ("scheduler", "rules", "step", "loop")),
    *(f"engine/ext/{name}.py" for name in ("drafts", "events", "offload", "overlap")),
    "engine/serve/llm_engine.py",
)


@pytest.fixture(autouse=True)
def heard():
    """Python's own handler: a process that was started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def sigint_at(line):
    """SIGINT when the ``line``-th line of the books is about to run, the forward not counted; gives the count."""
    count = [0]

    def trace(frame, event, _):
        if not any(part in frame.f_code.co_filename.replace("\\", "/") for part in BOOKS):
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


def load(llm, model):
    """Three prompts, of which two begin alike, on few seats: admission, prefixes and decodes."""
    names = [llm.add_request(prompt, greedy(5)) for prompt in model.prompts[4:7]]
    outputs, interrupted = {}, 0
    for _ in range(100):
        if not llm.has_work:
            break
        try:
            outputs |= {out.request: out for out in llm.step().finished}
        except KeyboardInterrupt:
            interrupted += 1
            llm.manager.check_invariants()
    outputs |= {out.request: out for out in llm.step().finished}  # what an interrupted call had kept
    return names, outputs, interrupted


@pytest.mark.parametrize("device", usual_if(lambda device: device is not Prompt, [None, Prompt, Late]))
def test_at_any_line_of_a_run_no_block_is_lost_and_every_answer_is_right(device):
    model = reference("llama")

    def attempt(line):
        with make(model.model, max_num_seqs=2, num_blocks=24) as llm, sigint_at(line) as count:
            names, outputs, interrupted = load(llm, model)
            sys.settrace(None)
            check_empty(llm)
            assert set(outputs) == set(names)
            for out in outputs.values():
                model.check(out, greedy(5))
            reasons = [each.finish_reason for out in outputs.values() for each in out.completions]
            return count[0], interrupted, reasons

    def all_attempts():
        lines, interrupted, reasons = attempt(0)
        assert interrupted == 0
        assert set(reasons) == {FinishReason.LENGTH}
        heard = unharmed = 0
        for line in range(7, lines, max(1, lines // 20)):
            try:
                _, interrupted, reasons = attempt(line)
            except KeyboardInterrupt:  # outside of ``step``
                continue
            heard += interrupted
            unharmed += interrupted and FinishReason.ERROR not in reasons
        assert heard > 12
        assert unharmed > 3  # the others were launching or reading a step, or about to

    if device is None:
        all_attempts()
    else:
        with overlapping(device()):
            all_attempts()


def test_it_waits_until_the_last_has_ended_and_comes_once():
    interrupts, done = Interrupts(), []
    before = signal.getsignal(signal.SIGINT)

    def nested():
        with interrupts:
            with interrupts:
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is before
    with interrupts:
        done.append("again")
    assert done[-1] == "again"


def test_what_is_let_in_comes_at_once_and_what_follows_waits_again():
    interrupts, done = Interrupts(), []

    def long():
        with interrupts.let_in():
            signal.raise_signal(signal.SIGINT)
            done.append("never")

    def book():
        with interrupts:
            with pytest.raises(KeyboardInterrupt):
                long()
            signal.raise_signal(signal.SIGINT)
            done.append("held")

    with pytest.raises(KeyboardInterrupt):
        book()
    assert done == ["held"]


def test_one_that_waits_already_is_raised_where_it_is_let_in():
    interrupts, done = Interrupts(), []
    with interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.let_in():
            done.append("never")
    assert done == []


def test_who_insists_gets_through():
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)

    def insist():
        with interrupts:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("held back for good")

    with pytest.raises(KeyboardInterrupt):
        insist()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_another_handler_is_left_as_it_was(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_inside_goes_through_and_the_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interrupts() as _:
        1 / 0  # noqa: B018
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_nothing_happens():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
