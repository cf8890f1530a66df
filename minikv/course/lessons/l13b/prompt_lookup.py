"""Exercise 13b.1: prompt lookup, drafts from the sequence's own tokens."""

from minikv.course.exercise import Exercise, Misconception


def propose(tokens: list[int], most: int, longest: int, shortest: int) -> list[int]:
    return _propose(tokens, most, range(longest, shortest - 1, -1))


def _propose(tokens, most, sizes, *, oldest=False, itself=False, with_tail=False):
    for size in sizes:
        places = range(len(tokens) - size - (not itself), -1, -1)
        for place in reversed(places) if oldest else places:
            if tokens[place : place + size] == tokens[-size:]:
                start = place if with_tail else place + size
                return tokens[start : start + most]
    return []


def propose_from_itself(tokens, most, longest, shortest):
    return _propose(tokens, most, range(longest, shortest - 1, -1), itself=True)


def propose_oldest(tokens, most, longest, shortest):
    return _propose(tokens, most, range(longest, shortest - 1, -1), oldest=True)


def propose_shortest_first(tokens, most, longest, shortest):
    return _propose(tokens, most, range(shortest, longest + 1))


def propose_longest_only(tokens, most, longest, shortest):
    return _propose(tokens, most, [longest])


def propose_below_shortest(tokens, most, longest, shortest):
    return _propose(tokens, most, range(longest, 0, -1))


def propose_with_tail(tokens, most, longest, shortest):
    return _propose(tokens, most, range(longest, shortest - 1, -1), with_tail=True)


def propose_all(tokens, most, longest, shortest):
    return _propose(tokens, len(tokens), range(longest, shortest - 1, -1))


def propose_apart_from_the_end(tokens, most, longest, shortest):
    """Skips a match that overlaps with the end."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - 2 * n, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + most]
    return []


def propose_not_from_the_start(tokens, most, longest, shortest):
    """Skips a match at the beginning of the text."""
    return propose([0, *tokens[1:]], most, longest, shortest)


def draw_texts(rng) -> list[dict]:
    """Draw texts with the last words once, twice or never before, apart from the end or overlapping it."""
    cases = []
    for i in range(64):
        kind = i % 8
        shortest = 2 if kind == 0 else rng.choice([1, 1, 2])
        longest = shortest + rng.randint(1, 3)
        most = rng.randint(1, 4)
        tail = [50 + n for n in range(longest)]
        first = i % 16 == 9  # the only match is at the beginning of the text
        kept = shortest if first else rng.randint(shortest, longest)  # tokens of the tail that occur earlier

        def words(count):
            return [rng.randint(1, 40) for _ in range(count)]

        text = [] if first else words(rng.randint(2, 4 + i // 8))
        if kind == 0:
            text += [*tail[-1:], *words(3)]  # fewer than ``shortest``: no match
        elif kind < 5:
            text += [*tail[-kept:], *words(rng.randint(2, 6))]
        if kind in (2, 3):  # a second match: equally long, or shorter and more recent
            again = kept if kind == 2 else max(shortest, kept - 1)
            text += [*tail[-again:], *words(rng.randint(2, 5))]
        if kind == 4:  # the end repeats itself
            text = [*text, *tail, *tail]
        if kind == 6:  # one token again and again: the match overlaps with the end
            tail, most = [50] * (longest + 1), max(2, most)
        if kind == 7:  # more than ``longest`` tokens match at an older place, which does not count
            text += [49, *tail, *words(2), *tail, *words(rng.randint(2, 5)), 49]
        cases.append({"tokens": [*text, *tail], "most": most, "longest": longest, "shortest": shortest})
    return cases


LOOKUP = Exercise(
    id="13b.1",
    minutes=5,
    name="propose",
    signature=("tokens", "most", "longest", "shortest"),
    cases=draw_texts,
    reference=propose,
    misconceptions=(
        Misconception("itself", propose_from_itself),
        Misconception("oldest", propose_oldest),
        Misconception("shortest_first", propose_shortest_first),
        Misconception("longest_only", propose_longest_only, within=("itself",)),
        Misconception("below_shortest", propose_below_shortest),
        Misconception("with_tail", propose_with_tail),
        Misconception("all_of_it", propose_all),
        Misconception("no_overlap", propose_apart_from_the_end),
        Misconception("not_from_the_start", propose_not_from_the_start, within=("itself", "longest_only")),
    ),
)
