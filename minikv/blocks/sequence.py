"""What the block manager remembers of one sequence."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

from minikv.blocks.pool import NULL_BLOCK

UNKNOWN = -1
"""Stands for a token that has its place already, and is drawn while the step is prepared that will compute it."""


@dataclass(slots=True)
class Table:
    """A sequence's blocks in the layers of one kind, in token order.

    ``blocks[i]`` is ``NULL_BLOCK`` for i < ``first``: the window has moved on. ``evicted`` tokens were dropped from
    the cache by eviction, so the token at position p lies in slot p - evicted of the table. The first ``private``
    blocks are nobody else's and not published, as the last eviction left them.
    """

    blocks: list[int] = field(default_factory=list)
    first: int = 0
    evicted: int = 0
    private: int = 0

    def live(self) -> list[int]:
        """The blocks that are really held."""
        return self.blocks[self.first :] if self.first else self.blocks

    def give_back(self, until: int) -> list[int]:
        """Put ``NULL_BLOCK`` in every place before ``until``; returns the blocks that stood there."""
        until = min(until, len(self.blocks))
        if until <= self.first:
            return []
        dropped = self.blocks[self.first : until]
        self.blocks[self.first : until] = [NULL_BLOCK] * len(dropped)
        self.first = until
        return dropped


@dataclass(slots=True)
class SequenceState:
    """``len(tokens)`` is the position of the next token; up to ``limit`` tokens fit without looking any further.

    ``committed`` tokens have their K and V in the cache; ``published`` blocks of them can be found by their
    ``digests``. ``floor`` is the position of the last eviction: what lies before it is no longer in token order.
    The last token may be ``unknown``: it was placed, and nobody has said yet which it is; ``limit`` is negative then.
    """

    id: Hashable
    tokens: array
    tables: list[Table]
    digests: list[bytes]
    root: bytes
    row: int
    committed: int = 0
    published: int = 0
    floor: int = 0
    limit: int = 0
    unknown: bool = False

    def length(self, kind: int) -> int:
        """Tokens that the table of ``kind`` has slots for, those behind a window included."""
        return len(self.tokens) - self.tables[kind].evicted
