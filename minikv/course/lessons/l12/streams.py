"""Lesson 12: two GPU streams as two queues, for exercise 12.5. It does not use torch, and nothing takes time.

Work is queued at once and done later. A stream does its own work in order; the work of two streams interleaves in any
way, unless one waits for an event of the other. ``schedule`` names the stream that goes first whenever both could.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from minikv.course.exercise import Exercise, Misconception


@dataclass(frozen=True)
class Event:
    """A position in a stream's queue. It is reached when all entries before it are done."""

    stream: "Stream"
    place: int

    @property
    def reached(self) -> bool:
        return self.stream.done >= self.place


class Stream:
    """A queue of work, of which ``done`` entries are done; ``busy`` while it runs one."""

    def __init__(self, name: str):
        self.name = name
        self.done = 0
        self.busy = False  # while a piece of its work runs
        self._queue: list[Callable[[], None] | Event] = []

    def do(self, work: Callable[[], None]) -> None:
        """Queue ``work`` and return at once, before it is done."""
        if not callable(work):
            raise TypeError("do takes a function without arguments")
        self._queue.append(work)

    def record(self) -> Event:
        """Return an event behind everything queued here so far."""
        return Event(self, len(self._queue))

    def wait(self, event: Event) -> None:
        """Make everything that is queued here from now on wait for ``event``."""
        if not isinstance(event, Event):
            raise TypeError("wait takes what record has returned")
        self._queue.append(event)

    @property
    def ready(self) -> bool:
        """Return whether the next entry can be done now."""
        if self.done == len(self._queue):
            return False
        entry = self._queue[self.done]
        return not isinstance(entry, Event) or entry.reached

    def step(self) -> bool:
        """Do the next entry. True if it was work, False if it was an event to wait for."""
        entry = self._queue[self.done]
        self.done += 1
        if isinstance(entry, Event):
            return False
        self.busy = True
        entry()
        self.busy = False
        return True


def run_streams(streams: tuple[Stream, Stream], schedule: Iterable[int]) -> list[str]:
    """Do everything that is queued; return the stream's name for each piece of work, in order.

    Where both streams could go on, ``schedule`` names the one that does (0 or 1).
    """
    picks, names = iter(schedule), []
    while ready := [stream for stream in streams if stream.ready]:
        stream = ready[0] if len(ready) == 1 else streams[next(picks, 0)]
        if stream.step():
            names.append(stream.name)
    return names


Work = Callable[[], None]


def exchange(compute: Stream, copies: Stream, out: Work, forward: Work, back: Work) -> None:
    _exchange(compute, copies, out, forward, back)


def _exchange(
    compute,
    copies,
    out,
    forward,
    back,
    *,
    after_writing=True,
    before_overwriting=True,
    after_reading=True,
    before_using=True,
    all_in_one=False,
):
    """Exchange the blocks with four waits. Each keyword argument, changed, gives one wrong answer."""
    if all_in_one:
        copies = compute
    if after_writing:
        copies.wait(compute.record())
    copies.do(out)
    if before_overwriting:
        compute.wait(copies.record())
    compute.do(forward)
    if after_reading:
        copies.wait(compute.record())
    copies.do(back)
    if before_using:
        compute.wait(copies.record())


def exchange_without_events(compute, copies, out, forward, back):
    copies.do(out)
    compute.do(forward)
    copies.do(back)


def exchange_without_back(compute, copies, out, forward, back):
    copies.wait(compute.record())
    copies.do(out)
    compute.wait(copies.record())
    compute.do(forward)


def exchange_on_copies(compute, copies, out, forward, back):
    """Keeps the order with only two events, because nothing overlaps."""
    copies.wait(compute.record())
    copies.do(out)
    copies.do(forward)
    copies.do(back)
    compute.wait(copies.record())


def run_exchange(fn: Callable, blocks: list[int], schedule: list[int]) -> dict[str, object]:
    """Return what reached the host, what the others and the victim read at last, and which stream did what.

    The victim has just computed its blocks; the others write theirs into the same ones.
    """
    compute, copies = Stream("compute"), Stream("copies")
    device: dict[int, str] = dict.fromkeys(blocks, "nothing")
    host: dict[int, str] = dict.fromkeys(blocks, "nothing")
    read: dict[str, list[str]] = {}
    by: dict[str, str | None] = dict.fromkeys(("out", "forward", "back"))

    def record(work: str) -> None:
        by[work] = next((stream.name for stream in (compute, copies) if stream.busy), None)

    def write(owner: str) -> None:
        device.update({block: f"{owner} {block}" for block in blocks})

    def out() -> None:
        record("out")
        host.update(device)

    def forward() -> None:
        record("forward")
        write("others")
        read["others"] = [device[block] for block in blocks]

    def back() -> None:
        record("back")
        device.update(host)

    def victim_reads() -> None:
        read["victim"] = [device[block] for block in blocks]

    compute.do(lambda: write("victim"))
    fn(compute, copies, out, forward, back)
    compute.do(victim_reads)
    run_streams((compute, copies), schedule)
    return {"on the host": [host[block] for block in blocks], "read": read, "done by": by}


def draw_schedules(rng) -> list[dict]:
    """Draw schedules with computing always first, copies always first, and every mixture."""
    cases = []
    for i in range(40):
        blocks = rng.sample(range(90), 2 + i // 10)
        schedule = [[0] * 12, [1] * 12, [rng.randint(0, 1) for _ in range(12)]][i % 3]
        cases.append({"blocks": blocks, "schedule": schedule})
    return cases


EXCHANGE = Exercise(
    id="12.5",
    minutes=6,
    name="exchange",
    signature=("blocks", "schedule"),
    cases=draw_schedules,
    reference=exchange,
    drive=run_exchange,
    misconceptions=(
        Misconception("no_events", exchange_without_events),
        Misconception("read_too_early", partial(_exchange, after_writing=False)),
        Misconception("overwritten", partial(_exchange, before_overwriting=False)),
        Misconception("back_too_early", partial(_exchange, after_reading=False)),
        Misconception("used_too_early", partial(_exchange, before_using=False)),
        Misconception("not_back", exchange_without_back),
        Misconception("one_stream", partial(_exchange, all_in_one=True)),
        Misconception("all_on_copies", exchange_on_copies),
    ),
)
