"""The scheduler's actions as small records, each one line of JSON. Widgets, tests and ``metrics`` read them.

``Events`` makes them from the engine's changes, and gives them to ``emit`` once the scheduler is consistent.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from minikv.blocks import NULL_BLOCK, Allocation
from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import FinishReason, Sequence, SequenceId
from minikv.engine.core.step import Step, StepPlan
from minikv.errors import ArgumentError, check_count
from minikv.shown import one_line

if TYPE_CHECKING:
    from minikv.engine.core.scheduler import Scheduler

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
    """One action. ``request`` and ``sample`` name the sequence; ``blocks`` has one number for each KV cache group.

    ``bytes`` are those of the blocks, None where ``block_bytes`` are not known. ``tokens`` counts:

    - arrive: ``tokens`` of the prompt. hit: ``tokens`` found in the prefix cache, in ``blocks`` that are shared now
      (without those that a window no longer reads); 0 ``tokens`` if some KV cache group has all of them from the
      host. host_hit: ``tokens`` found in host memory besides, in ``blocks`` that are transferred to the device.
    - allocate: ``blocks`` taken for ``tokens`` more tokens, copies of shared ones included.
    - evict: cached ``blocks`` that the step's allocations overwrite; it has no sequence.
    - preempt: ``tokens`` with K and V that leave the device. With host memory, ``how`` is "swap" or "recompute", and
      both have estimated seconds. rollback: ``tokens`` of refused drafts, and the ``blocks`` freed with them. forget:
      ``tokens`` evicted from the sequence, and the ``blocks`` freed with them, less copies of shared blocks. free:
      ``blocks`` that became free.
    - swap_out: ``blocks`` transferred to the host for ``tokens`` of a sequence, or, without one, of cached prefixes
      that are evicted (without blocks that the host has already). swap_in: ``blocks`` transferred back.
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
    """One step, recorded at its end; block counts have one number for each KV cache group.

    ``seconds`` passed between ``schedule`` and ``finish``; for a step launched ahead, since the step before it ended,
    so that no second counts twice. ``used`` blocks were held during the step, and ``wasted_slots`` of their slots had
    no token; ``cached`` blocks were free and could still be found. ``drafted`` of the ``decode_tokens`` were drafts,
    and ``accepted`` of those were right. The running sequences had ``tokens`` tokens together, those of the step
    included, and their layers without a window held ``resident`` of them.
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
    """Keeps every event: ``Scheduler(manager, extensions=[Events(log)])``.

    ``write(path)`` writes a file of JSON lines, ``EventLog.read(path)`` reads it into an equal log.
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
        """Return the events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]

    def write(self, path: str | Path) -> None:
        """Write one JSON object a line."""
        lines = [to_json(event) + "\n" for event in self.events]
        Path(path).write_text("".join(lines), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "EventLog":
        """Return the log that ``write`` wrote. Raises ``ArgumentError`` for a line that is not an event."""
        log = cls()
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    log(from_json(line))
                except (ValueError, TypeError, KeyError, AttributeError):
                    raise ArgumentError("events_unreadable", line=number, path=str(path)) from None
        return log


def to_json(event: AnyEvent) -> str:
    """Return an event as one line, without its end; events other than preemptions lack the fields of one."""
    told = {
        name: value for name, value in asdict(event).items() if value is not None or name not in _OPTIONAL
    }
    return json.dumps(told, ensure_ascii=False)


def from_json(line: str) -> AnyEvent:
    """Return the event of a line. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError`` for
    others.
    """
    told = json.loads(line)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    return StepEvent(**fields) if fields["kind"] == "step" else Event(**fields)


_ENDS: dict[FinishReason, Happened] = {
    FinishReason.STOP: "finish",
    FinishReason.LENGTH: "finish",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "fail",
}


class Events(Extension):
    """Gives every event to ``emit``, which may raise and may call the scheduler. Last in the list of extensions.

    ``block_bytes``: the bytes of a block of each KV cache group, for the events' bytes. An event is not delivered again
    if ``emit`` raised.
    """

    def __init__(self, emit: Emit, block_bytes: Seq[int] | None = None):
        if not callable(emit):
            raise ArgumentError("scheduler_callable", what="emit", value=type(emit).__name__)
        self.emit, self.block_bytes = emit, block_bytes
        self._queue: list[AnyEvent] = []
        self._mark: tuple[int, list[int]] = (0, [])
        self._ended = -inf  # when the last step ended

    def attach(self, scheduler: "Scheduler") -> None:
        super().attach(scheduler)
        manager = scheduler.manager
        check_block_bytes(self.block_bytes, len(manager.pools))
        windows = [group.window for group in manager.kv_cache_groups]
        self._windowed = any(window is not None for window in windows)
        self._whole = windows.index(None) if None in windows else 0  # a group that keeps what eviction leaves
        self._evictions = [pool.stats().evictions for pool in manager.pools]
        self._free = self._free_blocks()

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        if change == "commit" and not self._windowed:
            return  # such a commit frees no block, and there is one for each token
        before, self._free = self._free, self._free_blocks()
        if change == "allocate" and before == self._free:
            return
        freed = tuple(after - was for was, after in zip(before, self._free, strict=True))
        match change:
            case "reserve":
                self._mark = len(self._queue), self._evictions
            case "withdraw":
                kept, self._evictions = self._mark
                del self._queue[kept:]  # no event was delivered meanwhile
            case "arrive" | "first":
                self._put(change, seq, num_tokens)
            case "admit" if seq is not None:
                self._admit(seq, num_tokens, facts["found"])
            case "allocate":
                self._put("allocate", seq, num_tokens, tuple(-count for count in freed))
            case "preempt":
                self._preempt(seq, num_tokens, freed, **facts)
            case "swap_in":
                self._put("swap_in", seq, num_tokens, facts["blocks"])
            case "save":
                self._put("swap_out", None, 0, facts["blocks"])
            case "truncate":
                self._put("rollback", seq, num_tokens, freed)
            case "forget" | "free":
                self._put(change, seq, num_tokens, freed)
            case "end" if seq is not None and seq.finish_reason is not None:
                self._put(_ENDS[seq.finish_reason], seq, num_tokens)

    def before_step(self, plan: StepPlan) -> None:
        """Record the state of the pools during the step."""
        manager, scheduler = self.scheduler.manager, self.scheduler
        running, stats = scheduler.running_sequences, [pool.stats() for pool in manager.pools]
        before, self._evictions = self._evictions, [pool.evictions for pool in stats]
        new = tuple(after - was for was, after in zip(before, self._evictions, strict=True))
        if any(new):
            self._put("evict", None, 0, new)
        plan.work["events"] = {
            "running": len(running),
            "waiting": scheduler.num_waiting,
            "used": tuple(pool.used for pool in stats),
            "cached": tuple(pool.cached for pool in stats),
            "total": tuple(pool.num_blocks for pool in manager.pools),
            "wasted_slots": tuple(self._wasted(running, group) for group in range(len(stats))),
            "block_size": manager.block_size,
            "tokens": sum(manager.num_tokens(seq.id) for seq in running),
            "resident": sum(manager.length(seq.id, self._whole) for seq in running),
        }

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        self._free = self._free_blocks()
        if step is None:
            return
        now, decode = self.scheduler.now, step.num_decode
        event = StepEvent(
            time=now,
            step=step.number,
            seconds=now - max(step.time, self._ended),
            prefill_tokens=step.num_tokens - decode,
            decode_tokens=decode,
            failed=tokens is None,
            drafted=sum(item.unconfirmed for item in step.items),
            accepted=sum(len(each) - 1 for each in (tokens or {}).values()),
            **step.work["events"],
        )
        self._queue.append(event)
        self._ended = now

    def flush(self) -> None:
        while self._queue:
            self.emit(self._queue.pop(0))

    def _admit(self, seq: Sequence, num_tokens: int, found: Allocation) -> None:
        """Record an admission: ``found.num_cached`` tokens of ``seq`` are cached, ``num_tokens`` others are in the
        step.
        """
        manager, size = self.scheduler.manager, self.scheduler.manager.block_size
        places, groups = found.num_cached // size, range(len(manager.pools))
        if places:
            tables = [manager.block_table(seq.id, group)[:places] for group in groups]
            loaded = tuple(len(pairs) for pairs in found.loads) or (0,) * len(tables)
            shared = tuple(
                len(table) - table.count(NULL_BLOCK) - count
                for table, count in zip(tables, loaded, strict=True)
            )
            if found.num_cached > found.num_loaded or any(shared):
                self._put("hit", seq, found.num_cached - found.num_loaded, shared)
            if found.num_loaded:
                self._put("host_hit", seq, found.num_loaded, loaded)
        new = -(-(found.num_cached + num_tokens) // size) - places
        if new:
            self._put("allocate", seq, num_tokens, (new,) * len(groups))

    def _preempt(
        self,
        seq: Sequence | None,
        num_tokens: int,
        freed: tuple[int, ...],
        *,
        kept: bool,
        moved: tuple[int, ...] = (),
        **cost: Any,
    ) -> None:
        """Record a preemption: ``moved`` blocks go to the host if the tokens are ``kept``; else they are computed
        again.
        """
        self._put("preempt", seq, num_tokens, **cost)
        if kept:
            self._put("swap_out", seq, num_tokens, moved)
            self._put("free", seq, num_tokens, freed)

    def _wasted(self, running: Seq[Sequence], group: int) -> int:
        """Return the slots without a token. Only last blocks have any, and a shared one counts once."""
        manager = self.scheduler.manager
        size, slots = manager.block_size, manager.decode_slots([seq.id for seq in running], group).tolist()
        filled: dict[int, int] = {}
        for slot in slots:
            if slot >= 0:
                filled[slot // size] = max(filled.get(slot // size, 0), slot % size + 1)
        return sum(size - count for count in filled.values())

    def _free_blocks(self) -> tuple[int, ...]:
        return tuple([pool.num_free for pool in self.scheduler.manager.pools])

    def _put(
        self,
        kind: Happened,
        seq: Sequence | None,
        tokens: int,
        blocks: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        num_bytes = None
        if self.block_bytes is not None:
            of_groups = zip(blocks, self.block_bytes, strict=False)  # an event without blocks has no bytes
            num_bytes = sum(count * size for count, size in of_groups)
        request, sample = (None, 0) if seq is None else seq.id
        now = self.scheduler.now
        self._queue.append(Event(kind, now, request, sample, tokens, blocks, num_bytes, **more))


def check_block_bytes(block_bytes: Seq[int] | None, num_kv_cache_groups: int) -> None:
    """Raise ``ArgumentError`` unless there are bytes of a block for each group, or None."""
    if block_bytes is None:
        return
    if not isinstance(block_bytes, (list, tuple)):
        raise ArgumentError("not_a_list", what="block_bytes", value=type(block_bytes).__name__)
    for num_bytes in block_bytes:
        check_count("block_bytes", num_bytes)
    if len(block_bytes) != num_kv_cache_groups:
        raise ArgumentError("scheduler_block_bytes", given=len(block_bytes), groups=num_kv_cache_groups)
