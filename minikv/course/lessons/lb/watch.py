"""Appendix B: sequences that come and go at random on a block pool with a bug, until some rule notices it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minikv.blocks import BlockManager, BlockPool
from minikv.errors import MiniKVError, OutOfBlocksError


@dataclass(frozen=True)
class Watched:
    """The last ``step`` of a run, and what ended it: the ``rule``, an ``operation`` that failed, or neither."""

    step: int
    ended: Literal["rule", "operation", "neither"]


def watch(pool: type[BlockPool], rule: Callable[[BlockManager], bool], seed: int, steps: int = 60) -> Watched:
    """Run up to ``steps`` operations on 24 blocks of 4 tokens, and ask ``rule`` after each; True means that it holds.

    An operation forks a sequence, ends one or begins one. A pool that is full refuses a new sequence; that ends no run.
    """
    manager, rng = BlockManager(num_blocks=24, block_size=4), random.Random(seed)
    manager.pools[0].__class__ = pool
    for step in range(steps):
        names = manager.sequences()
        try:
            if names and rng.random() < 0.3:
                manager.fork(rng.choice(names), step)
            elif names and rng.random() < 0.4:
                manager.free(rng.choice(names))
            else:
                manager.allocate(step, [rng.randrange(99) for _ in range(rng.randint(2, 20))])
        except OutOfBlocksError:
            continue
        except MiniKVError:
            return Watched(step, "operation")
        if not rule(manager):
            return Watched(step, "rule")
    return Watched(steps - 1, "neither")
