"""BlockManager: which sequence holds which blocks, and which of them several share.

    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> manager.allocate("a", [1, 2, 3, 4, 5, 6]).num_cached
    0
    >>> manager.commit("a")                                  # the forward has written K and V
    >>> manager.allocate("b", [1, 2, 3, 4, 9]).num_cached    # the first block is shared
    4
    >>> manager.block_table("a"), manager.block_table("b")
    ([0, 1], [0, 2])

The manager never sees a tensor. It says where a token goes (``slot_mapping``) and which blocks the storage has to
copy (``Copy``); a forward writes K and V; ``commit`` says that it has. Layers that keep different tokens (another
window, another width) are of different kinds, each with a pool and block tables of its own; an operation takes
blocks in all kinds or in none. An operation that raises has changed nothing.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from minikv.blocks.growth import Growth
from minikv.blocks.pool import NULL_BLOCK
from minikv.blocks.prefix import (
    Match,
    child_digest,
    chunks,
    first_block_needed,
    root_digest,
    token_array,
)
from minikv.blocks.room import refuse_new
from minikv.blocks.sequence import SequenceState, Table
from minikv.errors import ArgumentError


@dataclass(frozen=True)
class Allocation:
    """What ``allocate`` found: ``num_cached`` of the ``num_tokens`` tokens need not be computed.

    ``num_loaded`` of these are on the host: the step has to transfer ``loads`` first, for each kind pairs of (device
    block, host block), and nobody else finds them on the device before the next ``commit``.
    """

    num_tokens: int
    num_cached: int
    num_loaded: int = field(default=0, repr=False)
    loads: tuple[tuple[tuple[int, int], ...], ...] = field(default=(), repr=False)


class BlockManager(Growth):
    """The life of a sequence: ``allocate`` or ``fork``, ``append`` and ``commit`` once a step, ``free``."""

    def match(self, tokens: Sequence[int], salt: str = "") -> Match:
        """How much of a prompt is cached: whole blocks, and never the last token. Nothing changes."""
        return self._find(token_array(tokens), root_digest(salt))

    def allocate(self, seq_id: Hashable, tokens: Sequence[int], salt: str = "") -> Allocation:
        """Begin a sequence: take the cached prefix of ``tokens``, and blocks for the rest.

        For a chunked prefill give the tokens up to the end of the first chunk, and ``extend`` by the others. The
        chunk begins behind what is cached, ``match(prompt).num_tokens``: ``extend`` looks nothing up any more.
        Requests share blocks only under an equal ``salt``. Raises ``OutOfBlocks`` if a pool has too few free
        blocks, ``RequestTooLarge`` if it has too few at all, ``ArgumentError`` for a sequence that exists, for no
        tokens, and for what are not token ids.
        """
        self._check_new(seq_id)
        ids, root = token_array(tokens), root_digest(salt)
        if not ids:
            raise ArgumentError("no_tokens", sequence=seq_id)
        found = self._find(ids, root)
        loads = found.host or ((),) * len(self.pools)
        total = -(-len(ids) // self.block_size)
        hits, needs, free = [], [], []
        for pool, blocks, loaded in zip(self.pools, found.tables, loads, strict=True):
            holes = self._windowed or loaded
            hits.append([block for block in blocks if block != NULL_BLOCK] if holes else blocks)
            needs.append(total - len(blocks) + len(loaded))
            free.append(pool.num_free - pool.count_free(hits[-1]))
        if any(need > can for need, can in zip(needs, free, strict=True)):
            refuse_new(seq_id, len(ids), needs, hits, free, self.pools)
        tables, pairs = [], []
        for kind, (pool, blocks, loaded) in enumerate(zip(self.pools, found.tables, loads, strict=True)):
            pool.touch(hits[kind])
            added = pool.allocate(needs[kind])
            table = [*blocks, *added[len(loaded) :]]
            if loaded:
                self._host.hold(kind, [host for _, host in loaded])
                for (place, _), block in zip(loaded, added, strict=False):
                    table[place] = block
            pairs.append(tuple((block, host) for block, (_, host) in zip(added, loaded, strict=False)))
            tables.append(Table(table, len(blocks) - len(hits[kind]) - len(loaded)))
        places = {place for loaded in loads for place, _ in loaded}
        seq = SequenceState(seq_id, ids, tables, list(found.digests), root, 0)
        seq.committed = found.num_tokens
        # What comes from the host can be found on the device when the next commit says that it is there.
        seq.published = min(places, default=found.num_tokens // self.block_size)
        seq.limit = total * self.block_size
        self._add(seq)
        self._asked_tokens += len(ids)
        self._hit_tokens += found.num_tokens
        num_loaded = len(places) * self.block_size
        return Allocation(len(ids), found.num_tokens, num_loaded, tuple(pairs) if places else ())

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Begin the sequence ``child`` with everything that ``parent`` has; all blocks are shared.

        Whoever first writes into a shared block gets a copy of it (``append``, ``extend``).
        """
        seq = self._get(parent)
        self._check_known(seq)
        self._check_new(child)
        tables = []
        for pool, table in zip(self.pools, seq.tables, strict=True):
            pool.share(table.live())
            table.private = 0
            tables.append(Table(list(table.blocks), table.first, table.evicted))
        twin = SequenceState(child, seq.tokens[:], tables, list(seq.digests), seq.root, 0)
        twin.committed, twin.published, twin.floor = seq.committed, seq.published, seq.floor
        seq.limit = 0  # both have to look at the last block before they write
        self._add(twin)

    def commit(self, seq_id: Hashable, num_tokens: int | None = None) -> None:
        """The forward has written K and V of the first ``num_tokens`` tokens (None: of all).

        Call it once a step, after the forward: it publishes the blocks that are full, so that others may find
        them, and gives back the blocks that no window needs any more. Raises ``ArgumentError`` for a number
        below what was committed before or above what the sequence has, and for a token that nobody knows yet.
        """
        seq = self._get(seq_id)
        if num_tokens is None:
            num_tokens = len(seq.tokens)
        elif type(num_tokens) is not int or not seq.committed <= num_tokens <= len(seq.tokens):
            low, high = seq.committed - 1, len(seq.tokens)
            raise ArgumentError("out_of_range", what="num_tokens", value=num_tokens, low=low, high=high)
        if num_tokens == len(seq.tokens):
            self._check_known(seq)
        seq.committed = num_tokens
        full = num_tokens // self.block_size
        if full != seq.published:
            if not seq.floor:  # after an eviction a block no longer holds the tokens that its digest names
                self._publish(seq, full)
            seq.published = full
        if self._windowed:
            for kind, window in enumerate(self._windows):
                until = first_block_needed(num_tokens, window, self.block_size)
                if until > seq.tables[kind].first:
                    start = seq.tables[kind].first
                    dropped = seq.tables[kind].give_back(until)
                    self.pools[kind].free(dropped[::-1])  # the oldest is evicted first
                    self._tables.clear(kind, seq.row, start, until)

    def truncate(self, seq_id: Hashable, num_tokens: int) -> None:
        """Take back the tokens behind ``num_tokens`` (drafts that were refused); blocks of theirs are freed.

        Raises ``ArgumentError`` for a number outside 1 and the sequence's length, or before its last eviction, and
        where a window has already given back a block that the shorter sequence would need.
        """
        seq = self._get(seq_id)
        low, high = max(1, seq.floor) - 1, len(seq.tokens)
        if type(num_tokens) is not int or not low < num_tokens <= high:
            raise ArgumentError("out_of_range", what="num_tokens", value=num_tokens, low=low, high=high)
        for window, table in zip(self._windows, seq.tables, strict=True):
            needed = first_block_needed(num_tokens, window, self.block_size)
            if table.first > needed:
                raise ArgumentError(
                    "window_gave_back", sequence=seq_id, num_tokens=num_tokens, window=window, block=needed
                )
        for kind, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
            keep = -(-(num_tokens - table.evicted) // self.block_size)
            self._tables.clear(kind, seq.row, keep, len(table.blocks))
            pool.free(table.blocks[keep:])
            del table.blocks[keep:]
            table.private = min(table.private, keep)
        if num_tokens < len(seq.tokens):
            seq.unknown = False
        del seq.tokens[num_tokens:]
        full = num_tokens // self.block_size
        del seq.digests[full:]
        seq.committed, seq.published = min(seq.committed, num_tokens), min(seq.published, full)
        seq.limit = 0  # the last block may be published or shared now

    def free(self, seq_id: Hashable) -> None:
        """End a sequence, swapped out or not: it holds no block any more; published ones can still be found."""
        if seq_id in self._host:
            seq = self._host.get(seq_id)
            self._host.free([table.live() for table in seq.tables])
            del self._host.sequences[seq_id]
            return
        seq = self._get(seq_id)
        for pool, table in zip(self.pools, seq.tables, strict=True):
            pool.free(table.live())
        self._tables.remove(seq.row)
        del self._sequences[seq_id]

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block, on the device and on the host: no later prompt finds anything of an earlier one.

        False, and nothing is forgotten, while a block is held: by a sequence, swapped out or not, or by a transfer.
        """
        pools = (*self.pools, *self._host.pools)
        if any(pool.num_used for pool in pools):
            return False
        for pool in pools:
            for content in pool.cached():
                pool.forget(content.block)
        self.keep_evicted(self.pools[0].evicted is not None)  # nor is anything saved that was about to be
        return True

    def _publish(self, seq: SequenceState, full: int) -> None:
        first, digests = seq.published, seq.digests
        for place, chunk in enumerate(chunks(seq.tokens, self.block_size, first, full), first):
            if place == len(digests):
                digests.append(child_digest(digests[-1] if place else seq.root, chunk))
            for pool, table in zip(self.pools, seq.tables, strict=True):
                block = table.blocks[place]
                if block != NULL_BLOCK:
                    pool.publish(block, digests[place], chunk)
