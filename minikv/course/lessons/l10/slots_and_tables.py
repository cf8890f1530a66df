"""Exercises 10.1 and 10.2: a write through slots, and a read through a block table."""

import torch
from torch import Tensor

from minikv.course.exercise import Exercise, Misconception
from minikv.kernels import store_kv as package_store_kv

# 10.1 ------------------------------------------------------------------------------------------------------

HEADS, DIM = 2, 3


def store_kv(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    package_store_kv(key, value, k_cache, v_cache, slots)


def _store_with(block_of, inside_of, live=lambda slot: slot >= 0, value_of=lambda key, value: value):
    def wrong(key, value, k_cache, v_cache, slots):
        size = k_cache.shape[1]
        for token, slot in enumerate(slots.tolist()):
            if live(slot):
                at = block_of(slot, token, size), inside_of(slot, token, size)
                k_cache[at], v_cache[at] = key[token], value_of(key[token], value[token])

    return wrong


def store_into_a_copy(key, value, k_cache, v_cache, slots):
    """Writes into ``reshape``'s result, which is a silent copy where the strides allow no view."""
    live = slots >= 0
    for new, cache in ((key, k_cache), (value, v_cache)):
        cache.reshape(-1, *cache.shape[2:])[slots[live]] = new[live]


def run_store(store, slots: list[int], num_blocks: int, block_size: int, interleaved: bool) -> dict:
    """Store one token a slot and read all back: the first head of token i has i + 1, the second 100 more.

    V is the negative of K. Only the slots that were written are returned, so that a counterexample is short.
    ``interleaved``: K and V of a block lie side by side in one tensor.
    There are two calls with half of the tokens each: the second must not overwrite what the first one stored.
    """
    if interleaved:
        whole = torch.zeros(num_blocks, 2, block_size, HEADS, DIM)
        k_cache, v_cache = whole[:, 0], whole[:, 1]
    else:
        k_cache, v_cache = (torch.zeros(num_blocks, block_size, HEADS, DIM) for _ in "kv")
    tokens = torch.arange(1.0, len(slots) + 1).view(-1, 1, 1)
    key = (tokens + 100 * torch.arange(HEADS).view(1, -1, 1)).expand(-1, -1, DIM).contiguous()
    new = (key, -key, torch.tensor(slots))
    given = [tensor.clone() for tensor in new]
    half = len(slots) // 2
    for part in (slice(0, half), slice(half, None)):
        store(given[0][part], given[1][part], k_cache, v_cache, given[2][part])
    changed = not all(torch.equal(*pair) for pair in zip(given, new, strict=True))
    return {"k": _written(k_cache[..., -1]), "v": _written(v_cache[..., 0]), "inputs_changed": changed}


def _written(numbers: Tensor) -> dict[int, list[int]]:
    """Return what stands in each slot that was written, of ``numbers`` [blocks, block size, heads]; 0 never was."""
    slots = numbers.long().flatten(0, 1).tolist()
    return {slot: heads for slot, heads in enumerate(slots) if any(heads)}


def draw_stores(rng) -> list[dict]:
    """Draw prefills and decodes of several sequences on shuffled blocks, with padding; some start within a block."""
    cases = []
    for i in range(36):
        block_size, num_blocks = (2, 4, 8)[i % 3], 5 + i // 6
        blocks = rng.sample(range(num_blocks), num_blocks)
        slots = []
        for sequence in range(2):
            own = blocks[2 * sequence : 2 * sequence + 2]
            start = rng.randint(0, block_size)
            end = min(2 * block_size, start + rng.choice([1, 2, block_size - 1, block_size]))
            slots += [own[p // block_size] * block_size + p % block_size for p in range(start, end)]
        for _ in range(i % 4):
            slots.insert(rng.randint(0, len(slots)), -1)
        cases.append(
            {"slots": slots, "num_blocks": num_blocks, "block_size": block_size, "interleaved": i % 2 == 1}
        )
    return cases


STORE = Exercise(
    id="10.1",
    minutes=5,
    name="store_kv",
    signature=("slots", "num_blocks", "block_size", "interleaved"),
    cases=draw_stores,
    reference=store_kv,
    drive=run_store,
    misconceptions=(
        Misconception(
            "padding_written",
            _store_with(
                lambda slot, token, size: slot // size,
                lambda slot, token, size: slot % size,
                lambda slot: True,
            ),
        ),
        Misconception(
            "in_order",
            _store_with(lambda slot, token, size: token // size, lambda slot, token, size: token % size),
        ),
        Misconception(
            "offset_lost", _store_with(lambda slot, token, size: slot // size, lambda slot, token, size: 0)
        ),
        Misconception(
            "value_is_key",
            _store_with(
                lambda slot, token, size: slot // size,
                lambda slot, token, size: slot % size,
                value_of=lambda key, value: key,
            ),
        ),
        Misconception("into_a_copy", store_into_a_copy),
    ),
)

# 10.2 ------------------------------------------------------------------------------------------------------

LOOKUP = (
    "block_table",
    "start",
    "count",
    "length",
    "window",
    "block_size",
    "stride_block",
    "stride_token",
)


def token_offsets(
    block_table: list[int],
    start: int,
    count: int,
    length: int,
    window: int | None,
    block_size: int,
    stride_block: int,
    stride_token: int,
) -> list[int | None]:
    first = 0 if window is None else length - window
    return [
        block_table[p // block_size] * stride_block + p % block_size * stride_token
        if first <= p < length
        else None
        for p in range(start, start + count)
    ]


def offsets_logical(block_table, *rest):
    return token_offsets(list(range(len(block_table))), *rest)


def offsets_tail_late(block_table, start, count, length, window, *rest):
    wide = None if window is None else window + 1  # the tail moves, the window's other end stays
    return token_offsets(block_table, start, count, length + 1, wide, *rest)


def offsets_no_window(block_table, start, count, length, window, *rest):
    return token_offsets(block_table, start, count, length, None, *rest)


def offsets_window_late(block_table, start, count, length, window, *rest):
    """Counts the window without the query's own token."""
    return token_offsets(block_table, start, count, length, window and window + 1, *rest)


def offsets_packed(block_table, start, count, length, window, block_size, stride_block, stride_token):
    return token_offsets(
        block_table, start, count, length, window, block_size, block_size * stride_token, stride_token
    )


def offsets_one_block(block_table, start, count, length, window, block_size, stride_block, stride_token):
    """Uses the block of the tile's first token for all of its tokens."""
    first = 0 if window is None else length - window
    place = start // block_size
    return [
        block_table[place] * stride_block + (p - place * block_size) * stride_token
        if first <= p < length
        else None
        for p in range(start, start + count)
    ]


def draw_tiles(rng) -> list[dict]:
    """Draw tiles before, on and past the end; windows; layouts with and without a gap between two blocks."""
    cases = []
    for i in range(48):
        block_size = (2, 4, 8)[i % 3]
        count = block_size * rng.choice([1, 2, 4]) if i % 5 else max(1, block_size // 2)
        tiles = rng.randint(1, 2 + i // 12)
        length = max(2, tiles * count + rng.choice([-1, 0, 1, count // 2]))
        entries = -(-length // block_size)
        window = rng.randint(1, length - 1) if i % 4 == 3 else None
        # Three tiles of four reach the end of the sequence or the beginning of the window.
        at = rng.choice([length - 1, length - 1, length - (window or length), rng.randint(0, length - 1)])
        table = rng.sample(range(1, 60), entries)
        if window is not None:
            gone = (length - window) // block_size
            table[:gone] = [-1] * gone
        table += [-1] * (1 + count // block_size)
        token = rng.choice([6, 8, 16])
        cases.append(
            {
                "block_table": table,
                "start": at // count * count,
                "count": count,
                "length": length,
                "window": window,
                "block_size": block_size,
                "stride_block": block_size * token * (1 + i % 2),
                "stride_token": token,
            }
        )
    return cases


OFFSETS = Exercise(
    id="10.2",
    minutes=7,
    name="token_offsets",
    signature=LOOKUP,
    cases=draw_tiles,
    reference=token_offsets,
    misconceptions=(
        Misconception("logical_block", offsets_logical),
        Misconception("tail_one_late", offsets_tail_late),
        Misconception("window_ignored", offsets_no_window),
        Misconception("window_one_late", offsets_window_late),
        Misconception("blocks_touch", offsets_packed),
        Misconception("one_block_a_tile", offsets_one_block),
    ),
)
