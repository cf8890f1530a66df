"""Relocation: a sequence changes its slots, by eviction or on its way to the host and back.

Eviction keeps tokens, the best of all that there are, and packs them into fewer blocks (``compact``); or it keeps whole
blocks, and nothing is moved (``drop_blocks``).
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from minikv.blocks.book import SequenceBook
from minikv.blocks.sequence import SequenceState
from minikv.blocks.swap import Swap, allocate_all
from minikv.errors import ArgumentError


class Copy(NamedTuple):
    """The storage of ``kind`` has to copy block ``src`` to block ``dst``, before anything is written."""

    kind: int
    src: int
    dst: int


@dataclass(frozen=True)
class Compaction:
    """Where the survivors of an eviction lie and where they go.

    Do ``copies`` first; then move the kept tokens from their slots in ``old_table`` to the first ``num_tokens``
    slots of ``new_table``. The tail of ``old_table`` is free already: move before anything else is allocated.
    """

    copies: tuple[Copy, ...]
    old_table: tuple[int, ...]
    new_table: tuple[int, ...]
    num_tokens: int


class Relocation(SequenceBook):
    """What a ``BlockManager`` does to sequences that run already, beside letting them grow."""

    def compact(self, seq_id: Hashable, keep: int, kind: int = 0) -> Compaction:
        """Eviction keeps ``keep`` of the tokens that the sequence has in ``kind``: its tail blocks are freed.

        The same number is kept in every layer and head, so the block table stays shared; which tokens they are,
        only the storage knows. What another sequence shares is copied first, what is published is forgotten.
        Raises ``OutOfBlocks`` where blocks for the copies are missing, ``ArgumentError`` for a ``keep`` outside 1
        and the length, before everything is committed, and for a kind with a window, which forgets by itself.
        """
        seq = self._evictable(seq_id, kind)
        length = seq.length(kind)
        if type(keep) is not int or not 1 <= keep <= length:
            raise ArgumentError("out_of_range", what="keep", value=keep, low=0, high=length)
        pool, table = self.pools[kind], seq.tables[kind]
        if keep == length:
            return Compaction((), tuple(table.blocks), tuple(table.blocks), keep)
        kept = -(-keep // self.block_size)
        looked_at = range(
            min(table.private, kept), kept
        )  # so that evicting at every step costs the tail alone
        shared = [place for place in looked_at if pool.ref_count(table.blocks[place]) > 1]
        added = pool.allocate(len(shared))
        copies = []
        for place, block in zip(shared, added, strict=True):
            copies.append(Copy(kind, table.blocks[place], block))
            pool.free([table.blocks[place]])
            table.blocks[place] = block
            self._tables.write(kind, seq.row, place, [block])
        for place in looked_at:
            pool.forget(table.blocks[place])
        old_table = tuple(table.blocks)
        pool.free(table.blocks[kept:])
        self._tables.clear(kind, seq.row, kept, len(table.blocks))
        del table.blocks[kept:]
        table.private = kept
        table.evicted += length - keep
        seq.floor = len(seq.tokens)
        seq.limit = 0  # in the other kinds the last block may be shared or published
        return Compaction(tuple(copies), old_table, tuple(table.blocks), keep)

    def drop_blocks(self, seq_id: Hashable, places: Sequence[int], kind: int = 0) -> None:
        """Eviction takes whole blocks out of the table, those at ``places``: nothing is moved, nothing copied.

        The other blocks keep their tokens, and so may go on being shared, and found as a prefix. The last block stays,
        since the next token may belong into it. Raises ``ArgumentError`` as ``compact`` does, and for a place that the
        table has not, or that is its last one.
        """
        seq = self._evictable(seq_id, kind)
        table = seq.tables[kind]
        last = len(table.blocks) - 1
        for place in places:
            if type(place) is not int or not 0 <= place < last:
                raise ArgumentError("out_of_range", what="place", value=place, low=-1, high=last - 1)
        gone = set(places)
        if not gone:
            return
        kept = [block for place, block in enumerate(table.blocks) if place not in gone]
        self.pools[kind].free([table.blocks[place] for place in sorted(gone)])
        self._tables.clear(kind, seq.row, len(kept), len(table.blocks))
        self._tables.write(kind, seq.row, 0, kept)
        table.blocks[:] = kept
        table.private -= sum(place < table.private for place in gone)
        table.evicted += len(gone) * self.block_size  # whole blocks: no token changes its offset
        seq.floor = len(seq.tokens)

    def num_evicted(self, seq_id: Hashable, kind: int = 0) -> int:
        """How many tokens eviction has taken from a sequence in ``kind``, swapped out or not."""
        self._check_kind(kind)
        seq = self._host.get(seq_id) if seq_id in self._host else self._get(seq_id)
        return seq.tables[kind].evicted

    @contextmanager
    def swapping_out(self, seq_id: Hashable) -> Iterator[Swap]:
        """Inside the ``with`` the storage transfers the pairs; after it the sequence's device blocks are free.

        If the transfer raises, everything is as before. A swapped sequence cannot grow: ``swapping_in`` brings it
        back, ``free`` ends it. Raises ``OutOfBlocks`` if the host has too few.
        """
        seq = self._get(seq_id)
        self._check_known(seq)
        host, known = self._host.allocate(seq)
        self._host.in_transit.add(seq_id)
        del self._sequences[seq_id]
        try:
            yield _swap([table.live() for table in seq.tables], host, known)
        except BaseException:
            self._host.free(host)
            self._sequences[seq_id] = seq
            raise
        finally:
            self._host.in_transit.remove(seq_id)
        for pool, table, blocks in zip(self.pools, seq.tables, host, strict=True):
            pool.free(table.live())
            table.blocks[table.first :] = blocks
        self._tables.remove(seq.row)
        self._host.sequences[seq_id] = seq

    @contextmanager
    def swapping_in(self, seq_id: Hashable) -> Iterator[Swap]:
        """The way back, into other blocks. If it raises (``OutOfBlocks``, the transfer), the host keeps its copy."""
        seq = self._host.get(seq_id)
        blocks = allocate_all(self.pools, [len(table.live()) for table in seq.tables])
        host = [table.live() for table in seq.tables]
        self._host.in_transit.add(seq_id)
        try:
            yield _swap(blocks, host, [set() for _ in host])
        except BaseException:
            for pool, of_kind in zip(self.pools, blocks, strict=True):
                pool.free(of_kind)
            raise
        finally:
            self._host.in_transit.remove(seq_id)
        self._host.free(host)
        del self._host.sequences[seq_id]
        for table, of_kind in zip(seq.tables, blocks, strict=True):
            table.blocks[table.first :] = of_kind
        seq.published = 0  # the next commit publishes the new blocks
        self._measure(seq)
        self._add(seq)

    def _evictable(self, seq_id: Hashable, kind: int) -> SequenceState:
        """The sequence, if eviction may take tokens of ``kind`` from it."""
        seq = self._get(seq_id)
        self._check_kind(kind)
        if self._windows[kind] is not None:
            raise ArgumentError("compact_window", kind=kind, window=self._windows[kind])
        if seq.committed < len(seq.tokens):
            # What has not been written yet would have no slot to be written to.
            raise ArgumentError(
                "compact_uncommitted", sequence=seq_id, committed=seq.committed, num_tokens=len(seq.tokens)
            )
        return seq


def _swap(device: Sequence[Sequence[int]], host: Sequence[Sequence[int]], known: Sequence[set[int]]) -> Swap:
    """Pairs of all blocks but those whose content the host has in its ``known`` ones."""
    pairs = []
    for of_kind in zip(device, host, known, strict=True):
        there = of_kind[2]
        pairs.append(tuple(pair for pair in zip(*of_kind[:2], strict=True) if pair[1] not in there))
    return Swap(tuple(pairs))
