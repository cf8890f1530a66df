"""The run of ``minikv watch``: the lines of its events file, read as they come, and their figures."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

from minikv.engine.ext.events import AnyEvent, Happened, StepEvent, from_json
from minikv.errors import ArgumentError, ConfigError
from minikv.i18n import text

RECENT = 2.0  # seconds of the run that "now" means
QUIET = 2.0  # seconds without a new line, after all sequences have ended, until a run is over
PATIENCE = 10.0  # seconds to wait for a run before other files of events are named
MOST_LOOKED_AT = 200  # files of a folder, the last written ones
LONGEST_LINE = 64 * 2**10  # bytes of a first line
KINDS = (*get_args(Happened), "step")
# The errors of ``from_json`` for a line that is no event.
BAD_LINE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_HEAD = 256  # bytes: the first event has a time, so two runs do not begin alike


class Tail:
    """The lines of a file that another process writes, each once. ``number`` of them were given so far."""

    def __init__(self, path: Path):
        self.path = path
        self.age: float | None = None  # seconds since the last line was written; None without a file
        self.number = 0
        self._head, self._position = b"", 0

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines since the last call, numbered from 1. A last line without a line end waits for it.

        A file that does not exist has no lines yet. A replaced or emptied file starts again with line 1. Raises
        ``ConfigError`` for a file that cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                head = file.read(_HEAD)
                if head[: len(self._head)] != self._head:
                    self._position = self.number = 0
                self._head = head
                file.seek(self._position)
                new = file.read()
            self.age = time.time() - self.path.stat().st_mtime
        except FileNotFoundError:
            self.age, self._head, self._position, self.number = None, b"", 0, 0
            return
        except (OSError, ValueError) as error:  # a path with a null character is a ValueError
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError("unreadable_file", path=str(self.path), reason=reason) from error
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines(keepends=True):
            self.number += 1
            yield self.number, line


class Run:
    """The figures of a run so far: ``count`` of each kind of event, its ``last`` step, and tokens ``generated``.

    A token that ends a recompute after a preemption is not counted: it has no event.
    """

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.last: StepEvent | None = None
        self.generated = 0
        self._hits = self._prefilled = 0
        self._began: float | None = None
        self._recent: deque[tuple[float, int]] = deque()  # (time, tokens) of the last two seconds

    def add(self, event: AnyEvent) -> None:
        """Count one more event. Raises ``ValueError`` or ``TypeError`` for one with bad figures."""
        if event.kind not in KINDS or not isinstance(event.time, int | float):
            raise ValueError(event)
        if isinstance(event, StepEvent):
            self._step(event)
        elif event.kind == "hit":
            self._hits += event.tokens
        elif event.kind == "first":
            self._made(event.time, 1)
        self.count[event.kind] += 1
        self._began = event.time if self._began is None else min(self._began, event.time)

    @property
    def left(self) -> int:
        """Sequences that have arrived and not ended."""
        return self.count["arrive"] - sum(self.count[end] for end in ("finish", "abort", "fail"))

    @property
    def running(self) -> int:
        """Sequences of the last step that have not ended."""
        return min(self.left, self.last.running) if self.last is not None else 0

    @property
    def hit_rate(self) -> float:
        """The share of the prefill's tokens that the prefix cache had, as ``minikv.engine.serve.metrics`` has it."""
        asked = self._hits + self._prefilled
        return self._hits / asked if asked else 0.0

    @property
    def seconds(self) -> float:
        """From the first event to the last step."""
        return self.last.time - self._began if self.last is not None and self._began is not None else 0.0

    @property
    def speed(self) -> float:
        """Generated tokens a second, since the first event."""
        return self.generated / self.seconds if self.seconds > 0 else 0.0

    @property
    def speed_now(self) -> float:
        """The same of the last two seconds of the run."""
        if self.last is None or self.seconds <= 0:
            return 0.0
        since = self.last.time - RECENT
        tokens = sum(count for when, count in self._recent if when > since)
        return tokens / min(RECENT, self.seconds)

    def _step(self, event: StepEvent) -> None:
        # A line may be JSON and still no step: the view needs numbers, for every KV cache group.
        counts = (event.running, event.prefill_tokens, event.decode_tokens, event.drafted, event.accepted)
        blocks = (*event.used, *event.cached, *event.total)
        whole = all(isinstance(count, int) for count in (*counts, *blocks))
        if not whole or len(blocks) != 3 * len(event.total) or min(event.total, default=0) < 1:
            raise ValueError(event)
        for used, cached, total in zip(event.used, event.cached, event.total, strict=True):
            if min(used, cached, total - used - cached) < 0:
                raise ValueError(event)
        self.last = event
        self._prefilled += event.prefill_tokens
        if not event.failed:
            self._made(event.time, event.decode_tokens - event.drafted + event.accepted)

    def _made(self, now: float, tokens: int) -> None:
        self.generated += tokens
        self._recent.append((now, tokens))
        while self._recent[0][0] < now - RECENT:
            self._recent.popleft()


