"""BlockManager: the blocks of each sequence, and the blocks that sequences share.

    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> manager.allocate("a", [1, 2, 3, 4, 5, 6]).num_cached
    0
    >>> manager.commit("a")                                  # the forward has written K and V
    >>> manager.allocate("b", [1, 2, 3, 4, 9]).num_cached    # the first block is shared
    4
    >>> manager.block_table("a"), manager.block_table("b")
    ([0, 1], [0, 2])

The manager never sees a tensor. It returns the slots of tokens (``slot_mapping``) and the blocks that the storage must
copy (``Copy``). A forward writes K and V, and ``commit`` records that. Layers that keep different tokens (another
window, another width) are in different KV cache groups, each with a pool and block tables of its own; an operation
takes blocks in all groups or in none. An operation that raises has changed nothing.

Its parts: a ``BlockPool`` for each group, ``BlockTables``, and ``HostBlocks`` for blocks in host memory.
"""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from minikv.blocks.compaction import Compaction, Copy, compact, drop_blocks
from minikv.blocks.errors import check_capacity, refuse_more
from minikv.blocks.host_blocks import HostBlocks, Swap, allocate_all, swap_of
from minikv.blocks.invariants import check_holders, check_rows, check_sequence
from minikv.blocks.pool import NULL_BLOCK, BlockPool
from minikv.blocks.prefix import Match, child_digest, chunks, first_block_needed, root_digest, token_array
from minikv.blocks.stats import ManagerStats, facts, manager_stats
from minikv.blocks.tables import UNKNOWN, BlockTable, BlockTables, SequenceBlocks, slots_of
from minikv.errors import ArgumentError, UnknownNameError, check_count
from minikv.shown import Shown, html_of, one_line, text_of


@dataclass(frozen=True)
class KVCacheGroup:
    """The pool of one KV cache group: ``num_blocks`` blocks; a query sees ``window`` tokens (None: all)."""

    num_blocks: int
    window: int | None = None


@dataclass(frozen=True)
class Allocation:
    """The result of ``allocate``: ``num_cached`` of the ``num_tokens`` tokens need not be computed.

    ``num_loaded`` of these are on the host. The step must first transfer ``loads``, pairs of (device block, host block)
    for each group; no other prompt finds them on the device before the next ``commit``.
    """

    num_tokens: int
    num_cached: int
    num_loaded: int = field(default=0, repr=False)
    loads: tuple[tuple[tuple[int, int], ...], ...] = field(default=(), repr=False)


