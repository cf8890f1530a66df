"""Lesson 14: which tokens can be evicted.

Exercises: ``peak_tokens, attention_mass, kept_tokens, evicting_step``.
"""

import random

import torch

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l14.attention_mass import MASS, add_mass
from minikv.course.lessons.l14.evicting_step import EVICT
from minikv.course.lessons.l14.kept_tokens import CHOOSE
from minikv.course.lessons.l14.peak_tokens import PEAKS
from minikv.eviction import Budget

BLOCK_SIZE = 16  # of the predictions


def _uniform(tokens: int, heads: int = 1) -> torch.Tensor:
    """Return [heads, tokens, tokens] float64: every query divides its attention equally among the tokens it sees."""
    seen = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    return (seen / seen.sum(-1, keepdim=True)).expand(heads, tokens, tokens)


def _rows(tokens: int, heads: int, kv_heads: int) -> int:
    """Return the sum of the scores of the first KV head, when each query's row sums to 1."""
    scores = add_mass(torch.zeros(kv_heads, 0, dtype=torch.float64), _uniform(tokens, heads))
    return round(float(scores[0].sum()))


def _head_start(tokens: int, middle: int, **_: object) -> float:
    """Return the first token's score divided by that of the token in the middle, under uniform attention."""
    [scores] = add_mass(torch.zeros(1, 0, dtype=torch.float64), _uniform(tokens))
    return float(scores[0] / scores[middle])


def _draw_middle(rng: random.Random) -> dict[str, object]:
    middle = rng.randint(2, 4)
    tokens = 2 * middle
    shares = [
        "1",
        *(f"1/{seen}" for seen in range(2, tokens + 1)),
    ]  # what each query gives to the first token
    return {
        "tokens": tokens,
        "middle": middle,
        "first": " + ".join(shares),
        "late": " + ".join(shares[middle:]),
    }


def _blocks(tokens: int, keep: int) -> int:
    """Return the blocks that a sequence still holds when each head has moved its own survivors to the lowest slots."""
    manager = BlockManager(num_blocks=tokens, block_size=BLOCK_SIZE)
    manager.allocate("S", range(tokens))
    manager.commit("S")
    manager.compact("S", keep)
    return len(manager.block_table("S"))


def _slice_bytes(tokens: int, keep: int) -> int:
    """Return the storage bytes behind a slice of the last ``keep`` of ``tokens`` bf16 keys of 8 KV heads."""
    keys = torch.empty(1, 8, tokens, 128, dtype=torch.bfloat16, device="meta")
    return keys[:, :, -keep:].untyped_storage().nbytes()


LESSON = Lesson(
    exercises=(PEAKS, MASS, CHOOSE, EVICT),
    predictions=(
        Prediction(
            "peak",
            lambda rng: {
                "n_sink": 4,
                "budget": 4 * rng.randint(20, 100),
                "n_recent": 8 * rng.randint(4, 16),
                "evict_every": rng.choice([4, 8, 16]),
            },
            how="{n_sink} + {budget} + {n_recent} + {evict_every} - 1",
            unit="tokens",
            answer=lambda **sizes: Budget(**sizes).peak_resident,
        ),
        Prediction(
            "group_mass",
            lambda rng: {
                "tokens": rng.randint(60, 200),
                "heads": 8 * rng.choice([1, 2]),
                "kv_heads": rng.choice([2, 4]),
            },
            how="{heads} // {kv_heads} * {tokens}",
            unit="rows",
            answer=_rows,
        ),
        Prediction(
            "head_start",
            _draw_middle,
            how="({first}) / ({late})",
            unit="times",
            answer=_head_start,
            tolerance=1.25,
        ),
        Prediction(
            "slice_bytes",
            lambda rng: {"tokens": 1024 * rng.randint(4, 32), "keep": 128 * rng.randint(2, 6)},
            how="8 * {tokens} * 128 * 2",
            unit="bytes",
            answer=_slice_bytes,
        ),
        Prediction(
            "blocks_left",
            lambda rng: {"tokens": rng.choice([3001, 5007, 7003]), "keep": 16 * rng.randint(80, 140) + 9},
            how="({keep} + 15) // 16",
            unit="blocks",
            answer=_blocks,
        ),
    ),
    questions=(
        "why_sums_favour_the_old",
        "why_a_window",
        "what_perplexity_hides",
        "why_one_table",
    ),
)
