"""A step as 32-bit integers: the message from rank 0 to the others, with only what they need. Lesson 12.

    words, what, number, tokens, items, copies, groups | columns of each group | tokens and length of each item
        | token ids | block tables, group by group | copies | unconfirmed tokens of each item, if any

Positions, slots and the beginning of each item follow from these; sequences, samples and times stay on rank 0.
"""

import numpy as np

from minikv.blocks import Copy, slots_of
from minikv.engine.core.step import Step, StepArrays

STOP, STEP, UNCONFIRMED = 0, 1, 2
FRAME = 2048  # int32 in the first message of a step: 8 KiB hold 64 decodes with 29 blocks each
_HEAD = 7


def stop_words() -> np.ndarray:
    """Return the last message of a run."""
    return np.array([_HEAD, STOP, 0, 0, 0, 0, 0], np.int32)


def to_words(step: Step) -> np.ndarray:
    """Return int32 [n]; the first is n."""
    batch = step.batch
    what = STEP if batch.unconfirmed is None else UNCONFIRMED
    head = [0, what, step.number, len(batch.token_ids), len(batch.lengths), len(step.copies)]
    copies = [number for copy in step.copies for number in (copy.kv_cache_group, copy.src, copy.dst)]
    words = np.concatenate(
        [
            np.array([*head, len(batch.block_tables)]),
            np.array([table.shape[1] for table in batch.block_tables]),
            np.diff(batch.query_starts),
            batch.lengths,
            batch.token_ids,
            *(table.ravel() for table in batch.block_tables),
            np.array(copies, np.int64),
            *(() if batch.unconfirmed is None else (batch.unconfirmed,)),
        ]
    ).astype(np.int32)
    words[0] = len(words)
    return words


def from_words(words: np.ndarray, block_size: int) -> Step | None:
    """Return the step without its sequences, its arrays as ``pack`` made them; None after ``stop_words``."""
    _, what, number, tokens, items, copies, groups = words[:_HEAD].tolist()
    if what == STOP:
        return None
    place = _HEAD

    def take(count: int) -> np.ndarray:
        nonlocal place
        place += count
        return words[place - count : place]

    columns = take(groups).tolist()
    counts, lengths = take(items).astype(np.int64), take(items).copy()
    token_ids = take(tokens).astype(np.int64)
    tables = tuple(take(items * width).reshape(items, width).copy() for width in columns)
    pairs = take(3 * copies).reshape(copies, 3).tolist()
    unconfirmed = take(items).copy() if what == UNCONFIRMED else None
    starts = np.zeros(items + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    row = np.repeat(np.arange(items), counts)
    positions = np.arange(tokens) + (lengths - counts - starts[:-1])[row]
    slots = tuple(slots_of(table, row, positions, block_size) for table in tables)
    batch = StepArrays(token_ids, positions, starts, lengths, slots, tables, unconfirmed)
    return Step(number, 0.0, (), tuple(Copy(*pair) for pair in pairs), (), batch)
