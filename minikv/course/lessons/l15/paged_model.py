"""Lesson 15: a model on blocks that evicts, one sequence at a time, as the engine does but without a queue."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.course.widgets import SequenceBlocks
from minikv.eviction import Budget, Policy
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.policies.choices import PolicyName, Unit
from minikv.models import Batch, bind_model
from minikv.plan import CacheSpec


class OnBlocks:
    """``model`` bound to ``num_blocks`` blocks, until ``close``."""

    def __init__(
        self,
        model: Any,
        policy: PolicyName | Policy,
        budget: Budget,
        *,
        num_blocks: int = 32,
        block_size: int = 8,
        unit: Unit = "token",
    ):
        self.cache = PagedKVCache(
            CacheSpec.from_config(model.config, kv_dtype="fp32"), num_blocks, block_size
        )
        self.manager = BlockManager(num_blocks, block_size)
        self.eviction = PagedEviction(self.cache, self.manager, policy, budget=budget, unit=unit)
        self.adapter = bind_model(model, self.cache)

    def read(self, name: str, ids: Sequence[int]) -> torch.Tensor:
        """Compute the next tokens of a sequence, which begins with the first call; return the logits [n, vocabulary].

        A new sequence reuses the blocks of a shared prefix; those tokens are not computed, and have no logits.
        """
        if name in self.manager.sequences():
            start = self.manager.num_tokens(name)
            self.manager.append_tokens(name, ids)
        else:
            start = self.manager.allocate(name, ids).num_cached
            self.eviction.add(name)
            ids = ids[start:]
        positions = list(range(start, start + len(ids)))
        table, length = self.manager.block_table(name), self.manager.length(name)
        batch = Batch.build(self.cache, [[table]], [length], [len(ids)], positions)
        observer = self.eviction.observer([name], [len(ids)])
        logits = self.adapter.forward(
            list(ids), replace(batch, observer=observer, last=torch.arange(len(ids)))
        )
        self.manager.commit(name)
        return logits

    def tables(self) -> list[SequenceBlocks]:
        """Return the blocks of every sequence, as the block widget draws them."""
        manager = self.manager
        return [
            SequenceBlocks(str(name), tuple(manager.block_table(name)), manager.length(name))
            for name in manager.sequences()
        ]

    def found(self, texts: Iterable[Sequence[int]]) -> list[int]:
        """Return the free blocks that a new sequence with one of these texts would reuse."""
        pool, blocks = self.manager.pools[0], set()
        for ids in texts:
            blocks |= set(self.manager.match([*ids, 0]).tables[0])
        return sorted(block for block in blocks if pool.ref_count(block) == 0)

    def close(self) -> None:
        """Restore the model's own attention and free the cache's memory."""
        self.adapter.unbind()
        self.cache.close()
