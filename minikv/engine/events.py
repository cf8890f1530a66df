"""What the scheduler did, as small records: one line of JSON each. Widgets, tests and ``metrics`` read them."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from minikv.errors import ArgumentError

Happened = Literal[
    "arrive", "hit", "allocate", "evict", "preempt", "free", "first", "finish", "abort", "fail"
]


@dataclass(frozen=True)
class Event:
    """``request`` and ``sample`` say which sequence; ``blocks`` has one number for each kind of layer.

    ``bytes`` are those of the blocks, None if nobody said what a block costs. What ``tokens`` counts:

    - arrive: ``tokens`` of prompt. hit: ``tokens`` found in the prefix cache, in ``blocks`` that are shared now
      (those that a window no longer reads not counted).
    - allocate: ``blocks`` taken for ``tokens`` more tokens, copies of shared ones included.
    - evict: cached ``blocks`` whose content the step's allocations overwrite; it has no sequence.
    - preempt: ``tokens`` whose K and V are given up. free: ``blocks`` that became free.
    - first: the first token. finish, abort, fail: the end, after ``tokens`` generated.
    """

    kind: Happened
    time: float
    request: str | int | None
    sample: int
    tokens: int
    blocks: tuple[int, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True)
class StepEvent:
    """One step, written when it has ended; block counts have one number for each kind of layer.

    ``seconds`` passed between ``schedule`` and ``finish``. ``used`` blocks were held during the step, and
    ``wasted_slots`` of their slots had no token; ``cached`` blocks were free and could still be found.
    """

    time: float
    step: int
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    used: tuple[int, ...]
    cached: tuple[int, ...]
    total: tuple[int, ...]
    wasted_slots: tuple[int, ...]
    block_size: int
    failed: bool = False
    kind: Literal["step"] = "step"


AnyEvent = Event | StepEvent
Emit = Callable[[AnyEvent], object]


class EventLog:
    """Keeps every event: ``Scheduler(manager, emit=log)``.

    ``write(path)`` makes a file of JSON lines, ``EventLog.read(path)`` the same log again.
    """

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def __call__(self, event: AnyEvent) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list:
        """The events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]

    def write(self, path: str | Path) -> None:
        """One JSON object a line."""
        lines = [to_json(event) + "\n" for event in self.events]
        Path(path).write_text("".join(lines), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "EventLog":
        """The log that ``write`` made. Raises ``ArgumentError`` for a line that is not an event."""
        log = cls()
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    log(from_json(line))
                except (ValueError, TypeError, KeyError, AttributeError):
                    raise ArgumentError("events_unreadable", line=number, path=str(path)) from None
        return log


def to_json(event: AnyEvent) -> str:
    """One line, without its end."""
    return json.dumps(asdict(event), ensure_ascii=False)


def from_json(line: str) -> AnyEvent:
    """The event of a line. For another line: ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError``."""
    told = json.loads(line)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    return StepEvent(**fields) if fields["kind"] == "step" else Event(**fields)
