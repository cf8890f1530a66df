"""Exercise 15.4: after evictions, a new token's position, its slot and its length are three different numbers."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception


def next_tokens(
    text: list[int], new: list[int], evicted: list[list[int]], tables: list[list[list[int]]], block_size: int
) -> dict:
    return _next_tokens(text, new, evicted, tables, block_size)


def _next_tokens(
    text, new, evicted, tables, block_size, *, position=None, place=None, length=None, gone=None
) -> dict:
    """Each rule takes (tokens of the text before, tokens that are gone from this kind): of one new token each."""
    gone = gone or (lambda kind, i: evicted[kind][i])
    position = position or (lambda at, i: at)
    place = place or (lambda at, lost: at - lost)
    length = length or (lambda before, count, lost: before + count - lost)
    sequences, kinds = range(len(text)), range(len(tables))
    positions = [position(at, i) for i in sequences for at in range(text[i], text[i] + new[i])]
    slots = [
        [
            _slot(tables[kind][i], place(at, gone(kind, i)), block_size)
            for i in sequences
            for at in range(text[i], text[i] + new[i])
        ]
        for kind in kinds
    ]
    lengths = [[length(text[i], new[i], gone(kind, i)) for i in sequences] for kind in kinds]
    return {"positions": positions, "slots": slots, "lengths": lengths}


def _slot(table: list[int], place: int, size: int) -> int:
    """Past the table's end in its last block, so that a wrong place is a wrong slot and not an exception."""
    return table[min(max(place, 0) // size, len(table) - 1)] * size + place % size


def next_from_the_cache(text, new, evicted, tables, block_size):
    """The position is what is left in the cache."""
    return _next_tokens(text, new, evicted, tables, block_size, position=lambda at, i: at - evicted[0][i])


def next_from_the_last_kind(text, new, evicted, tables, block_size):
    """The position is what is left in the layers that forget."""
    return _next_tokens(text, new, evicted, tables, block_size, position=lambda at, i: at - evicted[-1][i])


def next_of_another_kind(text, new, evicted, tables, block_size):
    """Every kind of layer is taken to have lost what the first has."""
    return _next_tokens(text, new, evicted, tables, block_size, gone=lambda kind, i: evicted[0][i])


def next_of_another_sequence(text, new, evicted, tables, block_size):
    """Every sequence is taken to have lost what the first has."""
    return _next_tokens(text, new, evicted, tables, block_size, gone=lambda kind, i: evicted[kind][0])


def draw_steps(rng) -> list[dict]:
    """Two to four sequences, decodes and chunks, two kinds of layer that have lost different numbers of tokens."""
    cases = []
    for i in range(40):
        size = rng.choice([4, 8, 16])
        text: list[int] = []
        new: list[int] = []
        evicted: list[list[int]] = [[], []]
        tables: list[list[list[int]]] = [[], []]
        block = rng.randint(0, 3)
        for number in range(rng.randint(2, 4)):
            held = [rng.randint(size, 3 * size + i), rng.randint(2, 2 * size)]
            length = max(held) + rng.randint(3, 3 * size)
            if (i + number) % 5 == 0:  # the first kind has lost nothing
                held[0] = length
            text.append(length)
            new.append(rng.choice([1, 2, 5]) if i % 2 else 1)
            for kind in (0, 1):
                evicted[kind].append(length - held[kind])
                count = -(-(held[kind] + new[-1]) // size)
                table = list(range(block, block + count))
                block += count + rng.randint(0, 2)
                rng.shuffle(table)
                tables[kind].append(table)
        cases.append({"text": text, "new": new, "evicted": evicted, "tables": tables, "block_size": size})
    return cases


PLACES = Exercise(
    id="15.4",
    name="next_tokens",
    signature=("text", "new", "evicted", "tables", "block_size"),
    cases=draw_steps,
    reference=next_tokens,
    misconceptions=(
        Misconception("cache_length", next_from_the_cache),
        Misconception("shortest_length", next_from_the_last_kind),
        Misconception("slot_of_position", partial(_next_tokens, place=lambda at, lost: at)),
        Misconception(
            "length_of_text", partial(_next_tokens, length=lambda before, count, lost: before + count)
        ),
        Misconception("without_new", partial(_next_tokens, length=lambda before, count, lost: before - lost)),
        Misconception("other_kind", next_of_another_kind),
        Misconception("other_sequence", next_of_another_sequence),
        Misconception("one_late", partial(_next_tokens, position=lambda at, i: at + 1)),
        Misconception("one_slot_late", partial(_next_tokens, place=lambda at, lost: at - lost + 1)),
    ),
)
