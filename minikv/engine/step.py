"""Step: what one forward computes, as plain data, and the arrays that the forward reads."""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from minikv.blocks import BlockManager, Copy, slots_of
from minikv.engine.sequence import SequenceId
from minikv.errors import ArgumentError
from minikv.eviction.paged.plan import PlannedEviction


class Scheduled(NamedTuple):  # a step makes one for each sequence, and a tuple is made in a third of the time
    """The tokens at positions ``start`` to ``end - 1`` of a sequence: one in decode, else a chunk of its prefill.

    ``samples`` are the sequences that get a new token from the logits of the last one: none where the chunk does not
    reach the end, several where a prompt has just been computed for ``n`` of them. Behind the one token of a decode
    there may be ``drafts`` more (``prompt_lookup``): guesses, which count if they are the tokens drawn in their places.
    In a step ahead the token is ``UNKNOWN``.
    """

    id: SequenceId
    start: int
    tokens: tuple[int, ...] | array
    decode: bool
    samples: tuple[SequenceId, ...]
    drafts: int = 0

    @property
    def guessed(self) -> tuple[int, ...] | array:
        """The drafts."""
        return self.tokens[len(self.tokens) - self.drafts :]

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
    - ``drafts``: int32 [items], how many of each item's tokens are drafts; None where there are none.
    - ``sources``: int64 [tokens], of a step ahead: each token is in this row of what the step before it samples, and
      ``token_ids`` are ``UNKNOWN``. None where the tokens are known.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    lengths: np.ndarray
    slot_mapping: tuple[np.ndarray, ...]
    block_tables: tuple[np.ndarray, ...]
    drafts: np.ndarray | None = None
    sources: np.ndarray | None = None
    evicted: tuple[np.ndarray, ...] | None = None

    @property
    def last(self) -> np.ndarray:
        """int64 [rows]: the tokens whose logits are wanted, the last of each item and before it one for each draft."""
        ends = self.query_starts[1:].astype(np.int64)
        if self.drafts is None:
            return ends - 1
        wanted = self.drafts.astype(np.int64) + 1
        return np.arange(wanted.sum()) + np.repeat(ends - np.cumsum(wanted), wanted)


_NONE = np.zeros(0, np.int64)
NOT_PACKED = Batch(_NONE, _NONE, _NONE, _NONE, (), ())
"""Of a step that nobody computes."""

Transfers = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, eq=False)
class Step:
    """What to compute next: ``swap_out``, ``swap_in``, ``copies``, then the forward over ``batch``, in this order.

    A swap has, for each kind of layer, pairs of (device block, host block), and is () where nothing moves; of the
    copies do all reads before all writes.
    Then sample one token for each sequence in ``sampled`` and give them to ``Scheduler.finish``; of an item with
    drafts one for each row of ``batch.last``, and those up to the first that is not the draft in its place.
    ``preempted`` had to give their blocks back and wait again; ``time`` is the scheduler's clock, in seconds.

    A step ``ahead`` was scheduled before the tokens of the one before it were known. Only its forward needs them, so
    the host can launch it behind the other, and a GPU takes them where they are.
    """

    number: int
    time: float
    items: tuple[Scheduled, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[SequenceId, ...]
    batch: Batch
    swap_out: Transfers = ()
    swap_in: Transfers = ()
    evictions: tuple[PlannedEviction, ...] = ()

    @property
    def ahead(self) -> bool:
        return self.batch.sources is not None

    @property
    def num_tokens(self) -> int:
        return sum(len(item.tokens) for item in self.items)

    @property
    def num_decode(self) -> int:
        """Tokens of decodes, drafts included; the others belong to prefills."""
        return sum(len(item.tokens) for item in self.items if item.decode)

    @property
    def num_drafts(self) -> int:
        return sum(item.drafts for item in self.items)

    @cached_property
    def sampled(self) -> tuple[SequenceId, ...]:
        """The sequences that get a token, in the order of ``items``."""
        return tuple(seq_id for item in self.items for seq_id in item.samples)


def count_accepted(step: Step, accepted: Mapping[SequenceId, int]) -> dict[SequenceId, int]:
    """For each item with drafts how many of them are accepted. Raises ``ArgumentError`` for what cannot be."""
    drafts = {item.id: item.drafts for item in step.items if item.drafts}
    for seq_id, count in accepted.items():
        most = drafts.get(seq_id, 0)
        if type(count) is not int or not 0 <= count <= most:
            raise ArgumentError("step_accepted", sequence=seq_id, value=count, drafts=most)
    return {seq_id: accepted.get(seq_id, 0) for seq_id in drafts}


def pack(
    manager: BlockManager, items: Seq[Scheduled], sources: Seq[int] | None = None, *, evicts: bool = False
) -> Batch:
    """The arrays of a step whose tokens the manager has placed already; ``sources`` are those of a step ahead.

    ``evicts``: sequences may hold fewer tokens than they are long.
    """
    counts = np.array([len(item.tokens) for item in items], np.int64)
    starts = np.array([item.start for item in items], np.int64)
    query_starts = np.zeros(len(items) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    total = int(query_starts[-1])
    row = np.repeat(np.arange(len(items)), counts)
    positions = np.arange(total) + (starts - query_starts[:-1])[row]
    token_ids = np.fromiter((token for item in items for token in item.tokens), np.int64, total)
    lengths = (starts + counts).astype(np.int32)
    kinds = range(len(manager.pools))
    lost = [np.zeros(len(items), np.int32) for _ in kinds]
    if evicts:
        lost = [np.array([manager.num_evicted(item.id, kind) for item in items], np.int32) for kind in kinds]
    held = max(int((lengths - of_kind).max(initial=0)) for of_kind in lost)
    columns = -(-held // manager.block_size)
    rows = manager.rows([item.id for item in items])
    tables = tuple(manager.block_tables(kind)[rows, :columns] for kind in kinds)
    slots = tuple(
        slots_of(table, row, positions - of_kind[row], manager.block_size)
        for table, of_kind in zip(tables, lost, strict=True)
    )
    drafts = np.array([item.drafts for item in items], np.int32)
    return Batch(
        token_ids,
        positions,
        query_starts,
        lengths,
        slots,
        tables,
        drafts if drafts.any() else None,
        None if sources is None else np.array(sources, np.int64),
        tuple(lost) if any(of_kind.any() for of_kind in lost) else None,
    )
