"""Interrupts: Ctrl+C waits while the host's books are open, and gets through while something long is computed.

Python raises ``KeyboardInterrupt`` between any two operations: after a block has left the free list, say, and before it
is in a table. No ``except`` can put that right, so inside ``with interrupts:`` the signal is noted, and is delivered at
the end, when everything adds up again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """For one thread at a time; only the main thread is ever interrupted, in the others nothing happens here.

    ``with interrupts:`` holds SIGINT back, nested ones until the last has ended; ``with interrupts.let_in():`` inside
    it does not. A second Ctrl+C gets through while one is held back: nothing here can hang for good.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._noted = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # whose turn it is later

    def __enter__(self) -> None:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # else it is ignored, or ends the process
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            handler, self._handler = self._handler, None
            self._deliver(handler)

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """What was noted is raised at once, and so is what comes before the end."""
        try:
            if self._handler is not None:
                self._deliver(self._handler)
            yield
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGINT, self._note)

    def _deliver(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        noted, self._noted = self._noted, False
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted and self._handler is not None:
            self._handler(number, frame)
        self._noted = True
