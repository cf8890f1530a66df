"""The caching allocator a second time, written to be obvious and slow: flat lists, every figure counted from scratch.

It shares only the constants' values with minikv, not its code. Segments are lists of blocks; nothing is indexed.
"""

from dataclasses import dataclass, field

KIB, MIB = 1024, 1024 * 1024


@dataclass
class Piece:
    address: int
    size: int
    state: str = "free"  # "free", "used" or "waiting"
    asked: int = 0
    uses: set = field(default_factory=set)
    ended: set = field(default_factory=set)


@dataclass
class Segment:
    stream: int
    small: bool
    pieces: list

    @property
    def size(self):
        return sum(piece.size for piece in self.pieces)


class Full(Exception):
    pass


class NaiveAllocator:
    def __init__(self, capacity=None, max_split_mb=None):
        self.capacity = capacity
        self.max_split = max_split_mb * MIB if max_split_mb else float("inf")
        self.segments = []
        self.next_address = 1 << 40
        self.retries = self.ooms = 0

    def malloc(self, size, stream=0):
        self.take_back_ended()
        rounded = max(512, (size + 511) // 512 * 512)
        small = rounded <= MIB
        found = self.best(rounded, stream, small) or self.new(rounded, stream, small)
        segment, piece = found
        rest = piece.size - rounded
        if (small and rest >= 512) or (not small and rest > MIB and rounded < self.max_split):
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, Piece(piece.address + rounded, rest))
            piece.size = rounded
        piece.state, piece.asked, piece.uses, piece.ended = "used", size, set(), set()
        return piece.address

    def best(self, rounded, stream, small):
        fitting = [
            (piece.size, piece.address, segment, piece)
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for piece in segment.pieces
            if piece.state == "free" and piece.size >= rounded
        ]
        if not fitting:
            return None
        size, _, segment, piece = min(fitting, key=lambda entry: entry[:2])
        if rounded < self.max_split <= size:
            return None
        if rounded >= self.max_split and size >= rounded + 20 * MIB:
            return None
        return segment, piece

    def new(self, rounded, stream, small):
        if small:
            size = 2 * MIB
        elif rounded < 10 * MIB:
            size = 20 * MIB
        else:
            size = (rounded + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.fits(size):
            return self.add(size, stream, small)
        if not (self.release_oversize(rounded, stream, small) and self.fits(size)):
            # Too little was given back: everything goes, even where what went by then would have made room.
            self.empty_cache()
            self.retries += 1
        if not self.fits(size):
            self.ooms += 1
            raise Full
        return self.add(size, stream, small)

    def fits(self, size):
        return self.capacity is None or sum(segment.size for segment in self.segments) + size <= self.capacity

    def add(self, size, stream, small):
        segment = Segment(stream, small, [Piece(self.next_address, size)])
        self.next_address += size
        self.segments.append(segment)
        return segment, segment.pieces[0]

    def release_oversize(self, rounded, stream, small):
        if self.max_split == float("inf"):
            return False
        wanted = max(rounded, self.max_split)
        whole = sorted(
            (segment for segment in self.segments if self.idle(segment, stream, small)),
            key=lambda segment: (segment.size, segment.pieces[0].address),
        )
        enough = [segment for segment in whole if segment.size >= wanted]
        if enough:
            self.segments.remove(enough[0])
            return True
        released = 0
        while whole and released < wanted and whole[-1].size >= self.max_split:
            released += whole[-1].size
            self.segments.remove(whole.pop())
        return released >= wanted

    @staticmethod
    def idle(segment, stream, small):
        mine = segment.stream == stream and segment.small == small
        return mine and len(segment.pieces) == 1 and segment.pieces[0].state == "free"

    def piece_at(self, address):
        return next(
            (segment, piece)
            for segment in self.segments
            for piece in segment.pieces
            if piece.address == address and piece.state == "used"
        )

    def record_stream(self, address, stream):
        segment, piece = self.piece_at(address)
        if stream != segment.stream:
            piece.uses.add(stream)

    def free(self, address):
        segment, piece = self.piece_at(address)
        piece.state = "waiting" if piece.uses else "free"
        self.merge(segment)

    def synchronize(self, stream=None):
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.state == "waiting":
                    piece.ended |= piece.uses if stream is None else piece.uses & {stream}

    def take_back_ended(self, everything=False):
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.state == "waiting" and (everything or piece.ended == piece.uses):
                    piece.state = "free"
            self.merge(segment)

    @staticmethod
    def merge(segment):
        kept = []
        for piece in segment.pieces:
            if kept and kept[-1].state == piece.state == "free":
                kept[-1].size += piece.size
            else:
                kept.append(piece)
        segment.pieces = kept

    def empty_cache(self):
        self.take_back_ended(everything=True)
        self.segments = [
            segment
            for segment in self.segments
            if len(segment.pieces) > 1 or segment.pieces[0].state != "free"
        ]

    def figures(self):
        every = [(segment, piece) for segment in self.segments for piece in segment.pieces]
        used = [piece for _, piece in every if piece.state == "used"]
        busy = [piece for _, piece in every if piece.state != "free"]
        stranded = [p.size for segment, p in every if p.state == "free" and len(segment.pieces) > 1]
        return {
            "allocation": len(used),
            "allocated_bytes": sum(piece.size for piece in used),
            "active": len(busy),
            "active_bytes": sum(piece.size for piece in busy),
            "requested_bytes": sum(piece.asked for piece in busy),
            "segment": len(self.segments),
            "reserved_bytes": sum(piece.size for _, piece in every),
            "inactive_split": len(stranded),
            "inactive_split_bytes": sum(stranded),
        }
