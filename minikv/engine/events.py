"""What the scheduler did, as small records: one line of JSON each. Widgets, tests and ``metrics`` read them."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from minikv.errors import ArgumentError
from minikv.shown import one_line

Happened = Literal[
    "arrive",
    "hit",
    "host_hit",
    "allocate",
    "evict",
    "preempt",
    "swap_out",
    "swap_in",
    "rollback",
    "forget",
    "free",
    "first",
    "finish",
    "abort",
    "fail",
]


@dataclass(frozen=True)
class Event:
    """``request`` and ``sample`` say which sequence; ``blocks`` has one number for each kind of layer.

    ``bytes`` are those of the blocks, None if nobody said what a block costs. What ``tokens`` counts:

    - arrive: ``tokens`` of prompt. hit: ``tokens`` found in the prefix cache, in ``blocks`` that are shared now
      (those that a window no longer reads not counted), 0 ``tokens`` where other kinds of all of them come from the
      host. host_hit: ``tokens`` found in host memory besides, in ``blocks`` that are transferred to the device.
    - allocate: ``blocks`` taken for ``tokens`` more tokens, copies of shared ones included.
    - evict: cached ``blocks`` whose content the step's allocations overwrite; it has no sequence.
    - preempt: ``tokens`` whose K and V leave the device. Where there is host memory, ``how`` is "swap" or "recompute",
      and both were estimated to take so many seconds. rollback: ``tokens`` of drafts that were refused, and ``blocks``
      that became free with them. forget: ``tokens`` that the sequence has
      evicted, and ``blocks`` that became free with them, less copies of what others hold. free: ``blocks`` that became
      free.
    - swap_out: ``blocks`` transferred to the host for ``tokens`` of a sequence, or, without one, of cached prefixes
      that are evicted (what the host has already is not counted). swap_in: ``blocks`` transferred back.
    - first: the first token. finish, abort, fail: the end, after ``tokens`` generated.
    """

    kind: Happened
    time: float
    request: str | int | None
    sample: int
    tokens: int
    blocks: tuple[int, ...] = ()
    bytes: int | None = None
    how: Literal["swap", "recompute"] | None = None
    swap_seconds: float | None = None
    recompute_seconds: float | None = None


@dataclass(frozen=True)
class StepEvent:
    """One step, written when it has ended; block counts have one number for each kind of layer.

    ``seconds`` passed between ``schedule`` and ``finish``, or, of a step ahead, since the step before it ended: so no
    second counts twice. ``used`` blocks were held during the step, and ``wasted_slots`` of their slots had no token;
    ``cached`` blocks were free and could still be found. ``drafted`` of the ``decode_tokens`` were guessed, and
    ``accepted`` of those are what the model itself said. The running sequences were ``tokens`` long together, those
    of the step included, and their layers without a window held ``resident`` of them.
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
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    resident: int = 0
    kind: Literal["step"] = "step"


AnyEvent = Event | StepEvent
_OPTIONAL = ("how", "swap_seconds", "recompute_seconds")
Emit = Callable[[AnyEvent], object]


class EventLog:
    """Keeps every event: ``Scheduler(manager, emit=log)``.

    ``write(path)`` makes a file of JSON lines, ``EventLog.read(path)`` the same log again.
    """

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def __call__(self, event: AnyEvent) -> None:
        self.events.append(event)

    def __repr__(self) -> str:
        kinds = Counter(event.kind for event in self.events)
        told = (f"{count:,} {kind}" for kind, count in kinds.most_common(5))
        return one_line("EventLog", "", f"{len(self.events):,} events", *told)

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
    """One line, without its end; what only a preemption has is left out of the others."""
    told = {
        name: value for name, value in asdict(event).items() if value is not None or name not in _OPTIONAL
    }
    return json.dumps(told, ensure_ascii=False)


def from_json(line: str) -> AnyEvent:
    """The event of a line. For another line: ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError``."""
    told = json.loads(line)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    return StepEvent(**fields) if fields["kind"] == "step" else Event(**fields)
