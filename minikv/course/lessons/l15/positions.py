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
    """Apply the rules to each new token. They take the tokens before it, or those evicted from this KV cache group."""
    gone = gone or (lambda group, i: evicted[group][i])
    position = position or (lambda at, i: at)
    place = place or (lambda at, lost: at - lost)
    length = length or (lambda before, count, lost: before + count - lost)
    sequences, groups = range(len(text)), range(len(tables))
    positions = [position(at, i) for i in sequences for at in range(text[i], text[i] + new[i])]
    slots = [
        [
            _slot(tables[group][i], place(at, gone(group, i)), block_size)
            for i in sequences
            for at in range(text[i], text[i] + new[i])
        ]
        for group in groups
    ]
    lengths = [[length(text[i], new[i], gone(group, i)) for i in sequences] for group in groups]
    return {"positions": positions, "slots": slots, "lengths": lengths}


def _slot(table: list[int], place: int, size: int) -> int:
    """Return the slot, past the table's end one of the last block: a wrong place is a wrong slot, no exception."""
    return table[min(max(place, 0) // size, len(table) - 1)] * size + place % size


def next_from_the_cache(text, new, evicted, tables, block_size):
    """Counts the tokens left in the cache as the position."""
    return _next_tokens(text, new, evicted, tables, block_size, position=lambda at, i: at - evicted[0][i])


def next_from_the_last_group(text, new, evicted, tables, block_size):
    """Counts the tokens left in the evicting layers as the position."""
    return _next_tokens(text, new, evicted, tables, block_size, position=lambda at, i: at - evicted[-1][i])


def next_of_another_group(text, new, evicted, tables, block_size):
    """Uses the first group's evicted tokens for every KV cache group."""
    return _next_tokens(text, new, evicted, tables, block_size, gone=lambda group, i: evicted[0][i])


def next_of_another_sequence(text, new, evicted, tables, block_size):
    """Uses the first sequence's evicted tokens for every sequence."""
    return _next_tokens(text, new, evicted, tables, block_size, gone=lambda group, i: evicted[group][0])


def draw_steps(rng) -> list[dict]:
    """Draw two to four sequences, decodes and chunks, and two KV cache groups with different evicted tokens."""
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
            if (i + number) % 5 == 0:  # nothing is evicted from the first group
                held[0] = length
            text.append(length)
            new.append(rng.choice([1, 2, 5]) if i % 2 else 1)
            for group in (0, 1):
                evicted[group].append(length - held[group])
                count = -(-(held[group] + new[-1]) // size)
                table = list(range(block, block + count))
                block += count + rng.randint(0, 2)
                rng.shuffle(table)
                tables[group].append(table)
        cases.append({"text": text, "new": new, "evicted": evicted, "tables": tables, "block_size": size})
    return cases


PLACES = Exercise(
    id="15.4",
    minutes=7,
    name="next_tokens",
    signature=("text", "new", "evicted", "tables", "block_size"),
    cases=draw_steps,
    reference=next_tokens,
    misconceptions=(
        Misconception("cache_length", next_from_the_cache),
        Misconception("shortest_length", next_from_the_last_group),
        Misconception("slot_of_position", partial(_next_tokens, place=lambda at, lost: at)),
        Misconception(
            "length_of_text", partial(_next_tokens, length=lambda before, count, lost: before + count)
        ),
        Misconception("without_new", partial(_next_tokens, length=lambda before, count, lost: before - lost)),
        Misconception("other_group", next_of_another_group),
        Misconception("other_sequence", next_of_another_sequence),
        Misconception("one_late", partial(_next_tokens, position=lambda at, i: at + 1)),
        Misconception("one_slot_late", partial(_next_tokens, place=lambda at, lost: at - lost + 1)),
    ),
)