class BlockManager:
    """``num_blocks`` blocks for a model with equal layers, or one ``KVCacheGroup`` for each KV cache group.

    The life of a sequence: ``allocate`` or ``fork``, ``append`` and ``commit`` once a step, ``free``. ``host_blocks``
    holds swapped sequences and reclaimed prefix blocks; None: nothing can be swapped.
    Raises ``ArgumentError`` for counts that are not whole numbers of at least 1, and for host blocks of another size
    or another number of groups.
    """

    def __init__(
        self,
        num_blocks: int | Sequence[KVCacheGroup],
        block_size: int = 16,
        *,
        host_blocks: HostBlocks | None = None,
    ):
        if isinstance(num_blocks, int):
            num_blocks = [KVCacheGroup(num_blocks)]
        groups = list(num_blocks) if isinstance(num_blocks, Iterable) else []
        if not groups or not all(isinstance(group, KVCacheGroup) for group in groups):
            raise ArgumentError("bad_groups", value=num_blocks)
        for group in groups:
            if group.window is not None:
                check_count("window", group.window)
        self.block_size = block_size
        self.kv_cache_groups = tuple(groups)
        self.pools = tuple(BlockPool(group.num_blocks, block_size) for group in groups)
        self._windows = tuple(group.window for group in groups)
        self._windowed = any(window is not None for window in self._windows)
        self._sequences: dict[Hashable, SequenceBlocks] = {}
        self._tables = BlockTables(len(groups))
        self._asked_tokens = 0
        self._hit_tokens = 0
        self.host_blocks = HostBlocks(0, block_size, len(groups)) if host_blocks is None else host_blocks
        self._check_host_blocks()

    def match(self, tokens: Sequence[int], salt: str = "") -> Match:
        """Return the cached prefix of a prompt: whole blocks, and never the last token. Changes nothing."""
        return self.host_blocks.find_prefix(token_array(tokens), root_digest(salt), self.pools, self._windows)

    def allocate(
        self, seq_id: Hashable, tokens: Sequence[int], salt: str = "", *, most_cached: int | None = None
    ) -> Allocation:
        """Begin a sequence: take the cached prefix of ``tokens``, and blocks for the rest.

        For a chunked prefill pass the tokens up to the end of the first chunk here, and later chunks to
        ``append_tokens``. The chunk begins behind the cached tokens, ``match(prompt).num_tokens``, because
        ``append_tokens`` looks up no prefix. ``most_cached`` is the longest prefix to take, in whole blocks (None: as
        long as there is one). Requests share blocks only under an equal ``salt``. Raises
        ``OutOfBlocksError`` if a pool has too few free blocks, ``RequestTooLargeError`` if it has too few at all,
        ``ArgumentError`` for a known sequence, for no tokens, and for invalid token ids.
        """
        self._check_new(seq_id)
        ids, root = token_array(tokens), root_digest(salt)
        if not ids:
            raise ArgumentError("no_tokens", sequence=seq_id)
        # A prefix never has the last token.
        sought = ids if most_cached is None else ids[: most_cached + 1]
        found = self.host_blocks.find_prefix(sought, root, self.pools, self._windows)
        loads = found.host or ((),) * len(self.pools)
        total = -(-len(ids) // self.block_size)
        # Blocks in use by others cost nothing; cached blocks that are free leave the free list when they are taken.
        hits, needs, free = [], [], []
        for pool, blocks, loaded in zip(self.pools, found.tables, loads, strict=True):
            holes = self._windowed or loaded
            hits.append([block for block in blocks if block != NULL_BLOCK] if holes else blocks)
            needs.append(total - len(blocks) + len(loaded))
            free.append(pool.num_free - pool.count_free(hits[-1]))
        check_capacity(seq_id, len(ids), needs, hits, free, self.pools)
        tables, pairs = [], []
        for group, (pool, blocks, loaded) in enumerate(zip(self.pools, found.tables, loads, strict=True)):
            pool.touch(hits[group])
            added = pool.allocate(needs[group])
            table = [*blocks, *added[len(loaded) :]]
            if loaded:
                self.host_blocks.pin(group, [host for _, host in loaded])
                for (place, _), block in zip(loaded, added, strict=False):
                    table[place] = block
            pairs.append(tuple((block, host) for block, (_, host) in zip(added, loaded, strict=False)))
            tables.append(BlockTable(table, len(blocks) - len(hits[group]) - len(loaded)))
        places = {place for loaded in loads for place, _ in loaded}
        seq = SequenceBlocks(seq_id, ids, tables, list(found.digests), root, 0)
        seq.num_committed = found.num_tokens
        # Blocks loaded from the host can be found on the device after the commit that follows the transfer.
        seq.num_published = min(places, default=found.num_tokens // self.block_size)
        seq.append_limit = total * self.block_size
        self._add(seq)
        self._asked_tokens += len(ids)
        self._hit_tokens += found.num_tokens
        num_loaded = len(places) * self.block_size
        return Allocation(len(ids), found.num_tokens, num_loaded, tuple(pairs) if places else ())

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Begin the sequence ``child`` with the tokens and blocks of ``parent``; all blocks are shared.

        The sequence that first writes into a shared block gets a copy of it (``append``, ``append_tokens``).
        """
        seq = self._get(parent)
        self._check_known(seq)
        self._check_new(child)
        tables = []
        for pool, table in zip(self.pools, seq.tables, strict=True):
            pool.share(table.live())
            table.num_private = 0
            tables.append(BlockTable(list(table.blocks), table.num_passed, table.num_evicted_tokens))
        twin = SequenceBlocks(child, seq.tokens[:], tables, list(seq.digests), seq.root, 0)
        twin.num_committed, twin.num_published = seq.num_committed, seq.num_published
        twin.evicted_until = seq.evicted_until
        seq.append_limit = 0  # both must check the last block before they write
        self._add(twin)

    def append(self, seq_id: Hashable, token: int) -> tuple[Copy, ...]:
        """Append a token; return the copies that the storage must make first, usually none. See ``append_tokens``."""
        try:
            seq = self._sequences[seq_id]
            if type(token) is bool:  # the array would accept it
                raise TypeError
            if len(seq.tokens) < seq.append_limit:
                seq.tokens.append(token)
                return ()
            ids = array("q", (token,))
        except (KeyError, TypeError, OverflowError):
            return self.append_tokens(seq_id, (token,))  # raises the error that names the fault
        return self._grow(seq, ids)

    def append_tokens(self, seq_id: Hashable, tokens: Sequence[int]) -> tuple[Copy, ...]:
        """Append tokens: take new blocks where they are needed, and a copy of the last block if it is shared.

        Raises ``OutOfBlocksError``, ``RequestTooLargeError``, ``ArgumentError`` as ``allocate`` does, and
        ``UnknownNameError`` for an unknown sequence.
        """
        seq, ids = self._get(seq_id), token_array(tokens)
        return self._grow(seq, ids) if ids else ()

    def can_reserve_slots(self, seq_ids: Iterable[Hashable]) -> bool:
        """Return whether ``reserve_slot`` would work for all of these sequences, without a copy. Changes nothing.

        If reclaimed blocks are saved on the host, only empty blocks count: the others need a transfer.
        """
        needs = [0] * len(self.pools)
        for seq_id in seq_ids:
            seq = self._get(seq_id)
            if len(seq.tokens) < seq.append_limit:
                continue
            for group, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
                if seq.length(group) % self.block_size == 0:
                    needs[group] += 1
                elif table.blocks[-1] != NULL_BLOCK and pool.ref_count(table.blocks[-1]) > 1:
                    return False
        return all(
            need <= pool.num_free - (0 if pool.reclaimed is None else pool.num_cached)
            for need, pool in zip(needs, self.pools, strict=True)
        )

    def reserve_slot(self, seq_id: Hashable) -> tuple[Copy, ...]:
        """As ``append``, for a token that is still being sampled. Nothing can be appended to it before ``fill_slot``.

        Until then it is ``UNKNOWN`` in ``tokens``, and cannot be committed, so a block with it is never found.
        """
        copies = self.append(seq_id, UNKNOWN)
        seq = self._sequences[seq_id]
        seq.limit_after_fill, seq.append_limit = seq.append_limit, 0
        return copies

    def fill_slot(self, seq_id: Hashable, token: int) -> None:
        """Set the sequence's last token to ``token``; ``reserve_slot`` has taken its slot.

        Raises ``ArgumentError`` if it is known already, and for an invalid token id.
        """
        seq = self._get(seq_id)
        if seq.limit_after_fill is None:
            raise ArgumentError("token_is_known", sequence=seq_id, position=len(seq.tokens) - 1)
        try:
            if type(token) is bool:
                raise TypeError
            seq.tokens[-1] = token
        except (TypeError, OverflowError):
            seq.tokens[-1:] = token_array((token,))  # raises the error that names the fault
        # Meanwhile the last block could be neither shared nor published, so the old limit holds.
        seq.append_limit, seq.limit_after_fill = seq.limit_after_fill, None

    def commit(self, seq_id: Hashable, num_tokens: int | None = None) -> None:
        """Record that the forward has written K and V of the first ``num_tokens`` tokens (None: of all).

        Call it once a step, after the forward. It publishes the full blocks, so that other sequences may find
        them, and frees the blocks that no window needs any more. Raises ``ArgumentError`` for a number
        below the last committed one or above the sequence's length, and for a token that is not known yet.
        """
        seq = self._get(seq_id)
        if num_tokens is None:
            num_tokens = len(seq.tokens)
        elif type(num_tokens) is not int or not seq.num_committed <= num_tokens <= len(seq.tokens):
            low, high = seq.num_committed - 1, len(seq.tokens)
            raise ArgumentError("out_of_range", what="num_tokens", value=num_tokens, low=low, high=high)
        if seq.limit_after_fill is not None and num_tokens == len(seq.tokens):
            self._check_known(seq)
        seq.num_committed = num_tokens
        full = num_tokens // self.block_size
        if full != seq.num_published:
            if not seq.evicted_until:  # after an eviction blocks do not hold what their digests name
                self._publish(seq, full)
            seq.num_published = full
        if self._windowed:
            for group, window in enumerate(self._windows):
                until = first_block_needed(num_tokens, window, self.block_size)
                if until > seq.tables[group].num_passed:
                    start = seq.tables[group].num_passed
                    dropped = seq.tables[group].give_back(until)
                    # free() begins at the end of the list, so the oldest block is freed, and later reused, first
                    self.pools[group].free(dropped[::-1])
                    self._tables.clear(group, seq.row, start, until)

    def truncate(self, seq_id: Hashable, num_tokens: int) -> None:
        """Drop the tokens behind ``num_tokens`` (refused drafts), and free their blocks.

        Raises ``ArgumentError`` for a number outside 1 and the sequence's length, or before its last eviction, and
        if a window has already freed a block that the shorter sequence would need.
        """
        seq = self._get(seq_id)
        low, high = max(1, seq.evicted_until) - 1, len(seq.tokens)
        if type(num_tokens) is not int or not low < num_tokens <= high:
            raise ArgumentError("out_of_range", what="num_tokens", value=num_tokens, low=low, high=high)
        for window, table in zip(self._windows, seq.tables, strict=True):
            needed = first_block_needed(num_tokens, window, self.block_size)
            if table.num_passed > needed:
                raise ArgumentError(
                    "window_gave_back", sequence=seq_id, num_tokens=num_tokens, window=window, block=needed
                )
        for group, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
            keep = -(-(num_tokens - table.num_evicted_tokens) // self.block_size)
            self._tables.clear(group, seq.row, keep, len(table.blocks))
            pool.free(table.blocks[keep:])
            del table.blocks[keep:]
            table.num_private = min(table.num_private, keep)
        if num_tokens < len(seq.tokens):
            seq.limit_after_fill = None
        del seq.tokens[num_tokens:]
        full = num_tokens // self.block_size
        del seq.digests[full:]
        seq.num_committed = min(seq.num_committed, num_tokens)
        seq.num_published = min(seq.num_published, full)
        seq.append_limit = 0  # the last block may be published or shared now

    def free(self, seq_id: Hashable) -> None:
        """End a sequence, swapped out or not: it holds no block any more; published blocks can still be found."""
        if seq_id in self.host_blocks:
            seq = self.host_blocks.get(seq_id)
            self.host_blocks.free([table.live() for table in seq.tables])
            del self.host_blocks.sequences[seq_id]
            return
        seq = self._get(seq_id)
        for pool, table in zip(self.pools, seq.tables, strict=True):
            pool.free(table.live())
        self._tables.remove(seq.row)
        del self._sequences[seq_id]

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block, on the device and on the host: later prompts find nothing of earlier ones.

        Returns False, and forgets nothing, while a block is held: by a sequence, swapped out or not, or by a transfer.
        """
        pools = (*self.pools, *self.host_blocks.pools)
        if any(pool.num_used for pool in pools):
            return False
        for pool in pools:
            for content in pool.cached():
                pool.forget(content.block)
        # Drop the blocks that were about to be saved too
        self.keep_reclaimed(self.pools[0].reclaimed is not None)
        return True

    def compact(self, seq_id: Hashable, keep: int, kv_cache_group: int = 0) -> Compaction:
        """Keep ``keep`` of the tokens that the sequence has in ``kv_cache_group``, and free its tail blocks.

        The same number is kept in every layer and head, so they go on sharing the block table; only the storage knows
        which tokens they are. Shared blocks are copied first, published ones are forgotten. Raises ``OutOfBlocksError``
        if blocks for the copies are missing, ``ArgumentError`` for a ``keep`` outside 1 and the length, before
        everything is committed, and for a group with a window, which drops tokens by itself.
        """
        seq = self._evictable(seq_id, kv_cache_group)
        return compact(seq, kv_cache_group, keep, self.pools[kv_cache_group], self._tables)

    def drop_blocks(self, seq_id: Hashable, places: Sequence[int], kv_cache_group: int = 0) -> None:
        """Take the blocks at ``places`` out of the table; nothing is moved or copied.

        The other blocks keep their tokens, so they may still be shared, and found as a prefix. The last block stays,
        since the next token may belong into it. Raises ``ArgumentError`` as ``compact`` does, and for a place that is
        not in the table, or is its last one.
        """
        seq = self._evictable(seq_id, kv_cache_group)
        drop_blocks(seq, kv_cache_group, places, self.pools[kv_cache_group], self._tables)

    def num_evicted(self, seq_id: Hashable, kv_cache_group: int = 0) -> int:
        """Return how many tokens eviction has taken from a sequence in ``kv_cache_group``, swapped out or not."""
        self._check_group(kv_cache_group)
        seq = self.host_blocks.get(seq_id) if seq_id in self.host_blocks else self._get(seq_id)
        return seq.tables[kv_cache_group].num_evicted_tokens

    @contextmanager
    def swapping_out(self, seq_id: Hashable) -> Iterator[Swap]:
        """Swap a sequence out: within the ``with`` the storage transfers the pairs; after it the device blocks are
        free.

        If the transfer raises, nothing is changed. A swapped sequence cannot grow: ``swapping_in`` brings it
        back, ``free`` ends it. Raises ``OutOfBlocksError`` if the host has too few blocks.
        """
        seq = self._get(seq_id)
        self._check_known(seq)
        host, known = self.host_blocks.allocate(seq)
        self.host_blocks.in_transit.add(seq_id)
        del self._sequences[seq_id]
        try:
            yield swap_of([table.live() for table in seq.tables], host, known)
        except BaseException:
            self.host_blocks.free(host)
            self._sequences[seq_id] = seq
            raise
        finally:
            self.host_blocks.in_transit.remove(seq_id)
        for pool, table, blocks in zip(self.pools, seq.tables, host, strict=True):
            pool.free(table.live())
            table.blocks[table.num_passed :] = blocks
        self._tables.remove(seq.row)
        self.host_blocks.sequences[seq_id] = seq

    @contextmanager
    def swapping_in(self, seq_id: Hashable) -> Iterator[Swap]:
        """Swap a sequence in. If it raises (``OutOfBlocksError``, a transfer), the host keeps its copy."""
        seq = self.host_blocks.get(seq_id)
        blocks = allocate_all(self.pools, [len(table.live()) for table in seq.tables])
        host = [table.live() for table in seq.tables]
        self.host_blocks.in_transit.add(seq_id)
        try:
            yield swap_of(blocks, host, [set() for _ in host])
        except BaseException:
            for pool, of_group in zip(self.pools, blocks, strict=True):
                pool.free(of_group)
            raise
        finally:
            self.host_blocks.in_transit.remove(seq_id)
        self.host_blocks.free(host)
        del self.host_blocks.sequences[seq_id]
        for table, of_group in zip(seq.tables, blocks, strict=True):
            table.blocks[table.num_passed :] = of_group
        seq.num_published = 0  # the next commit publishes the new blocks
        self._measure(seq)
        self._add(seq)

    @property
    def host_pools(self) -> tuple[BlockPool, ...]:
        """The host's blocks of each group; none if the manager was made without."""
        return self.host_blocks.pools

    def host_blocks_of(self, seq_id: Hashable) -> tuple[int, ...]:
        """Return how many blocks of each group a swapped sequence will take on the device."""
        return tuple(len(table.live()) for table in self.host_blocks.get(seq_id).tables)

    def plan_swap_out(self, seq_id: Hashable) -> Swap:
        """As ``swapping_out``; blocks of the sequence that the host has already are not transferred."""
        with self.swapping_out(seq_id) as swap:
            pass
        self.host_blocks.expect(self.host_blocks.get(seq_id))
        return swap

    def plan_swap_in(self, seq_id: Hashable) -> Swap:
        """As ``swapping_in``; the host blocks stay held until the step has read them."""
        blocks = [list(table.live()) for table in self.host_blocks.get(seq_id).tables]
        with self.swapping_in(seq_id) as swap:
            for group, of_group in enumerate(blocks):
                self.host_blocks.pin(group, of_group)
        return swap

    def plan_save(self) -> Swap:
        """Plan to save the content of cached blocks that have been reclaimed since the last call."""
        reclaimed = [pool.reclaimed or [] for pool in self.pools]
        self.keep_reclaimed(self.pools[0].reclaimed is not None)
        return self.host_blocks.store_all(reclaimed)

    def plan_save_cached(self) -> Swap:
        """Plan to save the content of the device's free blocks; without room for all, of the last used ones."""
        rooms = [pool.num_free for pool in self.host_blocks.pools]
        cached = [pool.cached() for pool in self.pools]
        return self.host_blocks.store_all(
            [of_group[max(0, len(of_group) - room) :] for of_group, room in zip(cached, rooms, strict=True)]
        )

    def plan_load(self, contents: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[list[int | None]]:
        """Return host blocks for prefix blocks that were saved elsewhere: (digest, tokens) for each group.

        None for content that the host has already, or has no room for.
        """
        return [
            [self.host_blocks.store(group, digest, tokens) for digest, tokens in of_group]
            for group, of_group in enumerate(contents)
        ]

    def keep_reclaimed(self, keep: bool = True) -> None:
        """Set whether reclaimed content is recorded for ``plan_save`` from now on; drop the content recorded so far."""
        for pool in self.pools:
            pool.reclaimed = [] if keep else None

    def complete_transfers(self, arrived: bool) -> None:
        """End the planned transfers. Blocks that have arrived on the host can be found from now on."""
        self.host_blocks.complete_transfers(arrived)

    def num_tokens(self, seq_id: Hashable) -> int:
        """The number of the sequence's tokens, evicted ones included: the position of the next one."""
        return len(self._get(seq_id).tokens)

    def tokens(self, seq_id: Hashable) -> np.ndarray:
        """int64 [num_tokens]: the sequence's token ids, evicted ones included. A copy."""
        return np.array(self._get(seq_id).tokens)

    def length(self, seq_id: Hashable, kv_cache_group: int = 0) -> int:
        """The used slots of the table, which a kernel reads in a group without a window. It is not the position."""
        self._check_group(kv_cache_group)
        return self._get(seq_id).length(kv_cache_group)

    def block_table(self, seq_id: Hashable, kv_cache_group: int = 0) -> list[int]:
        """The sequence's blocks in token order, ``NULL_BLOCK`` where a window has moved on. A copy."""
        self._check_group(kv_cache_group)
        return list(self._get(seq_id).tables[kv_cache_group].blocks)

    def sequences(self) -> list[Hashable]:
        """The running sequences, in the order of the rows of ``block_tables``, which changes when one ends."""
        return [seq.id for seq in self._tables.owners]

    def block_tables(self, kv_cache_group: int = 0) -> np.ndarray:
        """int32 [sequences, columns]: all block tables, a view that the next operation may overwrite."""
        self._check_group(kv_cache_group)
        return self._tables.view(kv_cache_group)

    def rows(self, seq_ids: Iterable[Hashable]) -> np.ndarray:
        """int64 [sequences]: the present rows of these sequences in ``block_tables``."""
        return np.array([seq.row for seq in map(self._get, seq_ids)], np.int64)

    def slot_mapping(self, seq_id: Hashable, start: int, end: int, kv_cache_group: int = 0) -> np.ndarray:
        """int64 [end - start]: the slots for K and V of the tokens at positions ``start`` to ``end - 1``.

        ``slots_of`` has the formula; -1 (store nothing) behind a window.
        Raises ``ArgumentError`` for positions that the sequence does not have, or from before its last eviction.
        """
        self._check_group(kv_cache_group)
        seq = self._get(seq_id)
        table = seq.tables[kv_cache_group]
        low = seq.evicted_until if table.num_evicted_tokens else 0
        if type(start) is not int or type(end) is not int or not low <= start <= end <= len(seq.tokens):
            raise ArgumentError("bad_positions", start=start, end=end, low=low, high=len(seq.tokens))
        places = np.arange(start - table.num_evicted_tokens, end - table.num_evicted_tokens)
        return slots_of(self._tables.view(kv_cache_group), seq.row, places, self.block_size)

    def decode_slots(self, seq_ids: Iterable[Hashable] | None = None, kv_cache_group: int = 0) -> np.ndarray:
        """int64 [sequences]: the slot of each sequence's last token (None: of all, in the order of the rows)."""
        self._check_group(kv_cache_group)
        if seq_ids is not None and not isinstance(seq_ids, Iterable):
            raise ArgumentError("not_a_list", what="seq_ids", value=type(seq_ids).__name__)
        chosen = self._tables.owners if seq_ids is None else [self._get(seq_id) for seq_id in seq_ids]
        rows = np.array([seq.row for seq in chosen], np.int64)
        last = np.array([seq.length(kv_cache_group) - 1 for seq in chosen], np.int64)
        return slots_of(self._tables.view(kv_cache_group), rows, last, self.block_size)

    def stats(self) -> ManagerStats:
        """Blocks by state and group, prefix hits, internal fragmentation."""
        return manager_stats(self.pools, self._tables.owners, self._asked_tokens, self._hit_tokens)

    def shown(self, lang: str = "en") -> Shown:
        """The present ``stats``: blocks by state and group, slots without a token, prefix hits."""
        return self.stats().shown(lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        pools = [pool.stats() for pool in self.pools]
        return one_line(type(self).__name__, "", *facts(pools, self.block_size, len(self._sequences)))

    def check_invariants(self) -> None:
        """Check everything; ``BrokenInvariantError`` names a block lost or owned twice. For tests: it is slow."""
        sequences = self._tables.owners
        check_holders(self.pools, sequences)
        check_holders(self.host_blocks.pools, self.host_blocks.sequences.values(), self.host_blocks.pinned)
        check_rows(self._tables, sequences)
        for seq in [*sequences, *self.host_blocks.sequences.values()]:
            check_sequence(seq, self.block_size)

    def _check_new(self, seq_id: Hashable) -> None:
        """Raise unless the id of a new sequence is unused and can be a key."""
        try:
            known = seq_id in self._sequences or seq_id in self.host_blocks
        except TypeError:  # a list, or another type that cannot be a key
            raise ArgumentError("bad_sequence_id", value=type(seq_id).__name__) from None
        if seq_id != seq_id:  # NaN never equals itself, so its blocks could never be freed
            raise ArgumentError("bad_sequence_id", value=repr(seq_id))
        if known:
            raise ArgumentError("sequence_exists", sequence=seq_id)

    def _get(self, seq_id: Hashable) -> SequenceBlocks:
        try:
            return self._sequences[seq_id]
        except (KeyError, TypeError):  # TypeError: a list, or another type that cannot be a key
            code = "sequence_swapped" if seq_id in self.host_blocks else "unknown_sequence"
            raise UnknownNameError(code, sequence=seq_id, count=len(self._sequences)) from None

    def _check_known(self, seq: SequenceBlocks) -> None:
        """Raise if the last token is not known, only its slot reserved."""
        if seq.limit_after_fill is not None:
            raise ArgumentError("token_unknown", sequence=seq.id, position=len(seq.tokens) - 1)

    def _check_group(self, group: int) -> None:
        if type(group) is not int or not 0 <= group < len(self.pools):
            raise ArgumentError("no_such_group", kv_cache_group=group, last=len(self.pools) - 1)

    def _check_host_blocks(self) -> None:
        host = self.host_blocks
        if not isinstance(host, HostBlocks):
            raise ArgumentError("not_host_blocks", value=type(host).__name__)
        if (host.block_size, host.num_kv_cache_groups) != (self.block_size, len(self.pools)):
            raise ArgumentError(
                "host_blocks_differ",
                host_size=host.block_size,
                host_groups=host.num_kv_cache_groups,
                block_size=self.block_size,
                groups=len(self.pools),
            )

    def _evictable(self, seq_id: Hashable, group: int) -> SequenceBlocks:
        """Return the sequence, if eviction may take tokens of ``group`` from it."""
        seq = self._get(seq_id)
        self._check_group(group)
        if self._windows[group] is not None:
            raise ArgumentError("compact_window", kv_cache_group=group, window=self._windows[group])
        if seq.num_committed < len(seq.tokens):
            # An uncommitted token would lose its slot before it is written.
            raise ArgumentError(
                "compact_uncommitted",
                sequence=seq_id,
                committed=seq.num_committed,
                num_tokens=len(seq.tokens),
            )
        return seq

    def _grow(self, seq: SequenceBlocks, ids: array) -> tuple[Copy, ...]:
        self._check_known(seq)
        size, position = self.block_size, len(seq.tokens)
        needs, short = [], False
        for pool, table in zip(self.pools, seq.tables, strict=True):
            blocks, length = table.blocks, position - table.num_evicted_tokens
            # The table has ceil(length / size) blocks. A partly filled last block is written to, so it must not be
            # shared.
            new = -(-(length + len(ids)) // size) - len(blocks)
            writes_tail = length % size and blocks[-1] != NULL_BLOCK
            copied = writes_tail and pool.ref_count(blocks[-1]) > 1
            short = short or new + copied > pool.num_free
            needs.append((new + copied, copied, writes_tail))
        if short:
            refuse_more(seq, position + len(ids), needs, self.pools)
        copies = []
        for group, (count, copied, writes_tail) in enumerate(needs):
            pool, blocks = self.pools[group], seq.tables[group].blocks
            added = pool.allocate(count)
            # Copy on write: a shared last block is replaced by a copy, and this sequence drops its reference to the old
            # one.
            if copied:
                copies.append(Copy(group, blocks[-1], added[0]))
                pool.free([blocks.pop()])
            elif writes_tail:
                pool.forget(blocks[-1])  # truncate() left it published, and its content is about to change
            if added:
                self._tables.write(group, seq.row, len(blocks), added)
                blocks += added
        seq.tokens += ids
        self._measure(seq)
        return tuple(copies)

    def _publish(self, seq: SequenceBlocks, full: int) -> None:
        first, digests = seq.num_published, seq.digests
        for place, chunk in enumerate(chunks(seq.tokens, self.block_size, first, full), first):
            if place == len(digests):
                # The digest chain: each block's digest covers the digest before it, so equal digests mean equal
                # prefixes.
                digests.append(child_digest(digests[-1] if place else seq.root, chunk))
            for pool, table in zip(self.pools, seq.tables, strict=True):
                block = table.blocks[place]
                if block != NULL_BLOCK:
                    pool.publish(block, digests[place], chunk)

    def _measure(self, seq: SequenceBlocks) -> None:
        """Set ``append_limit`` to the tokens that fit into the blocks of ``seq``, in the group with the least room."""
        size = self.block_size
        seq.append_limit = min([len(table.blocks) * size + table.num_evicted_tokens for table in seq.tables])

    def _add(self, seq: SequenceBlocks) -> None:
        seq.row = self._tables.add(seq)
        for group, table in enumerate(seq.tables):
            self._tables.write(group, seq.row, 0, table.blocks)
        self._sequences[seq.id] = seq
