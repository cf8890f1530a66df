"""Interrupts: holds Ctrl+C back while the host's state is inconsistent, and lets it in during long computations.

Python raises ``KeyboardInterrupt`` between any two operations: for instance after a block has left the free list and
before it is in a table. No ``except`` can repair that. Inside ``with interrupts:`` the signal is recorded, and it is
delivered at the end, when the state is consistent again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """For one thread at a time. Only the main thread is ever interrupted; in other threads this does nothing.

    ``with interrupts:`` holds SIGINT back, nested ones until the outermost has ended; ``with interrupts.let_in():``
    inside it does not. A second Ctrl+C is delivered while one is held back, so that nothing can hang for good.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # the handler for later

    def __enter__(self) -> None:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # else the signal is ignored, or ends the process
                self._handler = handler
                signal.signal(signal.SIGINT, self._record)
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            handler, self._handler = self._handler, None
            self._deliver(handler)

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Raise a recorded signal at once, and let others in until the end."""
        try:
            if self._handler is not None:
                self._deliver(self._handler)
            yield
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGINT, self._record)

    def _deliver(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        pending, self._pending = self._pending, False
        signal.signal(signal.SIGINT, handler)
        if pending:
            handler(signal.SIGINT, None)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._pending and self._handler is not None:
            self._handler(number, frame)
        self._pending = True
