"""Lesson 13: what fewer bytes cost.

Exercises: ``quantized_pool, int8_rows, window_peak``.
"""

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l13.int8_rows import ROWS
from minikv.course.lessons.l13.quantized_pool import FIT
from minikv.course.lessons.l13.window_peak import PEAK
from minikv.plan import CacheSpec, LayerSpec

BLOCK_SIZE = 16  # of the predictions


def _int8_tokens(tokens: int, head_dim: int) -> int | float:
    """Return the int8 tokens that fit in the bytes of ``tokens`` bf16 tokens, for any layers and heads."""
    plain = CacheSpec((LayerSpec("full", 8, head_dim, head_dim, itemsize=2),) * 32)
    int8 = CacheSpec((LayerSpec("full", 8, head_dim, head_dim, itemsize=1, scale_bytes=4),) * 32)
    return int8.max_tokens(plain.bytes_for(tokens))


def _levels(largest: int) -> int:
    """Return how many int8 numbers stand for the values between -1 and 1 in a row with maximum ``largest``."""
    import torch

    from minikv.cache import find_codec

    others = torch.linspace(-1, 1, 4001)
    data, _ = find_codec("int8").encode(torch.cat([torch.tensor([float(largest)]), others]))
    return len(data[1:].unique())


def _held(window: int, chunk: int, chunks: int) -> int:
    """Return the most blocks ever taken from a windowed pool: a prompt in chunks, then a long answer."""
    manager = BlockManager([KVCacheGroup(1000, window)], BLOCK_SIZE)
    most = 0
    for number in range(chunks):
        tokens = list(range(number * chunk, (number + 1) * chunk))
        if number:
            manager.append_tokens("S", tokens)
        else:
            manager.allocate("S", tokens)
        most = max(most, manager.stats().pools[0].used)
        manager.commit("S")
    for token in range(2 * window):
        manager.append("S", token)
        most = max(most, manager.stats().pools[0].used)
        manager.commit("S")
    return most


LESSON = Lesson(
    exercises=(FIT, ROWS, PEAK),
    predictions=(
        Prediction(
            "int8_tokens",
            lambda rng: {"tokens": 1000 * rng.randint(100, 300), "head_dim": rng.choice([64, 128, 256])},
            how="{tokens} * 2 * {head_dim} // ({head_dim} + 4)",
            unit="tokens",
            answer=_int8_tokens,
        ),
        Prediction(
            "levels",
            lambda rng: {"largest": rng.choice([5, 6, 7, 8, 9, 11, 12])},
            how="2 * round(127 / {largest}) + 1",
            unit="values",
            answer=_levels,
        ),
        Prediction(
            "window_blocks",
            lambda rng: {
                "window": 16 * rng.randint(8, 40),
                "chunk": 16 * rng.randint(8, 32),
                "chunks": rng.randint(7, 9),
            },
            how="({window} + {chunk}) // 16",
            unit="blocks",
            answer=_held,
        ),
    ),
    questions=("why_not_half", "why_recall_is_silent", "what_a_window_holds"),
)
