"""Ticker: calls a function a few times a second in a thread of its own, until it is stopped or nobody listens."""

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

MAX_HZ = 5  # more is seen in what is measured, and no reader follows it
_END_S = 5.0  # the end of Python waits so long for a tick that is being computed


class Clock(Protocol):
    """A wait that ends early, with True, once ``stop`` is set."""

    def wait(self, stop: threading.Event, seconds: float) -> bool: ...


class _RealClock:
    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


class Ticker:
    """``tick()`` is called ``hz`` times a second at most, from ``start`` to ``stop``, or until it says False.

    Every method may be called from any thread, from inside of ``tick`` too. One thread at a time ticks.
    """

    def __init__(self, tick: Callable[[], bool], hz: float, clock: Clock | None = None):
        self._tick, self._seconds = tick, 1 / hz
        self._clock: Clock = clock or _RealClock()
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether more ticks will come."""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Tick from now on. While it does already this does nothing."""
        with self._turn:
            if self.running:
                return
            self._stop = threading.Event()
            done = threading.Event()
            arguments = (self._tick, self._clock, self._seconds, self._stop, done)
            # A daemon, as the engine widget's: a kernel that ends waits for a tick, not for ever.
            self._thread = threading.Thread(target=_run, args=arguments, name="minikv-monitor", daemon=True)
            weakref.finalize(self._thread, _let_it_end, self._stop, done)
            self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        """No tick begins after this. One that is being computed is waited for, ``wait_s`` seconds at most."""
        with self._turn:
            self._stop.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)


def _run(
    tick: Callable[[], bool], clock: Clock, seconds: float, stop: threading.Event, done: threading.Event
) -> None:
    """Knows no ticker: that one may be let go of while it ticks."""
    try:
        while not clock.wait(stop, seconds) and tick():
            pass
    finally:
        stop.set()
        done.set()


def _let_it_end(stop: threading.Event, done: threading.Event) -> None:
    """At the end of Python: the thread ends after its tick; once it has, this returns at once."""
    stop.set()
    done.wait(_END_S)
