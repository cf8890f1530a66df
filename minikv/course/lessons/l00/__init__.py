"""Lesson 00: units, and how many blocks a sequence fills."""

from random import Random

from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction

BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS = {**DECIMAL, **BINARY}


def bytes_of(size: str) -> int:
    number, unit = size.split()
    return int(float(number) * UNITS[unit])


def _read_as(size: str, factors: dict[str, int]) -> int:
    """Return the bytes of ``size`` if a unit means the same with and without its ``i``."""
    number, unit = size.split()
    return int(float(number) * next(factors[name] for name in (unit, _twin(unit)) if name in factors))


def _twin(unit: str) -> str:
    return unit.replace("i", "") if "i" in unit else f"{unit[0]}i{unit[1:]}"


def _whole(size: str) -> int:
    number, unit = size.split()
    return int(number) * UNITS[unit]  # int("1.5") raises


def _swapped(size: str) -> int:
    number, unit = size.split()
    return int(float(number) * UNITS[unit if unit == "B" else _twin(unit)])


def draw_sizes(rng: Random) -> list[tuple[str]]:
    """Draw the smallest size of each unit, then sizes as on boxes and in logs, some of them with a half."""
    small = [(f"{rng.randint(1, 9)} {unit}",) for unit in UNITS]
    labels = [
        (f"{rng.choice([16, 24, 40, 48, 80, 96, 141, 192])} {rng.choice(['GB', 'GiB'])}",) for _ in range(12)
    ]
    printed = [(f"{rng.randint(1, 400) / 2} {rng.choice(['MB', 'MiB', 'GB', 'GiB'])}",) for _ in range(16)]
    return [*small, *labels, *printed]


def blocks_needed(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def draw_lengths(rng: Random) -> list[tuple[int, int]]:
    """Lengths on, below and above block multiples; one sequence is empty."""
    cases = [(0, 16)]
    for index in range(40):
        block_size = rng.choice([4, 8, 16, 32, 128])
        edge = block_size * rng.randint(1, 1 + index)
        cases.append((edge + (index % 3 - 1) * rng.randint(1, block_size - 1), block_size))
    return cases


def empty_slots(lengths: list[int], block_size: int) -> int:
    return sum(blocks_needed(length, block_size) * block_size - length for length in lengths)


def draw_batches(rng: Random) -> list[tuple[list[int], int]]:
    """Batches of at least two sequences, of different lengths, at least one of them on a block multiple."""
    cases = []
    for index in range(36):
        block_size = rng.choice([4, 8, 16, 32])
        count = 2 + index // 6
        lengths = [rng.randint(1, block_size * (2 + index // 3)) for _ in range(count)]
        lengths[rng.randrange(count)] = block_size * rng.randint(1, 2 + index // 3)
        cases.append((lengths, block_size))
    return cases


def slot_of(position: int, block_table: list[int], block_size: int) -> int:
    return block_table[position // block_size] * block_size + position % block_size


def draw_positions(rng: Random) -> list[tuple[int, list[int], int]]:
    """A position anywhere in a sequence, its first and its last included; no table is in the pool's order."""
    cases = []
    for index in range(36):
        block_size = rng.choice([4, 8, 16])
        table = rng.sample(range(1, 60), 2 + index // 4)
        last = len(table) * block_size - 1
        position = [rng.randint(0, last), block_size * rng.randint(0, len(table) - 1), last][index % 3]
        cases.append((position, table, block_size))
    return cases


LESSON = Lesson(
    exercises=(
        Exercise(
            id="00.1",
            minutes=4,
            name="bytes_of",
            signature=("size",),
            cases=draw_sizes,
            reference=bytes_of,
            misconceptions=(
                Misconception("always_binary", lambda size: _read_as(size, BINARY), within=("swapped",)),
                Misconception("always_decimal", lambda size: _read_as(size, DECIMAL), within=("swapped",)),
                Misconception("swapped", _swapped, within=("always_binary",)),
                Misconception("whole_numbers", _whole),
            ),
        ),
        Exercise(
            id="00.2",
            minutes=3,
            name="blocks_needed",
            signature=("num_tokens", "block_size"),
            cases=draw_lengths,
            reference=blocks_needed,
            misconceptions=(
                Misconception("rounds_down", lambda num_tokens, block_size: num_tokens // block_size),
                Misconception(
                    "rounds",
                    lambda num_tokens, block_size: round(num_tokens / block_size),
                    within=("rounds_down",),
                ),
                Misconception("always_one_more", lambda num_tokens, block_size: num_tokens // block_size + 1),
                Misconception(
                    "at_least_one",
                    lambda num_tokens, block_size: max(1, blocks_needed(num_tokens, block_size)),
                    within=("always_one_more",),
                ),
            ),
        ),
        Exercise(
            id="00.3",
            minutes=3,
            name="empty_slots",
            signature=("lengths", "block_size"),
            cases=draw_batches,
            reference=empty_slots,
            misconceptions=(
                Misconception(
                    "counts_blocks",
                    lambda lengths, block_size: sum(blocks_needed(n, block_size) for n in lengths),
                ),
                Misconception("one_sequence", lambda lengths, block_size: -sum(lengths) % block_size),
                Misconception("used_slots", lambda lengths, block_size: sum(n % block_size for n in lengths)),
                Misconception(
                    "full_block_counts",
                    lambda lengths, block_size: sum(block_size - n % block_size for n in lengths),
                ),
                Misconception(
                    "pads_to_longest",
                    lambda lengths, block_size: (
                        blocks_needed(max(lengths), block_size) * block_size * len(lengths) - sum(lengths)
                    ),
                ),
            ),
        ),
        Exercise(
            id="00.4",
            minutes=3,
            name="slot_of",
            signature=("position", "block_table", "block_size"),
            cases=draw_positions,
            reference=slot_of,
            misconceptions=(
                Misconception("no_table", lambda position, block_table, block_size: position),
                Misconception(
                    "block_is_slot",
                    lambda position, block_table, block_size: (
                        block_table[position // block_size] + position % block_size
                    ),
                ),
                Misconception(
                    "block_start",
                    lambda position, block_table, block_size: (
                        block_table[position // block_size] * block_size
                    ),
                ),
                Misconception(
                    "counts_from_one",
                    lambda position, block_table, block_size: slot_of(position - 1, block_table, block_size),
                ),
            ),
        ),
    ),
    predictions=(
        Prediction(
            "label_gb",
            lambda rng: {"gb": rng.choice([24, 40, 48, 80, 96, 141, 192])},
            how="{gb} * 10**9 / 2**30",
            unit="GiB",
            answer=lambda gb: gb * 10**9 / 2**30,
            tolerance=1.02,
        ),
        Prediction(
            "tokens_cached",
            lambda rng: {"prompt": rng.randint(11, 21), "runs": rng.randint(30, 40)},
            how="{prompt} + ({runs} - 1)",
            unit="tokens",
            answer=lambda prompt, runs: prompt + runs - 1,
        ),
        Prediction(
            "blocks_for",
            lambda rng: {"num_tokens": rng.randint(1000, 9999)},
            how="({num_tokens} + 15) // 16",
            unit="blocks",
            answer=lambda num_tokens: blocks_needed(num_tokens, 16),
        ),
    ),
    questions=("why_blocks", "which_gb", "what_is_free"),
)
