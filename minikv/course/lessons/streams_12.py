"""Lesson 12: two streams of a GPU as two queues, for exercise 12.5. Nothing here is torch's, and nothing takes time.

Work is queued at once and done later: a stream does its own in order, and what two streams do interleaves as it
pleases, unless one waits for an event of the other. ``schedule`` says who goes first whenever both could.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """The place in a stream's queue behind which it stands: reached when so many entries are done."""

    stream: "Stream"
    place: int

    @property
    def reached(self) -> bool:
        return self.stream.done >= self.place


class Stream:
    """A queue of work, of which ``done`` entries are done; ``busy`` while it does one."""

    def __init__(self, name: str):
        self.name = name
        self.done = 0
        self.busy = False  # while a piece of its work is being done
        self._queue: list[Callable[[], None] | Event] = []

    def do(self, work: Callable[[], None]) -> None:
        """Queue ``work``; this returns at once, long before it is done."""
        if not callable(work):
            raise TypeError("do takes a function without arguments")
        self._queue.append(work)

    def record(self) -> Event:
        """An event behind all that has been queued here so far."""
        return Event(self, len(self._queue))

    def wait(self, event: Event) -> None:
        """Whatever is queued here from now on is done after ``event``."""
        if not isinstance(event, Event):
            raise TypeError("wait takes what record has returned")
        self._queue.append(event)

    @property
    def ready(self) -> bool:
        """Whether the next entry can be done now."""
        if self.done == len(self._queue):
            return False
        entry = self._queue[self.done]
        return not isinstance(entry, Event) or entry.reached

    def step(self) -> bool:
        """Do the next entry; True if it was work, and not an event to wait for."""
        entry = self._queue[self.done]
        self.done += 1
        if isinstance(entry, Event):
            return False
        self.busy = True
        entry()
        self.busy = False
        return True


def run_streams(streams: tuple[Stream, Stream], schedule: Iterable[int]) -> list[str]:
    """Do all that is queued; of each piece of work, in order, the name of the stream that did it.

    Where both streams could go on, ``schedule`` names the one that does (0 or 1).
    """
    picks, names = iter(schedule), []
    while ready := [stream for stream in streams if stream.ready]:
        stream = ready[0] if len(ready) == 1 else streams[next(picks, 0)]
        if stream.step():
            names.append(stream.name)
    return names
