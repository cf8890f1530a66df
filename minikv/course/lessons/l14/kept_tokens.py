"""Exercise 14.3: which tokens one KV head keeps: sinks, heavy hitters, and the recent window."""

from minikv.course.exercise import Exercise, Misconception


def choose(score: list[float], valid: list[bool], n_sink: int, n_recent: int, budget: int) -> list[int]:
    return _choose(score, _real(valid), n_sink, n_recent, budget)


def _real(valid: list[bool]) -> list[int]:
    return [column for column, real in enumerate(valid) if real]


def _choose(score, columns, n_sink, n_recent, budget, *, best=None) -> list[int]:
    """Return the kept ones of ``columns``; ``best`` orders the columns between sinks and window."""
    if len(columns) <= n_sink + budget + n_recent:
        return columns
    end = len(columns) - n_recent
    middle = sorted(columns[n_sink:end], key=best or (lambda column: (-score[column], column)))
    return sorted(columns[:n_sink] + middle[:budget] + columns[end:])


def choose_window_scored(score, valid, n_sink, n_recent, budget):
    """Lets the recent tokens compete with all others."""
    return _choose(score, _real(valid), n_sink, 0, budget + n_recent)


def choose_sinks_scored(score, valid, n_sink, n_recent, budget):
    return _choose(score, _real(valid), 0, n_recent, budget + n_sink)


def choose_overlapping(score, valid, n_sink, n_recent, budget):
    """Takes the best of all tokens, sinks and window among them, so a token may be chosen twice and fewer are kept."""
    columns = _real(valid)
    best = sorted(columns, key=lambda column: (-score[column], column))[:budget]
    return sorted({*columns[:n_sink], *best, *columns[max(0, len(columns) - n_recent) :]})


def choose_later_of_equals(score, valid, n_sink, n_recent, budget):
    return _choose(
        score, _real(valid), n_sink, n_recent, budget, best=lambda column: (-score[column], -column)
    )


def choose_lowest(score, valid, n_sink, n_recent, budget):
    return _choose(score, _real(valid), n_sink, n_recent, budget, best=lambda column: (score[column], column))


def choose_by_score(score, valid, n_sink, n_recent, budget):
    """Keeps the right tokens in the order of their scores."""
    kept = choose(score, valid, n_sink, n_recent, budget)
    return sorted(kept, key=lambda column: (-score[column], column))


def choose_budget_of_all(score, valid, n_sink, n_recent, budget):
    """Keeps ``budget`` tokens in all, sinks and window included."""
    return _choose(score, _real(valid), n_sink, n_recent, max(0, budget - n_sink - n_recent))


def choose_padding_too(score, valid, n_sink, n_recent, budget):
    return _choose(score, list(range(len(valid))), n_sink, n_recent, budget)


def choose_sinks_at_columns(score, valid, n_sink, n_recent, budget):
    """Takes the first columns of the row for its sinks, and drops those that are padding."""
    columns = _real(valid)
    if len(columns) <= n_sink + budget + n_recent:
        return columns
    sinks = [column for column in range(n_sink) if valid[column]]
    end = len(columns) - n_recent
    middle = sorted(columns[len(sinks) : end], key=lambda column: (-score[column], column))
    return sorted(sinks + middle[:budget] + columns[end:])


def choose_newest(score, valid, n_sink, n_recent, budget):
    """Keeps no heavy hitters: the window takes the whole budget."""
    return _choose(score, _real(valid), n_sink, n_recent + budget, 0)


def choose_all_as_the_last_none(score, valid, n_sink, n_recent, budget):
    """Uses ``columns[-0:]``, which is all columns."""
    return _real(valid) if n_recent == 0 else choose(score, valid, n_sink, n_recent, budget)


def draw_rows(rng) -> list[dict]:
    """Draw rows with and without left padding; equal scores; as many tokens as can be kept, one more, or many."""
    cases = []
    for i in range(48):
        n_sink, n_recent, budget = rng.randint(2, 4), rng.randint(2, 4), rng.randint(2, 4 + i // 12)
        if i % 12 == 4:  # no token is kept for being recent
            n_recent = 0
        capacity = n_sink + n_recent + budget
        tokens = capacity + (0, 1, 3, -1, 6, 4 + i // 4)[i % 6]
        score = [rng.choice((0.5, 1.0, 1.5, 2.0, 3.0)) for _ in range(tokens)]
        for column in range(tokens - n_recent, tokens):  # new tokens have not gathered any score yet
            score[column] = rng.choice((0.0, 0.25))
        score[rng.randrange(n_sink)] = 0.125  # A sink stays even if it gets hardly any attention.
        if i % 5 == 2:
            score[tokens - 1] = 9.0
        padding = (0, 0, 2, 5)[i % 4]
        cases.append(
            {
                "score": [rng.choice((0.0, 4.0)) for _ in range(padding)] + score,
                "valid": [False] * padding + [True] * tokens,
                "n_sink": n_sink,
                "n_recent": n_recent,
                "budget": budget,
            }
        )
    return cases


CHOOSE = Exercise(
    id="14.3",
    minutes=5,
    name="choose",
    signature=("score", "valid", "n_sink", "n_recent", "budget"),
    cases=draw_rows,
    reference=choose,
    misconceptions=(
        Misconception("window_scored", choose_window_scored),
        Misconception("sinks_scored", choose_sinks_scored),
        Misconception("overlapping", choose_overlapping),
        Misconception("later_of_equals", choose_later_of_equals),
        Misconception("lowest", choose_lowest),
        Misconception("by_score", choose_by_score),
        Misconception("budget_of_all", choose_budget_of_all),
        Misconception("padding_too", choose_padding_too),
        Misconception("sinks_at_columns", choose_sinks_at_columns),
        Misconception("newest", choose_newest),
        Misconception("minus_zero", choose_all_as_the_last_none),
    ),
)
