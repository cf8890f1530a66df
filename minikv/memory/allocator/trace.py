"""A list of allocator operations as plain data, and the model's figures after each of them.

An operation is a dict that JSON can hold::

    {"op": "malloc", "id": 1, "size": 4096, "stream": 0}     stream is 0 where it is left out
    {"op": "free", "id": 1}
    {"op": "record_stream", "id": 1, "stream": 7}
    {"op": "synchronize", "stream": 7}                       every stream where it is left out
    {"op": "empty_cache"}, {"op": "reset_peak_stats"}, {"op": "reset_accumulated_stats"}

A malloc that was recorded on a device also has "address", which the device's allocator returned: the model puts a new
segment there, and must return the same address.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minikv.errors import LARGEST_COUNT, ArgumentError
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.rules import MIN_BLOCK_SIZE
from minikv.memory.allocator.stats import Usage

FIELDS: dict[str, tuple[set[str], set[str]]] = {  # of each operation: required, and allowed
    "malloc": ({"id", "size"}, {"id", "size", "stream", "address"}),
    "free": ({"id"}, {"id"}),
    "record_stream": ({"id", "stream"}, {"id", "stream"}),
    "synchronize": (set(), {"stream"}),
    "empty_cache": (set(), set()),
    "reset_peak_stats": (set(), set()),
    "reset_accumulated_stats": (set(), set()),
}
LEAST = {"size": 1, "stream": 0, "address": MIN_BLOCK_SIZE}


class TraceStep(NamedTuple):
    """The outcome of one operation: the address that a malloc returned, and the figures after it.

    ``out_of_memory`` is the error of a malloc that found no memory, else None.
    """

    op: str
    id: int | str | None
    address: int | None
    usage: Usage
    out_of_memory: DeviceOutOfMemoryError | None = None


def replay(
    trace: Sequence[Mapping[str, Any]], allocator: CachingAllocator | None = None
) -> tuple[TraceStep, ...]:
    """Run ``trace`` on ``allocator`` (a new one without a capacity where None) and return one TraceStep an operation.

    A malloc that runs out of memory is recorded, and the trace goes on without the later operations on that id. The
    whole trace is checked before its first operation runs. Raises ``ArgumentError``; an address that differs raises it
    at the operation itself.
    """
    _check(trace)
    device = CachingAllocator() if allocator is None else allocator
    addresses: dict[int | str, int | None] = {}  # None: its malloc ran out of memory
    steps = []
    for place, entry in enumerate(trace):
        op, key = entry["op"], entry.get("id")
        address, failed = None, None
        if op == "malloc":
            try:
                address = device.malloc(entry["size"], entry.get("stream", 0), address=entry.get("address"))
            except DeviceOutOfMemoryError as error:
                failed = error
            addresses[entry["id"]] = address
            if address is not None and entry.get("address", address) != address:
                given = hex(entry["address"])
                raise ArgumentError("allocator_trace_address", place=place, given=given, ours=hex(address))
        elif op == "free":
            held = addresses.pop(entry["id"])
            if held is not None:
                device.free(held)
        elif op == "record_stream":
            held = addresses[entry["id"]]
            if held is not None:
                device.record_stream(held, entry["stream"])
        elif op == "synchronize":
            device.synchronize(entry.get("stream"))
        else:
            getattr(device, op)()
        steps.append(TraceStep(op, key, address, device.usage(), failed))
    return tuple(steps)


def _check(trace: Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(trace, list | tuple):
        raise ArgumentError("not_a_list", what="trace", value=type(trace).__name__)
    live: set[int | str] = set()
    shapes: set[tuple[str, ...]] = set()  # operations with their fields that have passed the check
    for place, entry in enumerate(trace):
        if type(entry) is not dict and not isinstance(entry, Mapping):
            raise bad_trace(place, "operation", type(entry).__name__, '{"op": ...}')
        op = entry.get("op")
        if not isinstance(op, str) or op not in FIELDS:
            raise bad_trace(place, "op", op, ", ".join(FIELDS))
        shape = (op, *entry)
        if shape not in shapes:
            needed, allowed = FIELDS[op]
            if not needed <= entry.keys() - {"op"} <= allowed:
                given = ", ".join(key if isinstance(key, str) else type(key).__name__ for key in entry)
                raise bad_trace(place, "fields", given, ", ".join(["op", *sorted(allowed)]))
            shapes.add(shape)
        for field, value in entry.items():
            if field == "id":
                _check_id(place, op, value, live)
            elif field != "op" and (type(value) is not int or not LEAST[field] <= value <= LARGEST_COUNT):
                raise bad_trace(place, field, value, f"int, {LEAST[field]} to {LARGEST_COUNT}")


def _check_id(place: int, op: str, key: Any, live: set[int | str]) -> None:
    if not isinstance(key, str) and (type(key) is not int or abs(key) > LARGEST_COUNT):
        raise bad_trace(place, "id", key, "int, str")
    if op == "malloc" and key in live:
        raise ArgumentError("allocator_trace_id_taken", place=place, value=key)
    if op != "malloc" and key not in live:
        raise ArgumentError("allocator_trace_id_unknown", place=place, value=key)
    if op == "malloc":
        live.add(key)
    elif op == "free":
        live.discard(key)


def bad_trace(place: int, field: str, value: Any, wanted: str) -> ArgumentError:
    """The error of a step that cannot run, for the caller to raise: its place, the field, and the valid values."""
    plain = isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) < 2**64)
    shown = value if plain else type(value).__name__  # an int of hundreds of digits is not printed
    return ArgumentError("allocator_bad_trace", place=place, field=field, value=shown, wanted=wanted)
