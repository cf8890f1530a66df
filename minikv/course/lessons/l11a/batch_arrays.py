"""Exercise 11a.3: decodes, chunks and prefix hits of several sequences, packed into the arrays of one forward."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception

Arrays = dict[str, list[int]]


def batch_arrays(
    tables: list[list[int]], starts: list[int], ends: list[int], tokens: list[int], block_size: int
) -> Arrays:
    return _batch_arrays(tables, starts, ends, tokens, block_size)


def _batch_arrays(
    tables,
    starts,
    ends,
    tokens,
    block_size,
    *,
    position=lambda start, place, packed: start + place,
    slot_position=lambda start, place: start + place,
    length=lambda start, end: end,
    samples=lambda end, have: end == have,
    row=lambda item, next_start, end: next_start - 1,
):
    """Build the arrays. Each keyword argument, changed, gives one wrong answer."""
    positions: list[int] = []
    slots, query_starts, lengths, rows = [], [0], [], []
    for item, (table, start, end, have) in enumerate(zip(tables, starts, ends, tokens, strict=True)):
        for place in range(end - start):
            positions.append(position(start, place, len(positions)))
            at = slot_position(start, place)
            slots.append(table[at // block_size] * block_size + at % block_size)
        query_starts.append(query_starts[-1] + end - start)
        lengths.append(length(start, end))
        if samples(end, have):
            rows.append(row(item, query_starts[-1], end))
    return {
        "positions": positions,
        "slots": slots,
        "query_starts": query_starts,
        "lengths": lengths,
        "sampled_rows": rows,
    }


def packed_without_total(tables, starts, ends, tokens, block_size):
    arrays = batch_arrays(tables, starts, ends, tokens, block_size)
    return {**arrays, "query_starts": arrays["query_starts"][:-1]}


def draw_steps(rng) -> list[dict]:
    """Draw at least a decode, a prefill behind a prefix hit and a partial chunk; ends around block multiples."""
    cases = []
    for i in range(48):
        size = (2, 4, 8, 16)[i % 4]
        kinds = ["decode", "hit", "chunk", *rng.choices(["decode", "hit", "chunk", "last"], k=i // 12)]
        rng.shuffle(kinds)
        blocks = iter(rng.sample(range(99), 90))
        prefix = [next(blocks), next(blocks)]
        tables, starts, ends, tokens = [], [], [], []
        for kind in kinds:
            have = size * rng.randint(2, 3) + rng.choice([0, 1, -1, size // 2])
            if kind == "decode":
                start, end = have - 1, have
            elif kind == "hit":
                have += size  # tokens to compute behind the prefix of two blocks
                start, end = 2 * size, have
            elif kind == "chunk":
                start = rng.choice([0, 1, min(size, have - 2)])
                end = rng.randint(start + 1, have - 1)
            else:
                start, end = rng.randint(1, have - 2), have
            own = [next(blocks) for _ in range(-(-have // size))]
            tables.append([*prefix, *own[2:]] if kind == "hit" else own)
            starts.append(start)
            ends.append(end)
            tokens.append(have)
        case = {"tables": tables, "starts": starts, "ends": ends, "tokens": tokens, "block_size": size}
        cases.append(case)
    return cases


BATCH_ARRAYS = Exercise(
    id="11a.3",
    minutes=9,
    name="batch_arrays",
    signature=("tables", "starts", "ends", "tokens", "block_size"),
    cases=draw_steps,
    reference=batch_arrays,
    misconceptions=(
        Misconception(
            "relative_positions", partial(_batch_arrays, position=lambda start, place, packed: place)
        ),
        Misconception(
            "running_positions", partial(_batch_arrays, position=lambda start, place, packed: packed)
        ),
        Misconception("slots_from_zero", partial(_batch_arrays, slot_position=lambda start, place: place)),
        Misconception("length_is_chunk", partial(_batch_arrays, length=lambda start, end: end - start)),
        Misconception("length_before", partial(_batch_arrays, length=lambda start, end: start)),
        Misconception("no_total", packed_without_total),
        Misconception("all_sampled", partial(_batch_arrays, samples=lambda end, have: True)),
        Misconception("row_of_item", partial(_batch_arrays, row=lambda item, next_start, end: item)),
        Misconception("row_of_position", partial(_batch_arrays, row=lambda item, next_start, end: end - 1)),
        Misconception("one_row_late", partial(_batch_arrays, row=lambda item, next_start, end: next_start)),
    ),
)
