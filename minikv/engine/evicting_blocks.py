"""EvictingBlocks: the scheduler's half of eviction where whole blocks go, and nothing is moved.

Which blocks go only the scores say, and a block that goes may be somebody else's in the same step: so they are asked
for while the step is planned. No step is being computed then, and the device is waited for all the same. How many
tokens stay follows from a sequence's length alone, as with single tokens.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from minikv.blocks import BlockManager
from minikv.engine.evicting import Evicting, Note
from minikv.engine.sequence import Sequence, SequenceId
from minikv.eviction.paged.plan import PlannedEviction
from minikv.eviction.policies.budget import Budget


class EvictingBlocks(Evicting):
    """``drop`` takes a sequence's worst blocks from its table and returns how many tokens went with them."""

    def __init__(
        self,
        manager: BlockManager,
        budget: Budget,
        chunk: int,
        *,
        shares: bool,
        journal: deque[Note],
        drop: Callable[[SequenceId], int],
    ):
        super().__init__(manager, budget, chunk, shares=shares)
        self.journal, self._drop = journal, drop
        self._dropped: list[Any] = []

    def after(self, length: int) -> int:
        """The last block stays, and as many others as fit into the capacity with it."""
        size = self.manager.block_size
        tail = (length - 1) % size + 1
        return tail + (self.budget.capacity - tail) // size * size

    def is_planned(self, seq: Sequence) -> bool:
        return seq.id in self._dropped

    def plan(self, seq: Sequence) -> int:
        """Its blocks go now, not with the step: should that not come, the sequence begins again."""
        self._dropped.append(seq.id)
        return self._drop(seq.id)

    def take(self) -> tuple[PlannedEviction, ...]:
        self._dropped = []
        return ()
