"""Reads a file of ``torch.cuda.memory._dump_snapshot``: segments, blocks and their holders. No torch, no foreign code.

The fields are those of ``_snapshot`` in ``torch/cuda/memory.py``. The rest of a snapshot (traces, settings) is
dropped.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from minikv.errors import ArgumentError
from minikv.memory.allocator.blocks import ALLOCATED, AWAITING_FREE, INACTIVE, STATES, BlockView, SegmentView
from minikv.memory.allocator.plain_pickle import load_plain

OLD_STATES = {"active_pending_free": AWAITING_FREE}  # the name before torch 2.2


@dataclass(frozen=True)
class Snapshot:
    """The segments of every device in a snapshot, by device and address. Sums are in bytes."""

    segments: tuple[SegmentView, ...]
    devices: tuple[int, ...]  # of each segment

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.total_size for segment in self.segments)

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that tensors used."""
        return sum(segment.allocated_size for segment in self.segments)

    @property
    def inactive_split(self) -> int:
        """Bytes of free blocks that share a segment with others; those of expandable segments do not count."""
        return sum(
            block.size
            for segment in self.segments
            if not segment.is_expandable and len(segment.blocks) > 1
            for block in segment.blocks
            if block.state == INACTIVE
        )

    def holders(self) -> tuple[tuple[str, int, int], ...]:
        """(where, bytes, blocks) of the blocks in use, the largest sum first.

        ``where`` is the innermost frame of the allocation, "file:line function", or "" where none was recorded.
        """
        sums: dict[str, list[int]] = {}
        for segment in self.segments:
            for block in segment.blocks:
                if block.state == ALLOCATED:
                    where = "{}:{} {}".format(*block.frames[0]) if block.frames else ""
                    entry = sums.setdefault(where, [0, 0])
                    entry[0] += block.size
                    entry[1] += 1
        ranked = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple((where, size, count) for where, (size, count) in ranked)


def from_snapshot(source: str | Path | bytes) -> Snapshot:
    """A snapshot from a file or its bytes: the pickle that torch writes, or the same dictionary as JSON.

    Raises ``ArgumentError``: "snapshot_refused" for a pickle that holds more than plain data (the error names it, and
    nothing of it runs), "snapshot_shape" for something else than a snapshot, and where a file cannot be read.
    """
    if isinstance(source, bytes):
        name, data = f"bytes[{len(source)}]", source
    elif isinstance(source, str | Path):
        name, data = str(source), _read(Path(source))
    else:
        raise ArgumentError(
            "snapshot_shape", name=type(source).__name__, field="source", wanted="str, Path, bytes"
        )
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArgumentError("unreadable_file", path=name, reason=type(error).__name__) from None
    else:
        found = load_plain(data, name)
    return _Reader(name).snapshot(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArgumentError("unreadable_file", path=str(path), reason=type(error).__name__) from None
    except ValueError:  # a null character in the name
        raise ArgumentError("unreadable_file", path=repr(str(path)), reason="ValueError") from None


class _Reader:
    """Reads the fields of a snapshot's dictionary; every error names the field."""

    def __init__(self, name: str):
        self.name = name

    def snapshot(self, found: Any) -> Snapshot:
        # torch before 2.0 wrote the list of segments alone.
        listed = (
            found
            if isinstance(found, list)
            else self.get(self.typed(found, dict, "snapshot"), "segments", list)
        )
        read = [self.segment(entry, f"segments[{place}]") for place, entry in enumerate(listed)]
        read.sort(key=lambda pair: (pair[0], pair[1].address))
        return Snapshot(tuple(segment for _, segment in read), tuple(device for device, _ in read))

    def segment(self, entry: Any, where: str) -> tuple[int, SegmentView]:
        entry = self.typed(entry, dict, where)
        address, total = self.count(entry, "address", where), self.count(entry, "total_size", where)
        kind = entry.get("segment_type")
        if kind not in ("small", "large"):
            self.refuse(f"{where}.segment_type", '"small", "large"')
        blocks, start = [], address
        for place, block in enumerate(self.get(entry, "blocks", list, where)):
            blocks.append(self.block(block, f"{where}.blocks[{place}]", start))
            start += blocks[-1].size
        if not blocks:
            self.refuse(f"{where}.blocks", "list[1+]")
        if start != address + total:
            self.refuse(f"{where}.total_size", f"{start - address:,} (sum of blocks[].size)")
        expandable = self.typed(entry.get("is_expandable", False), bool, f"{where}.is_expandable")
        stream = self.count(entry, "stream", where, default=0)
        view = SegmentView(address, total, stream, kind, expandable, tuple(blocks))
        return self.count(entry, "device", where, default=0), view

    def block(self, entry: Any, where: str, start: int) -> BlockView:
        entry = self.typed(entry, dict, where)
        size = self.count(entry, "size", where)
        if not size:
            self.refuse(f"{where}.size", "int >= 1")
        if self.count(entry, "address", where, default=start) != start:
            self.refuse(f"{where}.address", hex(start))
        state = entry.get("state")
        state = OLD_STATES.get(state, state) if isinstance(state, str) else state
        if state not in STATES:
            self.refuse(f"{where}.state", ", ".join(STATES))
        asked = 0 if state == INACTIVE else self.count(entry, "requested_size", where, default=size)
        frames = self.typed(entry.get("frames", []), list, f"{where}.frames")
        told = tuple(self.frame(frame, f"{where}.frames[{place}]") for place, frame in enumerate(frames))
        return BlockView(start, size, asked, state, told)

    def frame(self, frame: Any, where: str) -> tuple[str, int, str]:
        frame = self.typed(frame, dict, where)
        name, function = self.get(frame, "filename", str, where), self.get(frame, "name", str, where)
        return name, self.count(frame, "line", where), function

    def get(self, entry: dict[str, Any], key: str, kind: type, where: str = "") -> Any:
        return self.typed(entry.get(key), kind, f"{where}.{key}".lstrip("."))

    def count(self, entry: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
        value = entry.get(key, default)
        if type(value) is int and 0 <= value < 2**64:
            return value
        self.refuse(f"{where}.{key}", "int >= 0")

    def typed(self, value: Any, kind: type, where: str) -> Any:
        if type(value) is not kind:
            self.refuse(where, kind.__name__)
        return value

    def refuse(self, field: str, wanted: str) -> NoReturn:
        raise ArgumentError("snapshot_shape", name=self.name, field=field, wanted=wanted)
