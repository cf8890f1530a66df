"""Exercise 02b.3: the KV heads that each tensor-parallel rank keeps."""

import random

from minikv.course import Exercise, Misconception
from minikv.course.exercise import Refused


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    if kv_heads % tp and tp % kv_heads:
        raise ValueError(f"{kv_heads} KV heads over {tp} ranks")
    return max(1, kv_heads // tp)


def _refuses_replication(kv_heads: int, tp: int) -> int:
    if kv_heads % tp:
        raise ValueError
    return kv_heads // tp


def _or_refused(fn, kv_heads: int, tp: int):
    """Return what ``fn`` returns, or that it refused with a ValueError, the right answer where no split exists."""
    try:
        return fn(kv_heads, tp)
    except ValueError:
        return Refused(ValueError)


def _ranks(rng: random.Random) -> list[tuple]:
    """Draw splits, replications, and pairs where neither number divides the other, a third each."""
    cases = []
    for number in range(16):
        few, times = rng.randint(2, 3 + number // 2), rng.randint(2, 4)
        cases += [(few * times, few), (few, few * times)]
        odd = rng.choice([tp for tp in range(2, 40) if few * times % tp and tp % (few * times)])
        cases.append((few * times, odd))
    return cases


KV_HEADS_PER_RANK = Exercise(
    id="02b.3",
    minutes=5,
    name="kv_heads_per_rank",
    signature=("kv_heads", "tp"),
    cases=_ranks,
    reference=kv_heads_per_rank,
    drive=_or_refused,
    misconceptions=(
        Misconception("no_replication", lambda kv_heads, tp: kv_heads // tp),
        Misconception("part_of_a_head", lambda kv_heads, tp: max(1, kv_heads // tp), within=("rounds_up",)),
        Misconception("rounds_up", lambda kv_heads, tp: -(-kv_heads // tp)),
        Misconception("refuses_replication", _refuses_replication),
    ),
)
