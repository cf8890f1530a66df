"""Exercise 13.3: the most blocks that one sequence ever holds in a layer with a window."""

from collections.abc import Iterator

from minikv.course.exercise import Exercise, Misconception


def peak_blocks(prompt: int, new: int, window: int, block_size: int, chunk: int) -> int:
    return max(
        -(-end // block_size) - _first(start, window, block_size) for start, end in _steps(prompt, new, chunk)
    )


def _first(position: int, window: int, block_size: int) -> int:
    """Return the first block that the query at ``position`` reads."""
    return max(0, position - window + 1) // block_size


def _steps(prompt: int, new: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the positions that each step computes, start and end: chunks of the prompt, then one new token a step."""
    start, total = 0, prompt + new - 1
    while start < total:
        end = min(start + chunk, prompt) if start < prompt else start + 1
        yield start, end
        start = end


def peak_without_window(prompt, new, window, block_size, chunk):
    return -(-(prompt + new - 1) // block_size)


def peak_of_the_window(prompt, new, window, block_size, chunk):
    return min(-(-window // block_size), -(-(prompt + new - 1) // block_size))


def peak_after_the_step(prompt, new, window, block_size, chunk):
    """Frees blocks before the step that still reads them."""
    return max(
        -(-end // block_size) - _first(end, window, block_size) for _, end in _steps(prompt, new, chunk)
    )


def peak_token_by_token(prompt, new, window, block_size, chunk):
    return peak_blocks(prompt, new, window, block_size, 1)


def peak_in_one_piece(prompt, new, window, block_size, chunk):
    return peak_blocks(prompt, new, window, block_size, prompt)


def peak_of_full_blocks(prompt, new, window, block_size, chunk):
    """Counts the blocks that the tokens would fill if they began at a block's edge."""
    return max(
        -(-(end - max(0, start - window + 1)) // block_size) for start, end in _steps(prompt, new, chunk)
    )


def peak_of_the_last(prompt, new, window, block_size, chunk):
    """Returns the blocks held at the end."""
    start, end = list(_steps(prompt, new, chunk))[-1]
    return -(-end // block_size) - _first(start, window, block_size)


def peak_with_the_last_token(prompt, new, window, block_size, chunk):
    return peak_blocks(prompt, new + 1, window, block_size, chunk)


def peak_without_the_last_two(prompt, new, window, block_size, chunk):
    return peak_blocks(prompt, new - 1, window, block_size, chunk)


def draw_sequences(rng) -> list[dict]:
    """Draw prompts below and above the window; chunks below and above it; ends on, below and above a block's edge."""
    cases = []
    for i in range(60):
        block_size = (2, 4, 8, 16)[i % 4]
        window = rng.randint(block_size, 5 * block_size) + rng.choice([0, 1, -1])
        chunk = rng.randint(2, 3 * block_size + 1)
        new = rng.randint(2, 2 * block_size)
        if i % 3 == 0:  # Never longer than the window: the last token ends a block, or begins one.
            chunk = rng.randint(2, block_size)
            total = block_size * rng.randint(1, 3) + i // 3 % 2
            window = total + rng.randint(1, block_size)
            new = rng.randint(2, max(2, total - 1))
            prompt = max(1, total - new + 1)
        elif i % 3 == 1:
            prompt = window + rng.randint(0, 3) * chunk + rng.randint(1, 2 * block_size)
        else:  # a short prompt and a long answer
            prompt, new = rng.randint(2, block_size + 2), window + rng.randint(1, 3 * block_size)
        cases.append(
            {"prompt": prompt, "new": new, "window": window, "block_size": block_size, "chunk": chunk}
        )
    return cases


PEAK = Exercise(
    id="13.3",
    minutes=6,
    name="peak_blocks",
    signature=("prompt", "new", "window", "block_size", "chunk"),
    cases=draw_sequences,
    reference=peak_blocks,
    misconceptions=(
        Misconception("no_window", peak_without_window),
        Misconception("window_only", peak_of_the_window),
        Misconception("after_the_step", peak_after_the_step, within=("window_only",)),
        Misconception("token_by_token", peak_token_by_token),
        Misconception("in_one_piece", peak_in_one_piece),
        Misconception("full_blocks", peak_of_full_blocks),
        Misconception("at_the_end", peak_of_the_last, within=("token_by_token",)),
        Misconception("last_token_stored", peak_with_the_last_token),
        Misconception("last_two_not_stored", peak_without_the_last_two),
    ),
)
