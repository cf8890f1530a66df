"""The steps of the segments widget, run on the real model of the caching allocator, with the state after each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minikv.errors import LARGEST_COUNT, ArgumentError
from minikv.memory import AllocatorSettings, CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.blocks import INACTIVE, SegmentView
from minikv.memory.allocator.trace import bad_trace

MAX_STEPS = 200  # all of them are sent with the widget, drawn for every choice of settings
NAMED, SIZED, STREAMED = ("malloc", "free", "record_stream"), ("malloc",), ("malloc", "record_stream")
KINDS = (*NAMED, "synchronize", "empty_cache")


@dataclass(frozen=True)
class AllocatorStep:
    """One operation on the allocator, with a ``note``: a sentence in the widget's language, shown at that step.

    ``kind`` is "malloc" (``size`` bytes under ``name``, on ``stream``), "free" (``name``'s block), "empty_cache",
    "record_stream" (``stream`` uses ``name``'s block too) or "synchronize" (every stream has ended its work).
    """

    kind: str
    name: str = ""
    size: int = 0
    note: str = ""
    stream: int = 0


@dataclass(frozen=True)
class AllocatorMoment:
    """The allocator after one step. Figures are in bytes, ``calls`` and ``returns`` are numbers of driver calls.

    ``names`` gives the name of the block at an address. ``error`` is the error of a malloc that found no memory;
    ``passed_over`` is True for a later step on that allocation, which does not exist.
    """

    segments: tuple[SegmentView, ...]
    names: dict[int, str]
    allocated: int
    active: int
    reserved: int
    peak_reserved: int
    inactive_split: int
    device_free: int
    calls: int
    returns: int
    error: DeviceOutOfMemoryError | None = None
    passed_over: bool = False


def check_steps(steps: Sequence[AllocatorStep]) -> None:
    """Raise ``ArgumentError`` unless every step can be run; call it before the first step."""
    if not isinstance(steps, list | tuple):
        raise ArgumentError("not_a_list", what="steps", value=type(steps).__name__)
    if not 0 < len(steps) <= MAX_STEPS:
        raise ArgumentError("out_of_range", what="len(steps)", value=len(steps), low=0, high=MAX_STEPS)
    live: set[str] = set()
    for place, step in enumerate(steps, start=1):
        if not isinstance(step, AllocatorStep):
            raise bad_trace(
                place, "step", type(step).__name__, "AllocatorStep(kind, name, size, note, stream)"
            )
        if step.kind not in KINDS:
            raise bad_trace(place, "kind", step.kind, ", ".join(KINDS))
        if not isinstance(step.note, str):
            raise bad_trace(place, "note", step.note, "str")
        if not isinstance(step.name, str) or bool(step.name.strip()) != (step.kind in NAMED):
            raise bad_trace(place, "name", step.name, "str, len >= 1" if step.kind in NAMED else '""')
        _check_number(place, "size", step.size, least=1, given=step.kind in SIZED)
        _check_number(place, "stream", step.stream, least=0, given=step.kind in STREAMED)
        if step.kind == "malloc":
            if step.name in live:
                raise ArgumentError("allocator_trace_id_taken", place=place, value=step.name)
            live.add(step.name)
        elif step.name and step.name not in live:
            raise ArgumentError("allocator_trace_id_unknown", place=place, value=step.name)
        elif step.kind == "free":
            live.discard(step.name)


def _check_number(place: int, field: str, value: Any, *, least: int, given: bool) -> None:
    if type(value) is not int or not (least <= value <= LARGEST_COUNT if given else value == 0):
        raise bad_trace(place, field, value, f"int, {least} to {LARGEST_COUNT}" if given else "0")


def replay_steps(
    steps: Sequence[AllocatorStep], settings: AllocatorSettings, capacity: int, non_torch: int
) -> tuple[AllocatorMoment, ...]:
    """Return the empty device, and its state after each of ``steps``, which ``check_steps`` has accepted."""
    allocator = CachingAllocator(capacity, settings=settings, non_torch=non_torch)
    held: dict[str, int | None] = {}  # the address of each live name; None: its malloc found no memory
    # The last name at each address, also of a block that still waits for a stream.
    name_at: dict[int, str] = {}
    moments = [_moment(allocator, name_at)]
    for step in steps:
        error, address = None, held.get(step.name)
        passed_over = step.kind in ("free", "record_stream") and address is None
        if step.kind == "malloc":
            try:
                address = allocator.malloc(step.size, step.stream)
                name_at[address] = step.name
            except DeviceOutOfMemoryError as refusal:
                address, error = None, refusal.with_traceback(None)
            held[step.name] = address
        elif step.kind == "free":
            del held[step.name]
            if address is not None:
                allocator.free(address)
        elif step.kind == "record_stream":
            if address is not None:
                allocator.record_stream(address, step.stream)
        elif step.kind == "synchronize":
            allocator.synchronize()
        else:
            allocator.empty_cache()
        moments.append(_moment(allocator, name_at, error, passed_over))
    return tuple(moments)


def _moment(
    allocator: CachingAllocator,
    name_at: dict[int, str],
    error: DeviceOutOfMemoryError | None = None,
    passed_over: bool = False,
) -> AllocatorMoment:
    usage, stats, segments = allocator.usage(), allocator.memory_stats(), allocator.segments()
    used = [block.address for view in segments for block in view.blocks if block.state != INACTIVE]
    assert allocator.device_free is not None  # it has a capacity
    return AllocatorMoment(
        segments,
        {address: name_at[address] for address in used},
        usage.allocated,
        usage.active,
        usage.reserved,
        stats["reserved_bytes.all.peak"],
        usage.inactive_split,
        allocator.device_free,
        stats["num_device_alloc"],
        stats["num_device_free"],
        error,
        passed_over,
    )
