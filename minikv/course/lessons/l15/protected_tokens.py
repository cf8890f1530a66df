"""Exercise 15.3: sinks and recent tokens of a padded batch after evictions, when slots are in no order."""

from minikv.course.exercise import Exercise, Misconception

PADDING = -1


def protected(positions: list[list[int]], n_sink: int, n_recent: int) -> list[list[bool]]:
    return [[_sink(place, n_sink) or place > max(row) - n_recent for place in row] for row in positions]


def _sink(place: int, n_sink: int) -> bool:
    return 0 <= place < n_sink


def protected_columns(positions, n_sink, n_recent):
    """Protects the first and the last columns, whatever they hold."""
    return [
        [column < n_sink or column >= len(row) - n_recent for column in range(len(row))] for row in positions
    ]


def protected_real_columns(positions, n_sink, n_recent):
    """Skips padding, but takes columns for positions."""
    answer = []
    for row in positions:
        real = [column for column, place in enumerate(row) if place != PADDING]
        kept = {*real[:n_sink], *real[len(real) - n_recent :]}
        answer.append([column in kept for column in range(len(row))])
    return answer


def protected_padding(positions, n_sink, n_recent):
    """Protects padding too: -1 is smaller than n_sink."""
    return [[place < n_sink or place > max(row) - n_recent for place in row] for row in positions]


def protected_last_columns(positions, n_sink, n_recent):
    """Finds the sinks by position and the window by column."""
    return [
        [_sink(place, n_sink) or column >= len(row) - n_recent for column, place in enumerate(row)]
        for row in positions
    ]


def protected_first_columns(positions, n_sink, n_recent):
    """Finds the window by position and the sinks by column, where the padding is."""
    return [
        [column < n_sink or place > max(row) - n_recent for column, place in enumerate(row)]
        for row in positions
    ]


def protected_by_count(positions, n_sink, n_recent):
    """Takes the number of tokens for the newest position."""
    answer = []
    for row in positions:
        held = sum(place != PADDING for place in row)
        answer.append([_sink(place, n_sink) or place > held - 1 - n_recent for place in row])
    return answer


def protected_of_batch(positions, n_sink, n_recent):
    """Uses one window for all rows, that of the longest text."""
    newest = max(map(max, positions))
    return [[_sink(place, n_sink) or place > newest - n_recent for place in row] for row in positions]


def protected_one_more(positions, n_sink, n_recent):
    return [[_sink(place, n_sink) or place >= max(row) - n_recent for place in row] for row in positions]


def protected_sinks_only(positions, n_sink, n_recent):
    return [[_sink(place, n_sink) for place in row] for row in positions]


def draw_batches(rng) -> list[dict]:
    """Draw two to four rows of equal width: fresh prompts with padding, and caches after some evictions."""
    cases = []
    for i in range(40):
        n_sink, n_recent = rng.randint(2, 4), rng.randint(2, 4)
        width = 2 * n_sink + n_recent + 4 + i // 6
        rows = []
        for number in range(rng.randint(2, 4)):
            padding = (0, 2, n_sink + 1, 1)[(i + number) % 4]
            held = width - padding
            length = held if i % 4 == 0 else held + rng.randint(3, 12 + i)
            middle = rng.sample(range(n_sink, length - n_recent), held - n_sink - n_recent)
            row = [*range(n_sink), *sorted(middle), *range(length - n_recent, length)]
            if i % 4 in (2, 3):  # new tokens have taken the slots of evicted ones, in any order
                moved = row[n_sink:]
                rng.shuffle(moved)
                row[n_sink:] = moved
            if i % 4 == 3:
                rng.shuffle(row)
            rows.append([PADDING] * padding + row)
        cases.append({"positions": rows, "n_sink": n_sink, "n_recent": n_recent})
    return cases


PROTECT = Exercise(
    id="15.3",
    minutes=5,
    name="protected",
    signature=("positions", "n_sink", "n_recent"),
    cases=draw_batches,
    reference=protected,
    misconceptions=(
        Misconception("columns", protected_columns),
        Misconception("real_columns", protected_real_columns),
        Misconception("padding", protected_padding),
        Misconception("last_columns", protected_last_columns),
        Misconception("first_columns", protected_first_columns),
        Misconception("by_count", protected_by_count),
        Misconception("of_batch", protected_of_batch),
        Misconception("one_more", protected_one_more),
        Misconception("sinks_only", protected_sinks_only),
    ),
)
