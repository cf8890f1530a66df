"""The record of each cached token that eviction keeps beside the cache: its true position, and its policy's sums.

The record lies in the order of the block table, not of the slots: row, head, place. It belongs to one sequence. Two
sequences with a common prefix share its blocks, and their queries attend to them differently: with sums kept by slot,
the tokens that a request keeps would depend on the other requests that run.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from minikv.errors import ArgumentError, UnknownNameError
from minikv.eviction.paged.asking import Asking, takes_largest
from minikv.eviction.policies.policy import Needs, Policy, Seen
from minikv.models.observer import Asked, Watch

ROWS, PLACES = 16, 64  # at first; both double when they are too small
POSITIONS, QUERIES = "positions", "queries"

Field = dict[int, Tensor]
"""For each layer a tensor [rows, heads, places]; of ``QUERIES`` [rows, ...]."""


def record_bytes(heads: int, fields: int, rows: int, places: int) -> int:
    """Return the bytes of ``TokenRecords`` with so many ``fields``; ``heads``: the KV heads of all layers."""
    return heads * rows * places * (fields * torch.float32.itemsize + torch.int64.itemsize)


@dataclass(frozen=True, eq=False)
class SavedRecord:
    """One sequence's record on the CPU, while its blocks are on the host: for each field and layer [heads, places].

    That of the queries it has met is of any shape.
    """

    packed: int
    fields: dict[str, Field]


class TokenRecords:
    """Fields of the cached tokens of each layer of ``heads`` {layer: KV heads}, on ``device``.

    ``fields`` are float32, and 0 where no token is. ``positions`` int64 are kept besides: a sequence's first ``packed``
    tokens are those that its last eviction left, in no order. The others came later, in order, so their positions
    follow from their places. There is room for ``rows`` sequences of ``places`` tokens; for more both double.

    What a sequence's queries have left in a layer, not of a token, is of any shape, float32, and 0 at first.
    """

    def __init__(
        self,
        heads: Mapping[int, int],
        fields: Sequence[str],
        device: torch.device,
        rows: int = ROWS,
        places: int = PLACES,
    ):
        dtypes = {**dict.fromkeys(fields, torch.float32), POSITIONS: torch.int64}
        self._fields: dict[str, Field] = {
            name: _zeros(heads, dtype, device, rows, places) for name, dtype in dtypes.items()
        }
        self._fields[QUERIES] = {}
        self._device = device
        self._row: dict[Hashable, int] = {}
        self._packed: dict[Hashable, int] = {}
        self._free = list(range(rows - 1, -1, -1))

    def __contains__(self, seq_id: Hashable) -> bool:
        return seq_id in self._row

    @property
    def nbytes(self) -> int:
        """Bytes of the record, which come on top of the cache."""
        return sum(tensor.nbytes for _, _, tensor in self._all())

    @property
    def num_sequences(self) -> int:
        """Sequences that were added and not removed."""
        return len(self._row)

    def check(self, seq_id: Hashable) -> None:
        """Raise ``UnknownNameError`` for a sequence that was not added."""
        self._find(seq_id)

    def add(self, seq_id: Hashable) -> None:
        """Add a sequence; its tokens have no record yet."""
        if seq_id in self._row:
            raise ArgumentError("sequence_exists", sequence=seq_id)
        if not self._free:
            self._more_rows()
        self._row[seq_id] = self._free.pop()
        self._packed[seq_id] = 0

    def remove(self, seq_id: Hashable) -> None:
        """Remove a sequence that has ended."""
        row = self._find(seq_id)
        for _, _, tensor in self._all():
            tensor[row] = 0
        del self._row[seq_id], self._packed[seq_id]
        self._free.append(row)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Let ``child`` begin with the record of ``parent``."""
        self._find(parent)
        self.add(child)
        for _, _, tensor in self._all():
            tensor[self._row[child]] = tensor[self._row[parent]]
        self._packed[child] = self._packed[parent]

    def copy(self, seq_id: Hashable) -> SavedRecord:
        """Copy the present record of a sequence to the CPU; it stays on the device too."""
        row = self._find(seq_id)
        fields: dict[str, Field] = {name: {} for name in self._fields}
        for name, layer, tensor in self._all():
            fields[name][layer] = tensor[row].to("cpu", copy=True)
        return SavedRecord(self._packed[seq_id], fields)

    def save(self, seq_id: Hashable) -> SavedRecord:
        """Take the record of a sequence off the device, since it is swapped out."""
        saved = self.copy(seq_id)
        self.remove(seq_id)
        return saved

    def restore(self, seq_id: Hashable, saved: SavedRecord) -> None:
        """Put a saved record back; the sequence's blocks may be others. After an error the record is not added."""
        self.add(seq_id)
        try:
            for name, field in saved.fields.items():
                for layer, kept in field.items():
                    if name == QUERIES:
                        self.write_queries(layer, [seq_id], kept.to(self._device)[None])
                        continue
                    self._more_places(kept.shape[1])
                    self._fields[name][layer][self._row[seq_id], :, : kept.shape[1]] = kept.to(self._device)
            self._packed[seq_id] = saved.packed
        except BaseException:
            self.remove(seq_id)
            raise

    def read(self, name: str, layer: int, seq_ids: Sequence[Hashable], length: int) -> Tensor:
        """Return [B, heads, length] of one field: a copy, 0 behind the tokens of a shorter sequence."""
        rows = self._rows(seq_ids, length)
        return self._fields[name][layer][rows, :, :length]

    def write(self, name: str, layer: int, seq_ids: Sequence[Hashable], values: Tensor) -> None:
        """Set the field to ``values`` [B, heads, length]; behind a sequence's tokens they must be 0."""
        rows = self._rows(seq_ids, values.shape[-1])
        self._fields[name][layer][rows, :, : values.shape[-1]] = values

    def read_queries(self, layer: int, seq_ids: Sequence[Hashable], shape: Sequence[int]) -> Tensor:
        """Return [B, *shape]: what ``write_queries`` wrote of these sequences, 0 where that was nothing yet."""
        rows = [self._find(seq_id) for seq_id in seq_ids]
        field = self._fields[QUERIES]
        if layer not in field:
            field[layer] = torch.zeros(len(next(self._all())[2]), *shape, device=self._device)
        return field[layer][rows]

    def write_queries(self, layer: int, seq_ids: Sequence[Hashable], values: Tensor) -> None:
        """Keep ``values`` [B, ...] of these sequences."""
        self.read_queries(layer, seq_ids, values.shape[1:])
        self._fields[QUERIES][layer][[self._row[seq_id] for seq_id in seq_ids]] = values

    def positions(
        self, layer: int, seq_ids: Sequence[Hashable], length: int, evicted: Iterable[int]
    ) -> Tensor:
        """Return int64 [B, heads, length]: the true positions of the tokens that these sequences hold.

        ``evicted`` [B]: how many tokens each has lost; a token after its last eviction has a position larger than its
        place by that number.
        """
        recorded = self.read(POSITIONS, layer, seq_ids, length)
        packed = torch.tensor([self._packed[name] for name in seq_ids], device=self._device).view(-1, 1, 1)
        lost = torch.tensor(list(evicted), device=self._device).view(-1, 1, 1)
        places = torch.arange(length, device=self._device)
        return torch.where(places < packed, recorded, places + lost)

    def keep(self, layer: int, seq_ids: Sequence[Hashable], origin: Tensor, positions: Tensor) -> None:
        """Gather the record of one layer like its cache: place i gets the token of ``origin`` [B, heads, keep].

        ``positions`` [B, heads, length]: the result of ``positions`` before. ``pack`` follows after the last layer.
        """
        rows, keep = self._rows(seq_ids, positions.shape[-1]), origin.shape[-1]
        for name, field in self._fields.items():
            if name == QUERIES:
                continue
            tensor = field[layer]
            kept = positions if name == POSITIONS else tensor[rows]
            tensor[rows] = pad(kept.gather(-1, origin), (0, tensor.shape[-1] - keep))

    def pack(self, seq_id: Hashable, places: int) -> None:
        """Record that the first ``places`` tokens of a sequence are those left by its eviction, in every layer."""
        self._find(seq_id)
        self._packed[seq_id] = places

    def _all(self) -> Iterator[tuple[str, int, Tensor]]:
        for name, field in self._fields.items():
            for layer, tensor in field.items():
                yield name, layer, tensor

    def _find(self, seq_id: Hashable) -> int:
        if seq_id not in self._row:
            raise UnknownNameError("unknown_sequence", sequence=seq_id, count=len(self._row))
        return self._row[seq_id]

    def _rows(self, seq_ids: Sequence[Hashable], places: int) -> Tensor:
        """Return int64 [B]: the rows of these sequences, each with room for that many places."""
        found = [self._find(seq_id) for seq_id in seq_ids]
        self._more_places(places)
        return torch.tensor(found, dtype=torch.int64, device=self._device)

    def _more_rows(self) -> None:
        rows = len(next(self._all())[2])
        for name, layer, tensor in list(self._all()):
            self._fields[name][layer] = torch.cat([tensor, torch.zeros_like(tensor)])
        self._free += range(2 * rows - 1, rows - 1, -1)

    def _more_places(self, places: int) -> None:
        width = next(self._all())[2].shape[-1]
        if places <= width:
            return
        while width < places:
            width *= 2
        for name, layer, tensor in list(self._all()):
            if name != QUERIES:
                self._fields[name][layer] = pad(tensor, (0, width - tensor.shape[-1]))


