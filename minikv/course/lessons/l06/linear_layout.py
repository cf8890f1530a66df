"""Exercises 06.1, 06.2 and 06.4: where an element lies, what max_seq wastes, and how many steps are left."""

from collections.abc import Sequence

from minikv.course.exercise import Exercise, Misconception

# 06.1 ------------------------------------------------------------------------------------------------------

Six = tuple[int, ...]  # six indices or sizes


def element_offset(shape: Six, place: Six) -> int:
    """Apply Horner's rule: each dimension multiplies the offset counted so far by its size, then adds its index."""
    offset = 0
    for size, index in zip(shape, place, strict=True):
        offset = offset * size + index
    return offset


def _dot(place: Sequence[int], strides: Sequence[int]) -> int:
    return sum(index * stride for index, stride in zip(place, strides, strict=True))


def offset_tokens_first(shape: Six, place: Six) -> int:
    """Takes the shape for [layers, batch, 2, max_seq, kv_heads, head_dim]."""
    layers, batch, two, heads, tokens, dim = shape
    layer, row, kind, head, token, d = place
    return element_offset((layers, batch, two, tokens, heads, dim), (layer, row, kind, token, head, d))


def offset_without_kv(shape: Six, place: Six) -> int:
    _, batch, _, heads, tokens, dim = shape
    part = heads * tokens * dim
    return _dot(place, (batch * part, part, part, tokens * dim, dim, 1))


def offset_first_fastest(shape: Six, place: Six) -> int:
    return element_offset(tuple(reversed(shape)), tuple(reversed(place)))


def offset_layer_and_position(shape: Six, place: Six) -> int:
    """Computes "layer * stride + position", as one document has it: row, K or V and head are missing."""
    _, batch, two, heads, tokens, dim = shape
    layer, _, _, _, token, d = place
    return layer * batch * two * heads * tokens * dim + token * dim + d


def draw_places(rng) -> list[tuple]:
    cases = []
    for i in range(40):
        most = 2 + i // 4
        sizes = [rng.randint(2, most + 1) for _ in range(5)]
        shape = (sizes[0], sizes[1], 2, sizes[2], sizes[3] + 1 + i % 3, sizes[4] + 1)
        place = tuple(rng.randrange(size) for size in shape)
        if i < 6:  # Only one index is not 0, so that a small counterexample names the wrong stride.
            place = tuple(1 if dimension == i else 0 for dimension in range(6))
        cases.append((shape, place))
    return cases


OFFSET = Exercise(
    id="06.1",
    minutes=4,
    name="element_offset",
    signature=("shape", "place"),
    cases=draw_places,
    reference=element_offset,
    misconceptions=(
        Misconception("tokens_first", offset_tokens_first),
        Misconception("without_kv", offset_without_kv),
        Misconception("first_fastest", offset_first_fastest),
        Misconception("layer_and_position", offset_layer_and_position),
    ),
)

# 06.2 ------------------------------------------------------------------------------------------------------


