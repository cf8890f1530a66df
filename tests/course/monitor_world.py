"""What the tests of the monitors share: ticks by hand, a thing to watch, and the monitors' threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from minikv.course.widgets.monitor import Monitor

SECONDS = 60  # for what takes none


class Parked:
    """A clock whose ticks are let go by hand: ``tick()`` gives the thread one turn and waits for its end."""

    def __init__(self):
        self.waits = []
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, stop, seconds):
        self.waits.append(seconds)
        self._back.release()
        while not (stop.is_set() or self._go.acquire(timeout=0.001)):
            pass
        return stop.is_set()

    def settle(self):
        """Until the thread waits."""
        assert self._back.acquire(timeout=SECONDS)

    def tick(self):
        self._go.release()
        self.settle()


class Counted:
    """Something to watch: each look is one more. ``fails``: the looks that raise. ``hold``: a look to hold back."""

    def __init__(self, fails=(), hold=None):
        self.looks, self.fails, self.hold = 0, fails, hold
        self.held, self.go = threading.Event(), threading.Event()
        self.closed = 0

    def look(self):
        self.looks += 1
        mine = self.looks
        if mine == self.hold:
            self.held.set()
            assert self.go.wait(SECONDS)
        if mine in self.fails:
            raise RuntimeError(f"look {mine} failed")
        return mine

    def form(self, lang):
        return {"title": f"counted {lang}"}

    def draw(self, seen, lang):
        return {"seen": seen, "status": f"{seen} {lang}"}

    def text(self, seen, lang):
        return f"seen {lang}"

    def close(self):
        self.closed += 1


class CountedMonitor(Monitor):
    """On ``Counted``; it draws nothing."""

    _esm = "function render() {} export default { render };"
    _css = ""


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "minikv-monitor"]


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Around a test: what it began comes to an end."""
    before = ours()
    yield
    new = [thread for thread in ours() if thread not in before]
    for thread in new:
        thread.join(5)
    assert not any(thread.is_alive() for thread in new)
