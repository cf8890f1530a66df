"""SequenceBook: the running sequences, their block tables, and every question about them that changes nothing."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minikv.blocks.invariants import check_holders, check_rows, check_sequence
from minikv.blocks.pool import NULL_BLOCK, BlockPool
from minikv.blocks.sequence import SequenceState
from minikv.blocks.stats import ManagerStats, facts, manager_stats
from minikv.blocks.swap import HostBlocks
from minikv.blocks.tables import BlockTables
from minikv.errors import ArgumentError, UnknownNameError, check_count
from minikv.shown import Shown, html_of, one_line, text_of


@dataclass(frozen=True)
class PoolKind:
    """The pool of one kind of layer: ``num_blocks`` blocks; ``window`` tokens are read back (None: all)."""

    num_blocks: int
    window: int | None = None


class SequenceBook:
    """``num_blocks`` blocks for a model whose layers are all alike, or one ``PoolKind`` for each kind of layer.

    ``host_blocks`` blocks of each kind can be swapped out to host memory. Raises ``ArgumentError`` for counts
    that are not whole numbers of at least 1.
    """

    def __init__(self, num_blocks: int | Sequence[PoolKind], block_size: int = 16, *, host_blocks: int = 0):
        if isinstance(num_blocks, int):
            num_blocks = [PoolKind(num_blocks)]
        kinds = list(num_blocks) if isinstance(num_blocks, Iterable) else []
        if not kinds or not all(isinstance(kind, PoolKind) for kind in kinds):
            raise ArgumentError("bad_kinds", value=num_blocks)
        for kind in kinds:
            if kind.window is not None:
                check_count("window", kind.window)
        self.block_size = block_size
        self.kinds = tuple(kinds)
        self.pools = tuple(BlockPool(kind.num_blocks, block_size) for kind in kinds)
        self._windows = tuple(kind.window for kind in kinds)
        self._windowed = any(window is not None for window in self._windows)
        self._sequences: dict[Hashable, SequenceState] = {}
        self._tables = BlockTables(len(kinds))
        self._asked_tokens = 0
        self._hit_tokens = 0
        self._host = HostBlocks(len(kinds), host_blocks, block_size)

    def num_tokens(self, seq_id: Hashable) -> int:
        """The sequence's tokens, evicted ones included: the position of the next one."""
        return len(self._get(seq_id).tokens)

    def tokens(self, seq_id: Hashable) -> np.ndarray:
        """int64 [num_tokens]: the sequence's token ids, evicted ones included. A copy."""
        return np.array(self._get(seq_id).tokens)

    def length(self, seq_id: Hashable, kind: int = 0) -> int:
        """The slots of the table that are taken: what a kernel reads, where no window is. Length is not position."""
        self._check_kind(kind)
        return self._get(seq_id).length(kind)

    def block_table(self, seq_id: Hashable, kind: int = 0) -> list[int]:
        """The sequence's blocks in token order, ``NULL_BLOCK`` where a window has moved on. A copy."""
        self._check_kind(kind)
        return list(self._get(seq_id).tables[kind].blocks)

    def sequences(self) -> list[Hashable]:
        """The running sequences, in the order of the rows of ``block_tables``. It changes when one ends."""
        return [seq.id for seq in self._tables.owners]

    def block_tables(self, kind: int = 0) -> np.ndarray:
        """int32 [sequences, columns]: all block tables, a view that the next operation may overwrite."""
        self._check_kind(kind)
        return self._tables.view(kind)

    def rows(self, seq_ids: Iterable[Hashable]) -> np.ndarray:
        """int64 [sequences]: the rows of ``block_tables`` that these sequences have now."""
        return np.array([self._get(seq_id).row for seq_id in seq_ids], np.int64)

    def slot_mapping(self, seq_id: Hashable, start: int, end: int, kind: int = 0) -> np.ndarray:
        """int64 [end - start]: where K and V of the tokens at positions ``start`` to ``end - 1`` are stored.

        slot = block_table[i // block_size] * block_size + i % block_size, and -1 (store nothing) behind a window.
        Raises ``ArgumentError`` for positions that the sequence does not have, or from before its last eviction.
        """
        self._check_kind(kind)
        seq = self._get(seq_id)
        table = seq.tables[kind]
        low = seq.floor if table.evicted else 0
        if type(start) is not int or type(end) is not int or not low <= start <= end <= len(seq.tokens):
            raise ArgumentError("bad_positions", start=start, end=end, low=low, high=len(seq.tokens))
        index = np.arange(start - table.evicted, end - table.evicted)
        blocks = self._tables.view(kind)[seq.row][index // self.block_size].astype(np.int64)
        slots = blocks * self.block_size + index % self.block_size
        return np.where(blocks == NULL_BLOCK, -1, slots)

    def decode_slots(self, seq_ids: Iterable[Hashable] | None = None, kind: int = 0) -> np.ndarray:
        """int64 [sequences]: the slot of each sequence's last token (None: of all, in the order of the rows)."""
        self._check_kind(kind)
        if seq_ids is not None and not isinstance(seq_ids, Iterable):
            raise ArgumentError("not_a_list", what="seq_ids", value=type(seq_ids).__name__)
        chosen = self._tables.owners if seq_ids is None else [self._get(seq_id) for seq_id in seq_ids]
        size = self.block_size
        last = [(seq.tables[kind].blocks[-1], (seq.length(kind) - 1) % size) for seq in chosen]
        slots = [-1 if block == NULL_BLOCK else block * size + offset for block, offset in last]
        return np.array(slots, np.int64)

    def stats(self) -> ManagerStats:
        """Blocks by state and kind, prefix hits, internal fragmentation."""
        return manager_stats(self.pools, self._tables.owners, self._asked_tokens, self._hit_tokens)

    def shown(self, lang: str = "en") -> Shown:
        """What ``stats`` says now: blocks by state and kind, slots without a token, prefix hits."""
        return self.stats().shown(lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        pools = [pool.stats() for pool in self.pools]
        return one_line(type(self).__name__, "", *facts(pools, self.block_size, len(self._sequences)))

    def check_invariants(self) -> None:
        """Look at everything; ``BrokenInvariantError`` names a block lost or owned twice. For tests: it is slow."""
        sequences = self._tables.owners
        check_holders(self.pools, sequences)
        check_holders(self._host.pools, self._host.sequences.values(), self._host.held)
        check_rows(self._tables, sequences)
        for seq in [*sequences, *self._host.sequences.values()]:
            check_sequence(seq, self.block_size)

    def _check_new(self, seq_id: Hashable) -> None:
        """Nobody may have the name of a sequence that begins."""
        try:
            known = seq_id in self._sequences or seq_id in self._host
        except TypeError:  # a list, or what else cannot be the key of a dict
            raise ArgumentError("bad_sequence_id", value=type(seq_id).__name__) from None
        if seq_id != seq_id:  # NaN: nobody could ever name the sequence again, so its blocks would be lost
            raise ArgumentError("bad_sequence_id", value=repr(seq_id))
        if known:
            raise ArgumentError("sequence_exists", sequence=seq_id)

    def _get(self, seq_id: Hashable) -> SequenceState:
        try:
            return self._sequences[seq_id]
        except (KeyError, TypeError):  # TypeError: a list, or what else cannot be the key of a dict
            code = "sequence_swapped" if seq_id in self._host else "unknown_sequence"
            raise UnknownNameError(code, sequence=seq_id, count=len(self._sequences)) from None

    def _check_known(self, seq: SequenceState) -> None:
        """What is asked for needs the last token, which may have been placed before anybody knew it."""
        if seq.unknown:
            raise ArgumentError("token_unknown", sequence=seq.id, position=len(seq.tokens) - 1)

    def _check_kind(self, kind: int) -> None:
        if type(kind) is not int or not 0 <= kind < len(self.pools):
            raise ArgumentError("no_such_kind", kind=kind, last=len(self.pools) - 1)

    def _measure(self, seq: SequenceState) -> None:
        """Up to how many tokens the blocks of ``seq`` suffice, in the kind where they end first."""
        size = self.block_size
        seq.limit = min([len(table.blocks) * size + table.evicted for table in seq.tables])

    def _add(self, seq: SequenceState) -> None:
        seq.row = self._tables.add(seq)
        for kind, table in enumerate(seq.tables):
            self._tables.write(kind, seq.row, 0, table.blocks)
        self._sequences[seq.id] = seq
