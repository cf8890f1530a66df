"""Transfers between device and host that a step carries out later: planned here, in force at once, settled after it.

    swap = manager.plan_swap_out("a")     its device blocks are free: the step transfers them before it writes any
    swap = manager.plan_save()            the same for prefix blocks that the step's allocations will overwrite
    swap = manager.plan_swap_in("b")      "b" has device blocks again; the step fills them before it reads any
    manager.settle(arrived=True)          the step is done, or False: it was not, and nothing on the host can be found

A step transfers to the host first, then from the host, then it computes.
"""

from collections.abc import Hashable, Sequence

from minikv.blocks.pool import NULL_BLOCK, BlockPool
from minikv.blocks.prefix import Match, find_prefix
from minikv.blocks.relocation import Relocation
from minikv.blocks.swap import Swap


class Offload(Relocation):
    """What an engine asks of a ``BlockManager`` with host blocks."""

    @property
    def host_pools(self) -> tuple[BlockPool, ...]:
        """The host's blocks of each kind; none where the manager was made without."""
        return self._host.pools

    def host_blocks_of(self, seq_id: Hashable) -> tuple[int, ...]:
        """The blocks of each kind that a swapped sequence will take on the device."""
        return tuple(len(table.live()) for table in self._host.get(seq_id).tables)

    def plan_swap_out(self, seq_id: Hashable) -> Swap:
        """As ``swapping_out``; what the host has already of the sequence is not transferred."""
        with self.swapping_out(seq_id) as swap:
            pass
        self._host.expect(self._host.get(seq_id))
        return swap

    def plan_swap_in(self, seq_id: Hashable) -> Swap:
        """As ``swapping_in``; the host blocks stay held until the step has read them."""
        blocks = [list(table.live()) for table in self._host.get(seq_id).tables]
        with self.swapping_in(seq_id) as swap:
            for kind, of_kind in enumerate(blocks):
                self._host.hold(kind, of_kind)
        return swap

    def plan_save(self) -> Swap:
        """What the cached blocks held that ``allocate`` and the others have taken since the last call."""
        evicted = [pool.evicted or [] for pool in self.pools]
        self.keep_evicted(self.pools[0].evicted is not None)
        return self._store(evicted)

    def plan_save_cached(self) -> Swap:
        """What the device's free blocks still hold; of more than the host has room for, what was used last."""
        rooms = [pool.num_free for pool in self._host.pools]
        cached = [pool.cached() for pool in self.pools]
        return self._store(
            [of_kind[max(0, len(of_kind) - room) :] for of_kind, room in zip(cached, rooms, strict=True)]
        )

    def plan_load(self, contents: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[list[int | None]]:
        """Host blocks for prefix blocks that were saved elsewhere: (digest, tokens) for each kind.

        None for one that the host has already, or has no room for.
        """
        return [
            [self._host.store(kind, digest, tokens) for digest, tokens in of_kind]
            for kind, of_kind in enumerate(contents)
        ]

    def keep_evicted(self, keep: bool = True) -> None:
        """Whether ``plan_save`` is to know what is evicted from now on; what it knew is forgotten."""
        for pool in self.pools:
            pool.evicted = [] if keep else None

    def settle(self, arrived: bool) -> None:
        """The planned transfers were carried out, or not. What others may find on the host they find from now on."""
        self._host.settle(arrived)

    def _store(self, contents: Sequence[Sequence]) -> Swap:
        pairs = []
        for kind, of_kind in enumerate(contents):
            stored = [(block, self._host.store(kind, digest, tokens)) for block, digest, tokens in of_kind]
            pairs.append(tuple((block, host) for block, host in stored if host is not None))
        return Swap(tuple(pairs))

    def _find(self, ids, root: bytes) -> Match:
        """``find_prefix`` on the device and, behind it, on the host."""
        if not self._host.pools:
            return find_prefix(ids, root, self.pools, self._windows)
        both = [_Both(*pools) for pools in zip(self.pools, self._host.pools, strict=True)]
        found = find_prefix(ids, root, both, self._windows)
        tables, host = [], []
        for pool, table in zip(self.pools, found.tables, strict=True):
            first = pool.num_blocks
            tables.append(tuple(block if block < first else NULL_BLOCK for block in table))
            host.append(tuple((place, block - first) for place, block in enumerate(table) if block >= first))
        return Match(found.num_tokens, tuple(tables), found.digests, tuple(host))


class _Both:
    """A pool and the host's beside it: what only host block h holds is found as block ``device.num_blocks + h``."""

    def __init__(self, device: BlockPool, host: BlockPool):
        self.device, self.host = device, host
        self.block_size = device.block_size

    def find(self, digest: bytes, tokens: bytes) -> int | None:
        block = self.device.find(digest, tokens)
        if block is None:
            block = self.host.find(digest, tokens)
            return None if block is None else self.device.num_blocks + block
        return block