class Watched:
    """A file of events and its run; ``read`` brings the run up to date."""

    def __init__(self, path: Path):
        self.tail = Tail(path)
        self.run = Run()

    def read(self) -> None:
        """Read the new lines. Raises ``ArgumentError`` for a damaged line, by its number; ``ConfigError``."""
        for number, line in self.tail.lines():
            if number == 1:
                self.run = Run()
            try:
                self.run.add(from_json(line.decode()))
            except BAD_LINE:
                path = str(self.tail.path)
                raise ArgumentError("events_unreadable", line=number, path=path) from None
        if not self.tail.number:
            self.run = Run()  # the next run has emptied the file, and writes once its model is loaded

    @property
    def there(self) -> bool:
        """Whether the file exists."""
        return self.tail.age is not None

    @property
    def silent(self) -> float:
        """Seconds without a new line of a run that is not over; 0 in the first two, since a step may take as long."""
        age = self.tail.age or 0.0
        return 0.0 if age < QUIET or self.over or not self.tail.number else age

    @property
    def over(self) -> bool:
        """Whether all sequences have ended, and no line came for two seconds."""
        return self.run.count["arrive"] > 0 >= self.run.left and (self.tail.age or 0) >= QUIET


class Waiting:
    """Says at once that a run has not begun, and after ``PATIENCE`` seconds which events files lie in the folder."""

    def __init__(self, say: Callable[[str], object], lang: str, clock: Callable[[], float] = time.monotonic):
        self._say, self._lang, self._clock = say, lang, clock
        self._since: float | None = None
        self._done = False

    def look(self, watched: Watched) -> None:
        """Print the sentences that are due now, each once."""
        if watched.tail.number:
            self._done = True
        if self._done:
            return
        path = watched.tail.path
        if self._since is None:
            self._since = self._clock()
            self._say(text("cli.watch_waiting", self._lang, path=path))
        elif self._clock() - self._since >= PATIENCE:
            self._done = True
            near = ", ".join(one.name for one in events_files(path.parent))
            key = "watch_near" if near else "watch_none_near"
            self._say(text(f"cli.{key}", self._lang, path=path, folder=path.parent.absolute(), files=near))


def events_files(folder: Path, most: int = 5) -> list[Path]:
    """At most ``most`` files in ``folder`` with an event as first line, the last written first."""
    found = []
    with suppress(OSError, ValueError):  # a path with a null character is a ValueError
        files = [path for path in folder.iterdir() if path.is_file()]
        files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[:MOST_LOOKED_AT]:
            with suppress(OSError), path.open("rb") as file:
                if _is_event(file.readline(LONGEST_LINE)):
                    found.append(path)
    return found[:most]


def _is_event(line: bytes) -> bool:
    try:
        return from_json(line.decode()).kind in KINDS
    except BAD_LINE:
        return False


def follow(
    watched: Watched,
    show: Callable[[Watched], None],
    interval: float,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Read and show, every ``interval`` seconds, until the run is over."""
    while True:
        watched.read()
        show(watched)
        if watched.over:
            return
        sleep(interval)
