"""FairLock: a lock that threads get in the order of their requests."""

import threading
from collections import deque


class FairLock:
    """``with lock:`` waits until every thread that asked before has had the lock; its owner may take it again.

    A thread that computes step after step releases ``threading.RLock`` and takes it again before a waiting thread wakes
    up. An abort from another thread would then come after the last step.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._owner is None and self._queue[0] is ticket)
                self._owner, self._depth = me, 1
            finally:
                self._queue.remove(ticket)
                if self._owner != me:  # interrupted during the wait: the next thread may be first now
                    self._changed.notify_all()

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            with self._changed:
                self._owner = None
                self._changed.notify_all()