def _zeros(
    heads: Mapping[int, int], dtype: torch.dtype, device: torch.device, rows: int, places: int
) -> Field:
    """Return a field of zeros in one allocation: a GPU rounds each allocation up to 2 MiB.

    The zeros are written, so that a CPU commits the memory now.
    """
    counts = list(heads.values())
    whole = torch.empty(rows * places * sum(counts), dtype=dtype, device=device).zero_()
    parts = whole.split([rows * count * places for count in counts])
    return {
        layer: part.view(rows, count, places) for layer, count, part in zip(heads, counts, parts, strict=True)
    }


# The attention of a forward over blocks becomes a policy's state.


STATE, RECENT = "state", "recent"


def fields_of(policy: Policy) -> tuple[str, ...]:
    """Return the fields that this policy needs of each token."""
    return ((STATE,) if policy.needs & (Needs.PROBS | Needs.ECHO) else ()) + (
        (RECENT,) if Needs.WINDOW in policy.needs else ()
    )


class PagedObserver:
    """Enters the attention of one forward into ``records``.

    The forward computes ``queries[i]`` tokens of ``seq_ids[i]``, which holds ``lengths[i]`` tokens with them, and has
    lost ``evicted[i]`` before. ``sources`` names for a layer without a cache of its own the layer that it reads: its
    attention counts for that layer's tokens. ``asking`` takes the queries where the policy needs more than sums.
    """

    def __init__(
        self,
        policy: Policy,
        records: TokenRecords,
        seq_ids: Sequence[Hashable],
        queries: Sequence[int],
        lengths: Sequence[int],
        evicted: Sequence[int],
        sources: Mapping[int, int],
        device: torch.device,
        asking: Asking | None = None,
    ):
        self._policy, self._records, self._seq_ids = policy, records, seq_ids
        self._queries, self._lengths, self._evicted, self._sources = queries, lengths, evicted, sources
        self._length = max(lengths)
        self._absent = torch.arange(self._length, device=device) >= _column(lengths, device)
        self._rows: dict[int, list[int]] = {}
        for row, count in enumerate(queries):
            self._rows.setdefault(count, []).append(row)
        self._counted = _column([min(count, policy.window) for count in queries], device)
        self._watches: dict[str, Watch] = {}
        if Needs.PROBS in policy.needs and not takes_largest(policy):
            self._watches[STATE] = Watch(None, policy.query_weight)
        if Needs.WINDOW in policy.needs:
            self._watches[RECENT] = Watch(max(1, policy.window))
        self._asking = asking

    @property
    def watches(self) -> tuple[Watch, ...]:
        """One watch for each field of the record that is a sum."""
        return tuple(self._watches.values())

    @property
    def asks(self) -> bool:
        """Whether the policy needs the largest of some probabilities, or the queries."""
        return self._asking is not None

    def see(self, layer: int, sums: tuple[Tensor, ...], group: int) -> None:
        """See ``minikv.models.observer.Observer``."""
        layer = self._sources[layer]
        enter = {STATE: self._accumulate, RECENT: self._slide}
        for name, found in zip(self._watches, sums, strict=True):
            self._enter(name, layer, found[..., : self._length].contiguous(), enter[name], group)

    def ask(self, layer: int, asked: Asked) -> None:
        """See ``minikv.models.observer.Observer``."""
        assert self._asking is not None
        pairs = asked.pairs(self._queries, self._lengths)
        ends = [length + gone for length, gone in zip(self._lengths, self._evicted, strict=True)]
        source = self._sources[layer]
        told = self._records, self._seq_ids, layer, asked, pairs, ends
        found = self._asking.hear(*told, own=source == layer)
        for each in found:
            sums = torch.nn.utils.rnn.pad_sequence([row.transpose(0, 1) for row in each], batch_first=True)
            self._enter(STATE, source, sums.transpose(1, 2), self._observe, 1)

    def _enter(
        self,
        name: str,
        layer: int,
        found: Tensor,
        enter: Callable[[int, Tensor, Tensor, int], Tensor],
        group: int,
    ) -> None:
        old = self._records.read(name, layer, self._seq_ids, self._length)
        new = enter(layer, old, found, group).masked_fill(self._absent, 0)
        self._records.write(name, layer, self._seq_ids, new)

    def _accumulate(self, layer: int, state: Tensor, sums: Tensor, group: int) -> Tensor:
        return self._observe(layer, state, sums / group if self._policy.over_group == "mean" else sums)

    def _observe(self, layer: int, state: Tensor, sums: Tensor, group: int = 1) -> Tensor:
        """Call the policy's ``observe`` once for all sequences with the same number of new tokens."""
        policy = self._policy
        positions = self._records.positions(layer, self._seq_ids, self._length, self._evicted)
        if len(self._rows) == 1:
            return policy.observe(sums, Seen(state, next(iter(self._rows)), positions))
        new = torch.empty_like(state)
        for count, rows in self._rows.items():
            new[rows] = policy.observe(sums[rows], Seen(state[rows], count, positions[rows]))
        return new

    def _slide(self, layer: int, recent: Tensor, sums: Tensor, group: int) -> Tensor:
        """Return the mean over the last queries. After a forward of fewer than the window the older queries keep their
        share.

        Dropping the oldest query exactly would need every query's probabilities; instead all older ones fade alike.
        """
        share = self._counted / self._policy.window
        return recent * (1 - share) + sums / (self._policy.window * group)


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1)
