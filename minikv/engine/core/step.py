"""Step: what one forward computes, as plain data, and the arrays that the forward reads."""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from minikv.blocks import BlockManager, Copy, slots_of
from minikv.engine.core.sequence import Sequence, SequenceId


# A step makes one for each sequence, and a tuple is made in a third of a dataclass's time.
class Scheduled(NamedTuple):
    """The tokens at positions ``start`` to ``end - 1`` of a sequence: one in decode, else a chunk of its prefill.

    ``samples`` are the sequences that get a new token from the logits of the chunk's last token: none if the chunk ends
    before its prompt, several after a prompt of ``n`` sequences. The last ``unconfirmed`` tokens of a decode may be
    wrong: each is right if it is the token sampled in its place, up to the first that is not.
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
        """Return how many ``unconfirmed`` tokens are right: those before the first that differs from ``sampled``."""
        pairs = enumerate(zip(self.guesses, sampled, strict=False))
        return next((place for place, (guess, token) in pairs if guess != token), self.unconfirmed)


@dataclass(frozen=True, eq=False)
class StepArrays:
    """The tokens of a step, packed one after the other; the tuples have one array for each KV cache group.

    - ``token_ids``, ``positions``: int64 [tokens]; ``slot_mapping``: int64 [tokens], -1: store nothing.
    - ``query_starts``: int32 [items + 1], the index of each item's first token; ``lengths``: int32 [items], the
      tokens that its last query sees (before a window).
    - ``block_tables``: int32 [items, columns], copied: no later operation changes them.
    - ``unconfirmed``: int32 [items], how many of each item's tokens are unconfirmed; None if none are.
    - ``sources``: int64 [tokens], for tokens that are not known yet: the row of the step before that samples each one;
      ``token_ids`` are ``UNKNOWN`` then. None if they are known.
    - ``absent``: int32 [items], how many of the tokens before an item's have no slot; None if all have one.
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
        """int64 [rows]: the tokens that need logits: each item's last, and one more for each unconfirmed token."""
        if len(self.lengths) == len(self.token_ids):
            return np.arange(len(self.lengths))
        ends = self.query_starts[1:].astype(np.int64)
        if self.unconfirmed is None:
            return ends - 1
        # Item i wants its last ``wanted[i]`` tokens. ends - cumsum(wanted) is the shift from a row's number to its
        # token.
        wanted = self.unconfirmed.astype(np.int64) + 1
        return np.arange(wanted.sum()) + np.repeat(ends - np.cumsum(wanted), wanted)


_NONE = np.zeros(0, np.int64)
NOT_PACKED = StepArrays(_NONE, _NONE, _NONE, _NONE, (), ())
"""The arrays of a step that is never computed."""


@dataclass(frozen=True, eq=False)
class Step:
    """The next work: that of the extensions (``work``), then ``copies``, then the forward over ``batch``.

    All source blocks are read before any destination is written. Then a token is sampled for each sequence in
    ``sampled`` and passed to ``Scheduler.finish``; an item with unconfirmed tokens gets one for each of its rows in
    ``batch.last``, up to the first that is not the token in its place. The ``preempted`` sequences lost their blocks
    and wait again. ``time`` is in seconds of the scheduler's clock.
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
    """A step in the making, with ``budget`` tokens left.

    ``seqs[i]`` is the sequence of ``items[i]``, and ``sampled`` are those that get a token.
    """

    budget: int
    items: list[Scheduled] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    work: dict[str, Any] = field(default_factory=dict)

    def put(self, seq: Sequence, start: int, end: int, decode: bool) -> None:
        """Add the tokens ``start`` to ``end - 1`` of ``seq`` to the step; the manager has given them slots."""
        samples: tuple[SequenceId, ...] = ()
        if end == len(seq.tokens):
            samples = (seq.id,)
            self.sampled.append(seq)
            if seq.pending:
                samples += tuple(other.id for other in seq.pending)
                self.sampled += seq.pending
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
    """Return the arrays of a step with at least one item; its tokens have slots. ``sources``: see ``StepArrays``.

    ``gaps``: a sequence may have fewer slots than it has tokens.
    """
    ids, starts, tokens, _, _, unconfirmed = zip(*items, strict=True)
    counts = [len(of_item) for of_item in tokens]
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    sums = [*accumulate(counts, initial=0)]
    total, longest = sums[-1], max(ends)
    positions, lengths = np.array(starts, np.int64), np.array(ends, np.int32)
    query_starts, row = np.array(sums, np.int32), np.arange(len(items))
    if total > len(items):  # else each item has one token, that of its row
        row = np.repeat(row, counts)
        positions = np.arange(total) + (positions - query_starts[:-1])[row]
    groups = range(len(manager.pools))
    places, absent = (positions,) * len(groups), None
    if gaps:
        lost = [
            np.array([manager.num_tokens(seq_id) - manager.length(seq_id, group) for seq_id in ids], np.int32)
            for group in groups
        ]
        if any(of_group.any() for of_group in lost):
            longest, absent = int((lengths - np.array(lost)).max()), tuple(lost)
            places = tuple(positions - of_group[row] for of_group in lost)
    columns, rows = -(-longest // manager.block_size), manager.rows(ids)
    tables = tuple(manager.block_tables(group)[rows, :columns] for group in groups)
    return StepArrays(
        np.fromiter(chain.from_iterable(tokens), np.int64, total),
        positions,
        query_starts,
        lengths,
        tuple(slots_of(tables[group], row, places[group], manager.block_size) for group in groups),
        tables,
        np.array(unconfirmed, np.int32) if any(unconfirmed) else None,
        None if sources is None else np.array(sources, np.int64),
        absent,
    )
