"""Exercise 09.5: the blocks that lie entirely behind a window."""

from minikv.blocks import NULL_BLOCK
from minikv.blocks.prefix import first_block_needed
from minikv.course.exercise import Exercise, Misconception


def behind_window(block_table: list[int], num_tokens: int, window: int, block_size: int) -> list[int]:
    return _held(block_table[: first_block_needed(num_tokens, window, block_size)])


def _held(blocks: list[int]) -> list[int]:
    return [block for block in blocks if block != NULL_BLOCK]


def behind_cut_into(block_table, num_tokens, window, block_size):
    return _held(block_table[: -(-max(0, num_tokens - window + 1) // block_size)])


def behind_late(block_table, num_tokens, window, block_size):
    return _held(block_table[: max(0, num_tokens - window) // block_size])


def behind_before_the_start(block_table, num_tokens, window, block_size):
    """Forgets sequences shorter than the window: the slice's end is negative, so it counts from the table's end."""
    return _held(block_table[: (num_tokens - window + 1) // block_size])


def behind_null_again(block_table, num_tokens, window, block_size):
    return block_table[: first_block_needed(num_tokens, window, block_size)]


def behind_from_the_end(block_table, num_tokens, window, block_size):
    return _held(block_table[: max(0, len(block_table) - -(-window // block_size))])


def draw_windows(rng) -> list[dict]:
    """Draw windows that end on, below and above a block's edge; some blocks are given back already."""
    cases = []
    for i in range(48):
        block_size = (2, 4, 8, 16)[i % 4]
        window = rng.randint(2, 2 * block_size + i)
        # The first position that is still read lies on a block's edge, just before or behind it; or it is negative.
        low = block_size * rng.randint(1, 2 + i // 8) + rng.choice([0, 1, -1, block_size // 2])
        num_tokens = max(1, low + window - 1)
        if i % 6 == 5:
            num_tokens = low + block_size
            window = num_tokens + rng.randint(0, block_size + 1)
        table = rng.sample(range(80), -(-num_tokens // block_size))
        gone = first_block_needed(num_tokens, window, block_size)
        for place in range(rng.randint(0, gone)):
            table[place] = NULL_BLOCK
        case = {"block_table": table, "num_tokens": num_tokens, "window": window, "block_size": block_size}
        cases.append(case)
    return cases


WINDOW = Exercise(
    id="09.5",
    minutes=4,
    name="behind_window",
    signature=("block_table", "num_tokens", "window", "block_size"),
    cases=draw_windows,
    reference=behind_window,
    misconceptions=(
        Misconception("never", lambda block_table, num_tokens, window, block_size: []),
        Misconception("cuts_into_window", behind_cut_into),
        Misconception("one_too_late", behind_late),
        Misconception("before_the_start", behind_before_the_start),
        Misconception("given_back_twice", behind_null_again),
        Misconception("from_the_end", behind_from_the_end, within=("cuts_into_window",)),
    ),
)
