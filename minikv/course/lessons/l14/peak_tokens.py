"""Exercise 14.1: how many tokens a layer with eviction holds, within a forward and between two steps."""

from collections.abc import Iterator

from minikv.course.exercise import Exercise, Misconception


def peaks(
    prompt: int, new: int, n_sink: int, budget: int, n_recent: int, evict_every: int, chunk: int
) -> tuple[int, int]:
    return _peaks(steps(prompt, new, chunk), n_sink + budget + n_recent, evict_every)


def steps(prompt: int, new: int, chunk: int) -> Iterator[int]:
    """Yield the tokens of each step: the prompt in chunks, then one a step; the last token is never stored."""
    for start in range(0, prompt, chunk):
        yield min(chunk, prompt - start)
    for _ in range(new - 1):
        yield 1


def _peaks(steps, capacity: int, evict_every: int) -> tuple[int, int]:
    held = inside = between = 0
    for tokens in steps:
        held += tokens
        inside = max(inside, held)
        if held >= capacity + evict_every:
            held = capacity
        between = max(between, held)
    return inside, between


def peaks_budget_is_all(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return _peaks(steps(prompt, new, chunk), budget, evict_every)


def peaks_without_window(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return _peaks(steps(prompt, new, chunk), n_sink + budget, evict_every)


def peaks_every_step(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return _peaks(steps(prompt, new, chunk), n_sink + budget + n_recent, 1)


def peaks_one_late(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    """Evicts only above capacity + evict_every."""
    return _peaks(steps(prompt, new, chunk), n_sink + budget + n_recent, evict_every + 1)


def peaks_from_the_formula(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    """Uses the bound for every text, however short, and as if a prompt came token by token."""
    between = n_sink + budget + n_recent + evict_every - 1
    return between + 1, between


def peaks_in_one_piece(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return _peaks(steps(prompt, new, prompt), n_sink + budget + n_recent, evict_every)


def peaks_token_by_token(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return _peaks(steps(prompt, new, 1), n_sink + budget + n_recent, evict_every)


def peaks_after_only(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    """Returns what is left after a step for both numbers."""
    _, between = peaks(prompt, new, n_sink, budget, n_recent, evict_every, chunk)
    return between, between


def peaks_last_token_stored(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    return peaks(prompt, new + 1, n_sink, budget, n_recent, evict_every, chunk)


def draw_texts(rng) -> list[dict]:
    """Draw texts below the capacity, just at it and far beyond it; prompts in one chunk and in many."""
    cases = []
    for i in range(60):
        kept = {
            "n_sink": rng.randint(2, 5),
            "budget": rng.randint(6, 12 + i),
            "n_recent": rng.randint(2, 8 + i),
        }
        evict_every = (1, 2, 8, 3, 16)[i % 5]
        limit = sum(kept.values()) + evict_every
        kind = i % 6
        if kind == 0:  # the text ends one token below, at, or above the limit
            prompt = rng.randint(4, limit - 3)
            new = limit - prompt + rng.randint(0, 2)
        elif kind == 1:  # short: nothing is ever evicted
            prompt, new = rng.randint(2, 6), rng.randint(2, 4)
        else:
            prompt, new = rng.randint(limit // 2, 3 * limit), rng.randint(2, 2 * limit)
        chunk = prompt if kind == 2 else rng.randint(2, max(3, prompt // 2))
        cases.append({"prompt": prompt, "new": new, **kept, "evict_every": evict_every, "chunk": chunk})
    return cases


PEAKS = Exercise(
    id="14.1",
    minutes=7,
    name="peaks",
    signature=("prompt", "new", "n_sink", "budget", "n_recent", "evict_every", "chunk"),
    cases=draw_texts,
    reference=peaks,
    misconceptions=(
        Misconception("budget_is_all", peaks_budget_is_all),
        Misconception("no_window", peaks_without_window),
        Misconception("every_step", peaks_every_step),
        Misconception("one_late", peaks_one_late),
        Misconception("formula", peaks_from_the_formula),
        Misconception("in_one_piece", peaks_in_one_piece),
        Misconception("token_by_token", peaks_token_by_token, within=("formula",)),
        Misconception("after_only", peaks_after_only),
        Misconception("last_token_stored", peaks_last_token_stored),
    ),
)
