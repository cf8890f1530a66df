"""Exercises A.1 to A.5: a block's bytes, units, a sum of terms, a pool and its longest sequence, recomputed."""

import math
from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception

BF16 = 2  # bytes an element


def block_bytes(layers: int, block_size: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    return 2 * layers * block_size * kv_heads * head_dim * itemsize


def draw_blocks(rng) -> list[tuple]:
    # No itemsize is 1 and no two factors are equal, so that a dropped factor can be named.
    return [
        (
            3 + i + rng.randint(0, 3),
            rng.choice([8, 16, 32]),
            rng.choice([5, 6, 7, 10]),
            rng.choice([64, 96, 128]),
            rng.choice([2, 4]),
        )
        for i in range(40)
    ]


BLOCK = Exercise(
    id="A.1",
    minutes=4,
    name="block_bytes",
    signature=("layers", "block_size", "kv_heads", "head_dim", "itemsize"),
    cases=draw_blocks,
    reference=block_bytes,
    misconceptions=(
        Misconception("forgot_itemsize", lambda *args: block_bytes(*args) // args[4]),
        Misconception("one_layer", lambda *args: block_bytes(*args) // args[0]),
        Misconception("forgot_v", lambda *args: block_bytes(*args) // 2, within=("itemsize_is_two",)),
        Misconception(
            "itemsize_is_two", lambda *args: block_bytes(*args) // args[4] * BF16, within=("forgot_v",)
        ),
    ),
)

DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
FACTORS = DECIMAL | BINARY


def convert(value: float, unit: str, to: str) -> float:
    return value * FACTORS[unit] / FACTORS[to]


def _convert_with(factor_of: Callable[[str], int]) -> Callable:
    return lambda value, unit, to: value * factor_of(unit) / factor_of(to)


def draw_units(rng) -> list[tuple]:
    pairs = [(a, b) for a in FACTORS for b in FACTORS if a != b]
    cases = [(float(rng.randint(1, 900)), a, b) for a, b in pairs]
    # Small numbers first: the smallest counterexample should be easy to compute in the head.
    return sorted(cases)


CONVERT = Exercise(
    id="A.2",
    minutes=5,
    name="convert",
    signature=("value", "unit", "to"),
    cases=draw_units,
    reference=convert,
    misconceptions=(
        Misconception(
            "all_binary",
            _convert_with(lambda unit: 1 if unit == "B" else BINARY[unit[0] + "iB"]),
        ),
        Misconception(
            "all_decimal",
            _convert_with(lambda unit: DECIMAL[unit.replace("i", "")]),
        ),
        Misconception("upside_down", lambda value, unit, to: value * FACTORS[to] / FACTORS[unit]),
        Misconception(
            "mixed",
            _convert_with(lambda unit: {"MB": 1_024_000, "GB": 1_024_000_000}.get(unit, FACTORS[unit])),
        ),
    ),
)


def audit(terms: dict[str, int], claimed: int) -> int:
    return claimed - sum(terms.values())


def draw_audits(rng) -> list[tuple]:
    names = ("limit", "weights", "activations", "context", "cache", "workspace", "used", "peak", "current")
    cases = []
    for i in range(40):
        chosen = rng.sample(names, 2 + i % 6)
        terms = {name: rng.randint(1, 20 + 10 * i) * rng.choice([1, 1, -1]) for name in chosen}
        terms[chosen[0]] = abs(terms[chosen[0]]) + 1
        terms[chosen[-1]] = -abs(terms[chosen[-1]])
        # Every fourth document is right: the audit must return 0 for it.
        slip = 0 if i % 4 == 3 else rng.choice([-1, 1]) * rng.randint(1, 30)
        cases.append((terms, sum(terms.values()) + slip))
    return cases


AUDIT = Exercise(
    id="A.3",
    minutes=3,
    name="audit",
    signature=("terms", "claimed"),
    cases=draw_audits,
    reference=audit,
    misconceptions=(
        Misconception("reversed", lambda terms, claimed: sum(terms.values()) - claimed),
        Misconception(
            "unsigned", lambda terms, claimed: abs(claimed - sum(terms.values())), within=("reversed",)
        ),
        Misconception("signs_lost", lambda terms, claimed: claimed - sum(map(abs, terms.values()))),
    ),
)


def num_blocks(total: int, percent: int, used: int, peak: int, current: int, block: int) -> int:
    return max(0, total * percent // 100 - used - peak + current) // block


def draw_pools(rng) -> list[tuple]:
    cases = []
    for i in range(48):
        block = rng.randint(3, 9) * (1 + i)
        weights = rng.randint(50, 100) * block
        activations = rng.randint(10, 40) * block
        outside = rng.randint(3, 8) * block  # CUDA context, other processes: in used, not in current
        # Every sixth model is too large for its GPU.
        spare = -rng.randint(2, 9) * block if i % 6 == 5 else rng.randint(20, 90) * block + rng.randint(1, 2)
        percent = rng.choice([70, 80, 90, 95])
        needed = weights + outside + activations
        if i % 3 == 1:
            # Less than a byte below a whole block: a limit rounded up adds a block that does not fit.
            total = ((needed + spare // block * block) * 100 - 1) // percent
        else:
            total = -(-(needed + spare) * 100 // percent)
        cases.append((total, percent, weights + outside, weights + activations, weights, block))
    return cases


POOL = Exercise(
    id="A.4",
    minutes=5,
    name="num_blocks",
    signature=("total", "percent", "used", "peak", "current", "block"),
    cases=draw_pools,
    reference=num_blocks,
    misconceptions=(
        Misconception(
            "peak_as_increase",
            lambda total, percent, used, peak, current, block: num_blocks(
                total, percent, used, peak - current, current, block
            ),
        ),
        Misconception(
            "no_current",
            lambda total, percent, used, peak, current, block: num_blocks(
                total, percent, used, peak, 0, block
            ),
        ),
        Misconception(
            "short_form",
            lambda total, percent, used, peak, current, block: num_blocks(total, percent, 0, peak, 0, block),
        ),
        Misconception(
            "below_zero",
            lambda total, percent, used, peak, current, block: (
                (total * percent // 100 - used - peak + current) // block
            ),
        ),
        Misconception(
            "rounds_up",
            lambda total, percent, used, peak, current, block: num_blocks(
                -(-total * percent // 100), 100, used, peak, current, block
            ),
        ),
        Misconception(
            "percent_of_free",
            lambda total, percent, used, peak, current, block: num_blocks(
                total - used, percent, 0, peak, current, block
            ),
        ),
    ),
)


def longest(num_blocks: int, block_size: int, sequences: int, positions: int) -> int:
    return min(num_blocks // sequences * block_size, positions)


def draw_longest(rng) -> list[tuple]:
    cases = []
    for i in range(48):
        sequences, block_size = rng.randint(2, 6), rng.choice([8, 16, 32])
        # Most cases have blocks that do not divide evenly; a few have none of them.
        over = 0 if i % 8 == 4 else rng.randint(1, sequences - 1)
        blocks = sequences * rng.randint(2 + i, 9 + 2 * i) + over
        share = blocks // sequences * block_size
        factor = rng.choice([0.5, 3]) if i % 2 else 8
        cases.append((blocks, block_size, sequences, math.ceil(share * factor)))
    return cases


LONGEST = Exercise(
    id="A.5",
    minutes=4,
    name="longest",
    signature=("num_blocks", "block_size", "sequences", "positions"),
    cases=draw_longest,
    reference=longest,
    misconceptions=(
        Misconception(
            "whole_pool",
            lambda num_blocks, block_size, sequences, positions: min(num_blocks * block_size, positions),
        ),
        Misconception(
            "no_positions",
            lambda num_blocks, block_size, sequences, positions: num_blocks // sequences * block_size,
            within=("larger_limit",),
        ),
        Misconception(
            "part_of_a_block",
            lambda num_blocks, block_size, sequences, positions: min(
                num_blocks * block_size // sequences, positions
            ),
        ),
        Misconception(
            "a_block_kept",
            lambda num_blocks, block_size, sequences, positions: longest(
                num_blocks - 1, block_size, sequences, positions
            ),
        ),
        Misconception(
            "larger_limit",
            lambda num_blocks, block_size, sequences, positions: max(
                num_blocks // sequences * block_size, positions
            ),
        ),
    ),
)
