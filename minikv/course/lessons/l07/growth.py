"""Exercises 07.1 and 07.2: how a request is rounded, and how much a cache copies that grows with torch.cat."""

from minikv.course.exercise import Exercise, Misconception
from minikv.memory.allocator.rules import round_size, segment_size
from minikv.units import MIB

NO_DIVISIONS = (1,) * 16  # roundup_power2_divisions is off

# 07.1 ------------------------------------------------------------------------------------------------------


def rounded_and_segment(size: int) -> tuple[int, int]:
    rounded = round_size(size, NO_DIVISIONS)
    return rounded, segment_size(rounded)


def sizes_all_two_mib(size):
    rounded = round_size(size, NO_DIVISIONS)
    return rounded, -(-rounded // (2 * MIB)) * 2 * MIB


def sizes_multiple_pushed_up(size):
    rounded = (size // 512 + 1) * 512
    return rounded, segment_size(rounded)


def sizes_in_megabytes(size):
    rounded, mb = round_size(size, NO_DIVISIONS), 10**6
    if rounded <= mb:
        return rounded, 2 * mb
    return rounded, 20 * mb if rounded < 10 * mb else -(-rounded // (2 * mb)) * 2 * mb


def sizes_ten_is_twenty(size):
    rounded, segment = rounded_and_segment(size)
    return rounded, 20 * MIB if rounded == 10 * MIB else segment


def sizes_segment_of_request(size):
    return round_size(size, NO_DIVISIONS), segment_size(size)


def draw_sizes(rng) -> list[tuple[int]]:
    """Draw sizes on, just below and just above every border, and anywhere between them; small ones first."""
    borders = [512, 1024, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB, 96 * MIB]
    sizes = {rng.randint(2, 500), 512 * rng.randint(2, 2000)}
    for border in borders:
        sizes |= {border - rng.randint(1, 511), border, border + 1, border + rng.randint(512, border)}
    sizes |= {rng.randint(2 * MIB, 30 * MIB) for _ in range(8)}
    return [(size,) for size in sorted(sizes)]


SIZES = Exercise(
    id="07.1",
    minutes=6,
    name="rounded_and_segment",
    signature=("size",),
    cases=draw_sizes,
    reference=rounded_and_segment,
    misconceptions=(
        Misconception("all_two_mib", sizes_all_two_mib),
        Misconception("multiple_pushed_up", sizes_multiple_pushed_up),
        Misconception("megabytes", sizes_in_megabytes),
        Misconception("ten_is_twenty", sizes_ten_is_twenty),
        Misconception("segment_of_request", sizes_segment_of_request, within=("ten_is_twenty",)),
    ),
)

# 07.2 ------------------------------------------------------------------------------------------------------


def bytes_copied(batch: int, prompt: int, steps: int, token_bytes: int) -> int:
    """Return the bytes moved. torch.cat reads n - 1 old tokens and a new one, and writes n, in every row."""
    return sum(2 * n * batch * token_bytes for n in range(prompt + 1, prompt + steps + 1))


def copied_linear(batch, prompt, steps, token_bytes):
    return 2 * batch * steps * token_bytes


def copied_one_short(batch, prompt, steps, token_bytes):
    return sum(2 * n * batch * token_bytes for n in range(prompt, prompt + steps))


def copied_one_way(batch, prompt, steps, token_bytes):
    return bytes_copied(batch, prompt, steps, token_bytes) // 2


def copied_without_prompt(batch, prompt, steps, token_bytes):
    return bytes_copied(batch, 0, steps, token_bytes)


def copied_at_full_length(batch, prompt, steps, token_bytes):
    return 2 * batch * steps * (prompt + steps) * token_bytes


def draw_growth(rng) -> list[dict]:
    return [
        {
            "batch": 2 + i % 5,
            "prompt": 16 * (1 + i // 4) + rng.choice([-1, 0, 1, 7]),
            "steps": 2 + i + rng.randint(0, 3),
            "token_bytes": rng.choice([512, 1024, 4096, 131_072]),
        }
        for i in range(36)
    ]


COPIED = Exercise(
    id="07.2",
    minutes=3,
    name="bytes_copied",
    signature=("batch", "prompt", "steps", "token_bytes"),
    cases=draw_growth,
    reference=bytes_copied,
    misconceptions=(
        Misconception("linear", copied_linear),
        Misconception("one_short", copied_one_short),
        Misconception("one_way", copied_one_way),
        Misconception("without_prompt", copied_without_prompt),
        Misconception("at_full_length", copied_at_full_length),
    ),
)
