"""Ticker: calls a function a few times a second in its own thread, until it is stopped or returns False."""

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

MAX_HZ = 5  # more would show in the measured figures, and no reader could follow it
_END_S = 5.0  # the end of Python waits so long for a running tick


class Clock(Protocol):
    """A wait that ends early, with True, once ``stop`` is set."""

    def wait(self, stop: threading.Event, seconds: float) -> bool: ...


class _RealClock:
    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


class Ticker:
    """Calls ``tick()`` at most ``hz`` times a second, from ``start`` to ``stop``, or until it returns False.

    Every method may be called from any thread, also from inside ``tick``. One thread at a time ticks.
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
        """Tick from now on. Does nothing while it ticks already."""
        with self._turn:
            if self.running:
                return
            self._stop = threading.Event()
            done = threading.Event()
            arguments = (self._tick, self._clock, self._seconds, self._stop, done)
            # A daemon, like the engine widget's: a kernel that ends waits for a tick, but not for ever.
            self._thread = threading.Thread(target=_run, args=arguments, name="minikv-monitor", daemon=True)
            weakref.finalize(self._thread, _let_it_end, self._stop, done)
            self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        """Let no further tick begin. Wait for a running one, ``wait_s`` seconds at most."""
        with self._turn:
            self._stop.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)


def _run(
    tick: Callable[[], bool], clock: Clock, seconds: float, stop: threading.Event, done: threading.Event
) -> None:
    """Run the ticks without a reference to the ticker, which may be freed while it ticks."""
    try:
        while not clock.wait(stop, seconds) and tick():
            pass
    finally:
        stop.set()
        done.set()


def _let_it_end(stop: threading.Event, done: threading.Event) -> None:
    """At the end of Python, let the thread end after its tick; if it has ended already, return at once."""
    stop.set()
    done.wait(_END_S)
