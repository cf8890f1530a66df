"""Exercises 02b.1 and 02b.2: the bytes of a batch in a model with windowed layers, and the tokens that fit in bytes."""

import math
import random

from minikv.course import Exercise, Misconception

# 02b.1


def bytes_for(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return sum(kept(n, window) * token_bytes for n in lengths for window in windows)


def kept(num_tokens: int, window: int | None) -> int:
    """Return how many of ``num_tokens`` tokens transformers keeps in a layer with ``window`` in its config."""
    return num_tokens if window is None else min(num_tokens, window - 1)


def _as_if_full(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for(lengths, [None] * len(windows), token_bytes)


def _keeps_the_window(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for(lengths, [None if window is None else window + 1 for window in windows], token_bytes)


def _window_of_the_batch(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for([sum(lengths)], windows, token_bytes)


def _padded(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    return bytes_for([max(lengths)] * len(lengths), windows, token_bytes)


def _windowed(rng: random.Random, number: int) -> tuple[list[int | None], int]:
    """Draw one entry a layer (None: full), with at least one of each kind, and the bytes of a token in a layer."""
    window = rng.choice([4, 8, 16, 32]) * (1 + number // 10)
    windows = [None, window, *(rng.choice([None, window]) for _ in range(number // 6))]
    rng.shuffle(windows)
    return windows, rng.choice([64, 256, 1024, 4096])


def _batches(rng: random.Random) -> list[tuple]:
    cases = []
    for number in range(40):
        windows, token_bytes = _windowed(rng, number)
        edge = next(window for window in windows if window)
        near = [edge - 2, edge - 1, edge, edge + 1, rng.randint(1, edge), rng.randint(edge, 4 * edge)]
        lengths = [edge + 2 + number, *rng.sample(near, rng.randint(1, 3))]
        rng.shuffle(lengths)
        cases.append((lengths, windows, token_bytes))
    return cases


BYTES_FOR = Exercise(
    id="02b.1",
    minutes=5,
    name="bytes_for",
    signature=("lengths", "windows", "token_bytes"),
    cases=_batches,
    reference=bytes_for,
    misconceptions=(
        Misconception("no_windows", _as_if_full),
        Misconception("keeps_the_window", _keeps_the_window),
        Misconception("window_of_the_batch", _window_of_the_batch),
        Misconception("padded", _padded),
    ),
)


# 02b.2


def max_tokens(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Walk the windows from the narrowest to the widest. Between two of them, each token costs the same."""
    left, tokens = num_bytes // token_bytes, 0
    growing = len(windows)
    for window in sorted(window for window in windows if window is not None):
        step = window - 1 - tokens
        if left < step * growing:
            return tokens + left // growing
        left, tokens, growing = left - step * growing, window - 1, growing - 1
    return tokens + left // growing if growing else math.inf


def _full_layers_only(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    full = windows.count(None)
    return num_bytes // (full * token_bytes) if full else max_tokens(num_bytes, windows, token_bytes)


def _no_windows(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    return num_bytes // (len(windows) * token_bytes)


def _windows_first(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Reserves every window in full before the first token, even if the sequence never fills it."""
    full = windows.count(None)
    if not full:
        return max_tokens(num_bytes, windows, token_bytes)
    aside = token_bytes * sum(window - 1 for window in windows if window is not None)
    return max(0, num_bytes - aside) // (full * token_bytes)


def _never_infinite(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    """Returns the length that fills the widest window where the right answer is infinite."""
    most = max_tokens(num_bytes, windows, token_bytes)
    return most if math.isfinite(most) else max(window for window in windows if window is not None) - 1


def _budgets(rng: random.Random) -> list[tuple]:
    """Draw the bytes of some length, or a little less or more, on both sides of the windows.

    The last six cases have no full layer; their bytes are those of all windows full, or one less or more.
    """
    cases = []
    for number in range(48):
        windows, token_bytes = _windowed(rng, number % 24)
        widest = max(window for window in windows if window)
        if number % 4 == 3:  # a second, wider window
            windows.append(2 * widest)
        if number % 8 == 7:  # no full layer: past the windows, tokens are free
            windows = [window or widest for window in windows]
        length = rng.choice([widest // 2, widest - 1, widest, widest + 1, 3 * widest])
        exact = bytes_for([length], windows, token_bytes)
        near = rng.choice([0, 0, 1, -1, -(token_bytes // 2)])
        cases.append((max(0, exact + near), windows, token_bytes))
    for number in (0, 12):
        layers, token_bytes = _windowed(rng, number)
        widest = 2 * max(window for window in layers if window)
        windows = [window or widest for window in layers]
        every_window_full = bytes_for([widest], windows, token_bytes)
        cases += [(every_window_full + near, list(windows), token_bytes) for near in (-1, 0, 1)]
    return cases


MAX_TOKENS = Exercise(
    id="02b.2",
    minutes=7,
    name="max_tokens",
    signature=("num_bytes", "windows", "token_bytes"),
    cases=_budgets,
    reference=max_tokens,
    misconceptions=(
        Misconception("no_windows", _no_windows),
        Misconception("full_layers_only", _full_layers_only),
        Misconception("windows_first", _windows_first),
        Misconception("never_infinite", _never_infinite),
        Misconception("first_that_fails", lambda *case: max_tokens(*case) + 1),
    ),
)
