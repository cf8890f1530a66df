"""Lesson 15: eviction from a cache with one latent a token, in blocks.

Exercises: ``freed_blocks, compact_blocks, protected_tokens, positions``.
"""

import random

import torch

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l15.compact_blocks import COMPACT
from minikv.course.lessons.l15.freed_blocks import FREED
from minikv.course.lessons.l15.positions import PLACES
from minikv.course.lessons.l15.protected_tokens import PROTECT
from minikv.eviction.paged.runner import fill_holes
from minikv.plan import CacheSpec

BLOCK_SIZE = 16  # of the predictions


def _freed_bytes(tokens: int) -> int:
    """Return the bytes of ``tokens`` tokens of DeepSeek-V3 in bf16, in all layers."""
    return tokens * CacheSpec.from_config("DeepSeek-V3", layout="hf", kv_dtype="bf16").slope()


def _moves(length: int, keep: int, front: int) -> int:
    """Return how many survivors move when ``front`` of them lie among the first ``keep`` slots."""
    kept = torch.cat((torch.arange(front), torch.arange(length - keep + front, length)))
    moves = fill_holes(kept.view(1, 1, -1), length)
    return int((moves.src != moves.dst).sum())


def _draw_moves(rng: random.Random) -> dict[str, object]:
    keep = rng.randint(60, 200)
    return {"length": 3 * keep + rng.randint(1, 40), "keep": keep, "front": rng.randint(keep // 4, keep // 2)}


def _pool_gains(length: int, shared: int, keep: int) -> int:
    """Return the blocks that the pool gains when one of two sequences with a shared prefix evicts."""
    manager = BlockManager(num_blocks=length, block_size=BLOCK_SIZE)
    for name, end in (("A", 0), ("B", 1)):
        manager.allocate(name, [*range(shared), *[length + end] * (length - shared)])
        manager.commit(name)
    before = manager.pools[0].num_used
    manager.compact("A", keep)
    return before - manager.pools[0].num_used


def _draw_shared(rng: random.Random) -> dict[str, object]:
    shared, keep = BLOCK_SIZE * rng.randint(180, 260), BLOCK_SIZE * rng.randint(20, 60)
    return {"length": shared + BLOCK_SIZE * rng.randint(200, 280), "shared": shared, "keep": keep}


LESSON = Lesson(
    exercises=(FREED, COMPACT, PROTECT, PLACES),
    predictions=(
        Prediction(
            "freed_bytes",
            lambda rng: {"tokens": 1000 * rng.randint(10, 90)},
            how="{tokens} * 61 * (512 + 64) * 2",
            unit="bytes",
            answer=_freed_bytes,
        ),
        Prediction(
            "survivors_moved",
            _draw_moves,
            how="{keep} - {front}",
            unit="tokens",
            answer=_moves,
        ),
        Prediction(
            "pool_gains",
            _draw_shared,
            how="({length} - {shared}) // 16 - {keep} // 16",
            unit="blocks",
            answer=_pool_gains,
        ),
    ),
    questions=(
        "why_no_heads",
        "what_a_shift_turns",
        "why_sharing_costs",
    ),
)
