"""Growth: a sequence gets longer, by tokens that are known or by one that will be.

    manager.append("a", 7)         a slot for token 7, in a new block where the last one is full
    manager.place("a")             a slot for a token that is being drawn
    manager.amend("a", 9)          it is token 9

Whoever writes into a block that others hold gets a copy of it first.
"""

from array import array
from collections.abc import Hashable, Iterable, Sequence

from minikv.blocks.offload import Offload
from minikv.blocks.pool import NULL_BLOCK
from minikv.blocks.prefix import token_array
from minikv.blocks.relocation import Copy
from minikv.blocks.room import refuse_more
from minikv.blocks.sequence import UNKNOWN, SequenceState
from minikv.errors import ArgumentError


class Growth(Offload):
    """What a ``BlockManager`` does to a sequence that goes on."""

    def append(self, seq_id: Hashable, token: int) -> tuple[Copy, ...]:
        """One more token; returns the copies that the storage has to make first (mostly none). See ``extend``."""
        try:
            seq = self._sequences[seq_id]
            if type(token) is bool:  # an array would take it
                raise TypeError
            if len(seq.tokens) < seq.limit:
                seq.tokens.append(token)
                return ()
            ids = array("q", (token,))
        except (KeyError, TypeError, OverflowError):
            return self.extend(seq_id, (token,))  # it says what is wrong
        return self._grow(seq, ids)

    def extend(self, seq_id: Hashable, tokens: Sequence[int]) -> tuple[Copy, ...]:
        """More tokens at the end: new blocks where they are needed, a copy of the last block if it is shared.

        Raises ``OutOfBlocks``, ``RequestTooLarge``, ``ArgumentError`` as ``allocate`` does, and
        ``UnknownNameError`` for a sequence that the manager does not have.
        """
        seq, ids = self._get(seq_id), token_array(tokens)
        return self._grow(seq, ids) if ids else ()

    def can_place(self, seq_ids: Iterable[Hashable]) -> bool:
        """Whether ``place`` would do for all of these sequences together, and without a copy. Nothing changes.

        Where evicted blocks are to be saved on the host, only empty blocks count: nobody would save the others.
        """
        needs = [0] * len(self.pools)
        for seq_id in seq_ids:
            seq = self._get(seq_id)
            if len(seq.tokens) < seq.limit:
                continue
            for kind, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
                if seq.length(kind) % self.block_size == 0:
                    needs[kind] += 1
                elif table.blocks[-1] != NULL_BLOCK and pool.ref_count(table.blocks[-1]) > 1:
                    return False
        return all(
            need <= pool.num_free - (0 if pool.evicted is None else pool.num_cached)
            for need, pool in zip(needs, self.pools, strict=True)
        )

    def place(self, seq_id: Hashable) -> tuple[Copy, ...]:
        """As ``append``, for a token that nobody knows yet. Nothing can come behind it before ``amend``.

        Until then it is ``UNKNOWN`` in ``tokens``, and cannot be committed, so that no block with it is ever found.
        """
        copies = self.append(seq_id, UNKNOWN)
        seq = self._sequences[seq_id]
        seq.unknown, seq.limit = True, -seq.limit  # so that the next ``append`` looks
        return copies

    def amend(self, seq_id: Hashable, token: int) -> None:
        """The sequence's last token, which ``place`` has placed, is ``token``.

        Raises ``ArgumentError`` where it is known, and for what is no token id.
        """
        seq = self._get(seq_id)
        if not seq.unknown:
            raise ArgumentError("token_is_known", sequence=seq_id, position=len(seq.tokens) - 1)
        try:
            if type(token) is bool:
                raise TypeError
            seq.tokens[-1] = token
        except (TypeError, OverflowError):
            seq.tokens[-1:] = token_array((token,))  # it says what is wrong
        seq.unknown, seq.limit = False, -seq.limit  # nobody can have shared or published the last block

    def _grow(self, seq: SequenceState, ids: array) -> tuple[Copy, ...]:
        self._check_known(seq)
        size, position = self.block_size, len(seq.tokens)
        needs, short = [], False
        for pool, table in zip(self.pools, seq.tables, strict=True):
            blocks, length = table.blocks, position - table.evicted
            new = -(-(length + len(ids)) // size) - len(blocks)
            writes_tail = length % size and blocks[-1] != NULL_BLOCK
            copied = writes_tail and pool.ref_count(blocks[-1]) > 1
            short = short or new + copied > pool.num_free
            needs.append((new + copied, copied, writes_tail))
        if short:
            refuse_more(seq, position + len(ids), needs, self.pools)
        copies = []
        for kind, (count, copied, writes_tail) in enumerate(needs):
            pool, blocks = self.pools[kind], seq.tables[kind].blocks
            added = pool.allocate(count)
            if copied:
                copies.append(Copy(kind, blocks[-1], added[0]))
                pool.free([blocks.pop()])
            elif writes_tail:
                pool.forget(blocks[-1])  # truncate() left it: its content is about to change
            if added:
                self._tables.write(kind, seq.row, len(blocks), added)
                blocks += added
        seq.tokens += ids
        self._measure(seq)
        return tuple(copies)