def wasted_bytes(lengths: list[int], max_seq: int, block_size: int, token_bytes: int) -> tuple[int, int]:
    tokens = sum(lengths)
    linear = len(lengths) * max_seq
    paged = sum(-(-length // block_size) for length in lengths) * block_size
    return (linear - tokens) * token_bytes, (paged - tokens) * token_bytes


def wasted_up_to_longest(lengths, max_seq, block_size, token_bytes):
    return wasted_bytes(lengths, max(lengths), block_size, token_bytes)


def wasted_pages_are_exact(lengths, max_seq, block_size, token_bytes):
    return wasted_bytes(lengths, max_seq, 1, token_bytes)


def wasted_one_block_more(lengths, max_seq, block_size, token_bytes):
    paged = sum(length // block_size + 1 for length in lengths) * block_size
    linear, _ = wasted_bytes(lengths, max_seq, block_size, token_bytes)
    return linear, (paged - sum(lengths)) * token_bytes


def wasted_one_table(lengths, max_seq, block_size, token_bytes):
    """Lays the rows end to end, so that only the last one leaves a block half empty."""
    linear, _ = wasted_bytes(lengths, max_seq, block_size, token_bytes)
    return linear, -sum(lengths) % block_size * token_bytes


def wasted_slots(lengths, max_seq, block_size, token_bytes):
    return wasted_bytes(lengths, max_seq, block_size, 1)


def wasted_reserved(lengths, max_seq, block_size, token_bytes):
    held = sum(lengths) * token_bytes
    linear, paged = wasted_bytes(lengths, max_seq, block_size, token_bytes)
    return linear + held, paged + held


def wasted_filled_part(lengths, max_seq, block_size, token_bytes):
    """Counts the filled part of the last blocks instead of their empty part."""
    linear, _ = wasted_bytes(lengths, max_seq, block_size, token_bytes)
    return linear, sum(length % block_size for length in lengths) * token_bytes


def wasted_empty_row_has_a_block(lengths, max_seq, block_size, token_bytes):
    linear, paged = wasted_bytes(lengths, max_seq, block_size, token_bytes)
    return linear, paged + lengths.count(0) * block_size * token_bytes


def draw_lengths(rng) -> list[dict]:
    cases = []
    for i in range(40):
        block_size = rng.choice([4, 8, 16, 32])
        blocks = 2 + i // 4
        # On, just below and just above a block's edge; every fourth case also has an empty row.
        near = [rng.randint(1, blocks) * block_size + rng.choice([-1, 0, 0, 1]) for _ in range(1 + i // 5)]
        lengths = [*near, rng.randint(1, blocks * block_size - 2), *([0] if i % 4 == 3 else [])]
        rng.shuffle(lengths)
        max_seq = max(lengths) + rng.randint(1, 6 * block_size)
        token_bytes = 2 * rng.choice([8, 16, 64, 2048])
        cases.append(
            {"lengths": lengths, "max_seq": max_seq, "block_size": block_size, "token_bytes": token_bytes}
        )
    return cases


WASTED = Exercise(
    id="06.2",
    minutes=4,
    name="wasted_bytes",
    signature=("lengths", "max_seq", "block_size", "token_bytes"),
    cases=draw_lengths,
    reference=wasted_bytes,
    misconceptions=(
        Misconception("up_to_longest", wasted_up_to_longest),
        Misconception("pages_are_exact", wasted_pages_are_exact),
        Misconception("one_block_more", wasted_one_block_more),
        Misconception("one_table", wasted_one_table),
        Misconception("slots_not_bytes", wasted_slots),
        Misconception("reserved", wasted_reserved),
        Misconception("filled_part", wasted_filled_part),
        Misconception("empty_row_has_a_block", wasted_empty_row_has_a_block),
    ),
)

# 06.4 ------------------------------------------------------------------------------------------------------


def _steps_within(num_blocks: int, blocks_after) -> int:
    """Return the largest number of steps after which ``blocks_after(steps)`` still fits in ``num_blocks``."""
    steps = 0
    while blocks_after(steps + 1) <= num_blocks:
        steps += 1
    return steps


def steps_left(prompts: list[int], max_seq: int, num_blocks: int, block_size: int) -> tuple[int, int]:
    def blocks_after(steps: int) -> int:
        return sum(-(-(length + steps) // block_size) for length in prompts)

    return max_seq - max(prompts), _steps_within(num_blocks, blocks_after)


def steps_shortest_row(prompts, max_seq, num_blocks, block_size):
    return max_seq - min(prompts), steps_left(prompts, max_seq, num_blocks, block_size)[1]


def steps_spread_evenly(prompts, max_seq, num_blocks, block_size):
    return max_seq - max(prompts), (num_blocks * block_size - sum(prompts)) // len(prompts)


def steps_block_early(prompts, max_seq, num_blocks, block_size):
    """Asks for a new block one token too early: a full block seems to have no room for its own last token."""
    early = _steps_within(
        num_blocks, lambda steps: sum((length + steps) // block_size + 1 for length in prompts)
    )
    return max_seq - max(prompts), early


def steps_equal_shares(prompts, max_seq, num_blocks, block_size):
    """Gives each row the same number of blocks, so the longest row runs out first, as in a linear cache."""
    share = num_blocks // len(prompts) * block_size
    return max_seq - max(prompts), max(0, share - max(prompts))


def steps_only_new_blocks(prompts, max_seq, num_blocks, block_size):
    """Puts new tokens in new blocks only; the room in each row's last block is forgotten."""
    taken = sum(-(-length // block_size) for length in prompts)
    new = _steps_within(num_blocks - taken, lambda steps: len(prompts) * -(-steps // block_size))
    return max_seq - max(prompts), new


def draw_pools(rng) -> list[dict]:
    cases = []
    for i in range(40):
        block_size = rng.choice([4, 8, 16])
        rows = 2 + i // 8
        prompts = [
            max(1, rng.randint(1, 2 + i // 4) * block_size + rng.choice([-2, -1, 0, 0, 1]))
            for _ in range(rows)
        ]
        prompts[0] += 2 * block_size + rng.randint(1, block_size)  # one row is much longer than another
        taken = sum(-(-length // block_size) for length in prompts)
        num_blocks = taken + rng.randint(0, rows) + rng.choice([0, rows, 2 * rows])
        max_seq = max(prompts) + rng.randint(0, 3 * block_size)
        rng.shuffle(prompts)
        cases.append(
            {"prompts": prompts, "max_seq": max_seq, "num_blocks": num_blocks, "block_size": block_size}
        )
    return cases


STEPS = Exercise(
    id="06.4",
    minutes=5,
    name="steps_left",
    signature=("prompts", "max_seq", "num_blocks", "block_size"),
    cases=draw_pools,
    reference=steps_left,
    misconceptions=(
        Misconception("shortest_row", steps_shortest_row),
        Misconception("spread_evenly", steps_spread_evenly),
        Misconception("block_early", steps_block_early),
        Misconception("equal_shares", steps_equal_shares),
        Misconception("only_new_blocks", steps_only_new_blocks),
    ),
)
