"""Calls a learner's function so that the notebook survives any behaviour of it and the answer can be read.

The function may raise, loop for ever, swallow every exception, call ``sys.exit`` or print a million lines.
The time limit is a ``BaseException``, which ``except Exception`` does not catch. It is raised again and again until the
function ends, which defeats a bare ``except:`` too. Ctrl-C by the learner passes through.

The result is the learner's code too: its ``__eq__``, ``__repr__`` and the ``__str__`` of its exceptions may do the
same. So an answer is compared and shown under ``call`` as well.

A function can still end or fill the process itself: ``os._exit``, a fork bomb, all of the memory, a thread or a
finalizer that stays behind, or a sleep that ignores the timer's signal. It is the learner's own machine.

Garbage collection is off meanwhile: it would take the learner's time, and the limit could cut a finalizer of other code
short.
"""

import contextlib
import ctypes
import gc
import io
import linecache
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import cast

from minikv.errors import MiniKVError

MAX_PRINTED_LINES = 10
_MAX_PRINTED_CHARS = 2000
_AGAIN_S = 1e-4  # after the limit, interrupt every 0.1 ms: sooner or later outside of the learner's `try`
_SLACK_S = 0.1  # later by this a second timer, of the process's CPU time, replaces a stopped first one
_GRACE_S = 2.0  # a thread that cannot be interrupted is left behind after this long

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))


class TimeLimit(BaseException):
    """Raised inside the learner's function when its time is over."""


def passes(error: BaseException) -> bool:
    """Whether our own code below ``call`` must let ``error`` through: the very time limit or Ctrl-C."""
    return type(error) in (TimeLimit, KeyboardInterrupt)


@dataclass(frozen=True)
class Returned:
    value: object


@dataclass(frozen=True)
class Raised:
    """``line`` is the learner's own line, 1-based; 0 and "" where no frame is theirs. ``ours``: an error of minikv."""

    kind: type[BaseException]
    message: str
    line: int
    source: str
    ours: MiniKVError | None = None

    def text(self, lang: str) -> str:
        """The message; an error of minikv's own speaks ``lang``."""
        return self.ours.text(lang) if self.ours else self.message


@dataclass(frozen=True)
class TimedOut:
    pass


Outcome = Returned | Raised | TimedOut


def call(fn: Callable[[], object], limit_s: float) -> tuple[Outcome, str]:
    """``fn()`` within ``limit_s`` seconds: its outcome, and the first lines of its output.

    Raises ``KeyboardInterrupt`` only. In the main thread of a POSIX system a timer signal ends the function;
    elsewhere it runs in a thread of its own.
    """
    printed = FirstLines()
    in_main_thread = threading.current_thread() is threading.main_thread()
    run = _with_timer if in_main_thread and hasattr(signal, "setitimer") else _in_thread
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _no_collection():
        outcome = run(fn, limit_s)
    return outcome, printed.text()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off inside: with torch loaded it may take longer than the limit of an exercise."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def outcome(fn: Callable[[], object]) -> Outcome:
    """``fn()`` without a limit of time: its result, or any exception except Ctrl-C."""
    try:
        return Returned(_learners_code(fn))
    except TimeLimit:
        return TimedOut()
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        line, source = own_line(sys.exc_info()[2])  # an exception may hide its own __traceback__
        ours = cast(MiniKVError, error) if issubclass(type(error), MiniKVError) else None
        return Raised(type(error), _message(error), line, source, ours)


def _learners_code(fn: Callable[[], object]) -> object:
    return fn()


def _with_timer(fn: Callable[[], object], limit_s: float) -> Outcome:
    end = time.monotonic() + limit_s

    def on_timer(signum: int, frame: FrameType | None) -> None:
        # Only below `_learners_code`: our own clean-up must not be interrupted.
        while frame is not None and time.monotonic() >= end:
            if frame.f_code is _learners_code.__code__:
                if signum == signal.SIGVTALRM:  # the first was ignored or stopped
                    signal.signal(signal.SIGALRM, on_timer)
                    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
                raise TimeLimit
            frame = frame.f_back

    with (
        _timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, limit_s + _SLACK_S, on_timer),
        _timer(signal.ITIMER_REAL, signal.SIGALRM, limit_s, on_timer),
    ):
        return outcome(fn)


@contextlib.contextmanager
def _timer(which: int, signum: int, limit_s: float, on_timer: Callable) -> Iterator[None]:
    handler_before = signal.signal(signum, on_timer)
    timer_before = signal.setitimer(which, max(limit_s, _AGAIN_S), _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(which, 0)
        signal.signal(signum, handler_before)
        signal.setitimer(which, *timer_before)


def _in_thread(fn: Callable[[], object], limit_s: float) -> Outcome:
    outcomes: list[Outcome] = []

    def run() -> None:
        with contextlib.suppress(TimeLimit, KeyboardInterrupt):  # late: the outcome is known
            outcomes.append(outcome(fn))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        _wait(thread, limit_s)
    except KeyboardInterrupt:
        _interrupt(thread)
        raise
    if not thread.is_alive():
        # Empty only when Ctrl-C was raised inside the thread: hand it on.
        if not outcomes:
            raise KeyboardInterrupt
        return outcomes[0]
    _interrupt(thread)
    return TimedOut()


def _wait(thread: threading.Thread, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while thread.is_alive() and (left := end - time.monotonic()) > 0:
        thread.join(min(left, 0.1))  # short waits: on Windows a long one cannot be interrupted


def _interrupt(thread: threading.Thread) -> None:
    end = time.monotonic() + _GRACE_S
    while thread.is_alive() and time.monotonic() < end:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeLimit)
        )
        thread.join(0.002)


def _message(error: BaseException) -> str:
    """The message of ``error``; "" where ``str(error)`` raises or takes too long."""
    try:
        return str.__str__(_learners_code(lambda: str(error)))  # Python's own str, not a learner's subclass
    except BaseException as another:
        if type(another) is KeyboardInterrupt:
            raise
        return ""


def own_line(trace: TracebackType | None) -> tuple[int, str]:
    """The innermost line that is neither minikv's nor a library's: (number, text), or (0, "")."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, *_LIBRARIES, "<frozen")):
            return line, linecache.getline(file, line, frame.f_globals).strip()
    return 0, ""


class FirstLines(io.TextIOBase):
    """Keeps the first lines of what is written to it and forgets the rest."""

    def __init__(self) -> None:
        self._kept = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        text = "".join((text,))  # Python's own str, not a learner's subclass
        if len(self._kept) < _MAX_PRINTED_CHARS:
            self._kept += text[:_MAX_PRINTED_CHARS]
        return len(text)

    def text(self) -> str:
        lines = self._kept[:_MAX_PRINTED_CHARS].splitlines()
        return "\n".join([*lines[:MAX_PRINTED_LINES], *(["…"] if len(lines) > MAX_PRINTED_LINES else [])])
