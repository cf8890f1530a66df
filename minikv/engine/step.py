"""Step: what one forward computes, as plain data, and the arrays that the forward reads."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from minikv.blocks import BlockManager, Copy
from minikv.engine.sequence import SequenceId


class Scheduled(NamedTuple):  # a step makes one for each sequence, and a tuple is made in a third of the time
    """The tokens at positions ``start`` to ``end - 1`` of a sequence: one in decode, else a chunk of its prefill.

    ``samples`` are the sequences that get a new token from the logits of the last one: none where the chunk does not
    reach the end, several where a prompt has just been computed for ``n`` of them.
    """

    id: SequenceId
    start: int
    tokens: tuple[int, ...]
    decode: bool
    samples: tuple[SequenceId, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """The tokens of a step, packed one behind the other; the tuples have one array for each kind of layer.

    - ``token_ids``, ``positions``: int64 [tokens]; ``slot_mapping``: int64 [tokens], -1: store nothing.
    - ``query_starts``: int32 [items + 1], where the tokens of each item begin; ``lengths``: int32 [items], the
      tokens that its last query sees (before a window).
    - ``block_tables``: int32 [items, columns], copied: no later operation changes them.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    lengths: np.ndarray
    slot_mapping: tuple[np.ndarray, ...]
    block_tables: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """What to compute next. Do ``copies`` first, all reads before all writes, then the forward over ``batch``.

    Then sample one token for each sequence in ``sampled`` and give them to ``Scheduler.finish``. ``preempted`` had to
    give their blocks back and wait again; ``time`` is the scheduler's clock, in seconds.
    """

    number: int
    time: float
    items: tuple[Scheduled, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[SequenceId, ...]
    batch: Batch

    @property
    def num_tokens(self) -> int:
        return len(self.batch.token_ids)

    @property
    def num_decode(self) -> int:
        """Tokens of decodes; the others belong to prefills."""
        return sum(item.decode for item in self.items)

    @cached_property
    def sampled(self) -> tuple[SequenceId, ...]:
        """The sequences that get a token, in the order of ``items``."""
        return tuple(seq_id for item in self.items for seq_id in item.samples)


def pack(manager: BlockManager, items: Seq[Scheduled]) -> Batch:
    """The arrays of a step whose tokens the manager has placed already."""
    counts = np.array([len(item.tokens) for item in items], np.int64)
    starts = np.array([item.start for item in items], np.int64)
    query_starts = np.zeros(len(items) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    total = int(query_starts[-1])
    positions = np.arange(total) + np.repeat(starts - query_starts[:-1], counts)
    token_ids = np.fromiter((token for item in items for token in item.tokens), np.int64, total)
    row_of = {seq_id: row for row, seq_id in enumerate(manager.sequences())}
    rows = np.array([row_of[item.id] for item in items], np.int64)
    lengths = (starts + counts).astype(np.int32)
    columns = -(-int(lengths.max(initial=0)) // manager.block_size)
    kinds = range(len(manager.pools))
    return Batch(
        token_ids,
        positions,
        query_starts,
        lengths,
        tuple(_slots(manager, items, kind) for kind in kinds),
        tuple(manager.block_tables(kind)[rows, :columns] for kind in kinds),
    )


def _slots(manager: BlockManager, items: Seq[Scheduled], kind: int) -> np.ndarray:
    """The slots of all tokens. Single tokens, the most items of a step, are looked up in one go."""
    single = iter(manager.decode_slots([item.id for item in items if len(item.tokens) == 1], kind).tolist())
    slots: list[int] = []
    for item in items:
        if len(item.tokens) == 1:
            slots.append(next(single))
        else:
            slots.extend(manager.slot_mapping(item.id, item.start, item.end, kind).tolist())
    return np.array(slots, np.int64)
