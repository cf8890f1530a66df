"""Step: what one forward computes, as plain data, and the arrays that the forward reads."""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minikv.blocks import BlockManager, Copy, slots_of
from minikv.engine.core.sequence import Sequence, SequenceId


class Scheduled(NamedTuple):  # a step makes one for each sequence, and a tuple is made in a third of the time
    """The tokens at positions ``start`` to ``end - 1`` of a sequence: one in decode, else a chunk of its prefill.

    ``samples`` are the sequences that get a new token from the logits of the last one: none where the chunk does not
    reach the end, several where a prompt has just been computed for ``n`` of them. The last ``unconfirmed`` tokens of a
    decode may be wrong: each counts if it is the token that is sampled in its place, and none behind it otherwise.
    """

    id: SequenceId
    start: int
    tokens: tuple[int, ...] | array
    decode: bool
    samples: tuple[SequenceId, ...]
    unconfirmed: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def guesses(self) -> tuple[int, ...] | array:
        """The unconfirmed tokens."""
        return self.tokens[len(self.tokens) - self.unconfirmed :]

    def confirmed(self, sampled: Seq[int]) -> int:
        """How many of the ``unconfirmed`` tokens are right: the first so many of ``sampled``, one for each row."""
        pairs = enumerate(zip(self.guesses, sampled, strict=False))
        return next((place for place, (guess, token) in pairs if guess != token), self.unconfirmed)


@dataclass(frozen=True, eq=False)
class StepArrays:
    """The tokens of a step, packed one behind the other; the tuples have one array for each KV cache group.

    - ``token_ids``, ``positions``: int64 [tokens]; ``slot_mapping``: int64 [tokens], -1: store nothing.
    - ``query_starts``: int32 [items + 1], where the tokens of each item begin; ``lengths``: int32 [items], the
      tokens that its last query sees (before a window).
    - ``block_tables``: int32 [items, columns], copied: no later operation changes them.
    - ``unconfirmed``: int32 [items], how many of each item's tokens are; None where none are.
    - ``sources``: int64 [tokens], where the tokens are not known yet: each is in this row of what the step before
      samples, and ``token_ids`` are ``UNKNOWN``. None where they are known.
    - ``absent``: int32 [items], how many of the tokens before an item's have no slot; None where all have.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    lengths: np.ndarray
    slot_mapping: tuple[np.ndarray, ...]
    block_tables: tuple[np.ndarray, ...]
    unconfirmed: np.ndarray | None = None
    sources: np.ndarray | None = None
    absent: tuple[np.ndarray, ...] | None = None

    @property
    def last(self) -> np.ndarray:
        """int64 [rows]: the tokens whose logits are wanted, the last of each item and before it one for each of
        its unconfirmed tokens."""
        ends = self.query_starts[1:].astype(np.int64)
        if self.unconfirmed is None:
            return ends - 1
        wanted = self.unconfirmed.astype(np.int64) + 1
        return np.arange(wanted.sum()) + np.repeat(ends - np.cumsum(wanted), wanted)


_NONE = np.zeros(0, np.int64)
NOT_PACKED = StepArrays(_NONE, _NONE, _NONE, _NONE, (), ())
"""The arrays of a step that is never computed."""


@dataclass(frozen=True, eq=False)
class Step:
    """What to compute next: what extensions make of ``work``, then ``copies``, then the forward over ``batch``.

    All copies are read before any is written. Then sample one token for each sequence in ``sampled`` and give them to
    ``Scheduler.finish``; of an item with unconfirmed tokens one for each row of ``batch.last``, up to the first that is
    not the token in its place. ``preempted`` gave their blocks back and wait again. ``time`` is the scheduler's clock,
    in seconds.
    """

    number: int
    time: float
    items: tuple[Scheduled, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[SequenceId, ...]
    batch: StepArrays
    work: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(item.tokens) for item in self.items)

    @property
    def num_decode(self) -> int:
        """Tokens of decodes, unconfirmed ones included; the others belong to prefills."""
        return sum(len(item.tokens) for item in self.items if item.decode)

    @cached_property
    def sampled(self) -> tuple[SequenceId, ...]:
        """The sequences that get a token, in the order of ``items``."""
        return tuple(seq_id for item in self.items for seq_id in item.samples)


@dataclass
class StepPlan:
    """A step in the making, with ``budget`` tokens left. ``seqs[i]`` is the sequence of ``items[i]``."""

    budget: int
    items: list[Scheduled] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    work: dict[str, Any] = field(default_factory=dict)

    def put(self, seq: Sequence, start: int, end: int, decode: bool) -> None:
        """The tokens ``start`` to ``end - 1`` of ``seq`` are in the step; the manager has given them slots."""
        samples: tuple[SequenceId, ...] = ()
        if end == len(seq.tokens):
            samples = (seq.id, *(other.id for other in seq.pending)) if seq.pending else (seq.id,)
        if end == start + 1:
            tokens: tuple[int, ...] | array = (seq.tokens[start],)
        else:
            chunk = seq.tokens[start:end]
            tokens = chunk if isinstance(chunk, array) else tuple(chunk)
        self.seqs.append(seq)
        self.items.append(Scheduled(seq.id, start, tokens, decode, samples))
        self.budget -= end - start
        seq.num_placed = end


def pack(
    manager: BlockManager, items: Seq[Scheduled], sources: Seq[int] | None = None, *, gaps: bool = False
) -> StepArrays:
    """The arrays of a step whose tokens have slots already. ``sources``: see ``StepArrays``.

    ``gaps``: a sequence may have fewer slots than it has tokens.
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
    groups = range(len(manager.pools))
    lost = [np.zeros(len(items), np.int32) for _ in groups]
    if gaps:
        lost = [
            np.array(
                [manager.num_tokens(item.id) - manager.length(item.id, group) for item in items], np.int32
            )
            for group in groups
        ]
    held = max(int((lengths - of_group).max(initial=0)) for of_group in lost)
    columns = -(-held // manager.block_size)
    rows = manager.rows([item.id for item in items])
    tables = tuple(manager.block_tables(group)[rows, :columns] for group in groups)
    slots = tuple(
        slots_of(table, row, positions - of_group[row], manager.block_size)
        for table, of_group in zip(tables, lost, strict=True)
    )
    unconfirmed = np.array([item.unconfirmed for item in items], np.int32)
    return StepArrays(
        token_ids,
        positions,
        query_starts,
        lengths,
        slots,
        tables,
        unconfirmed if unconfirmed.any() else None,
        None if sources is None else np.array(sources, np.int64),
        tuple(lost) if any(of_group.any() for of_group in lost) else None,
    )
