"""From the attention of a forward over blocks to a policy's state: what ``PagedEviction`` lets see it. Lesson 14."""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from minikv.eviction.paged_records import TokenRecords
from minikv.eviction.policy import Needs, Policy, Seen
from minikv.models.observer import Watch

STATE, RECENT = "state", "recent"


def fields_of(policy: Policy) -> tuple[str, ...]:
    """What has to be kept of each token for this policy."""
    return ((STATE,) if Needs.PROBS in policy.needs else ()) + (
        (RECENT,) if Needs.WINDOW in policy.needs else ()
    )


class PagedObserver:
    """Enters the attention of one forward into ``records``.

    The forward computes ``queries[i]`` tokens of ``seq_ids[i]``, which holds ``lengths[i]`` tokens with them, and has
    lost ``evicted[i]`` before. ``sources`` says whose tokens a layer without any of its own reads: what it looks at
    counts for them.
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
    ):
        self._policy, self._records, self._seq_ids = policy, records, seq_ids
        self._evicted, self._sources = evicted, sources
        self._length = max(lengths)
        self._absent = torch.arange(self._length, device=device) >= _column(lengths, device)
        self._rows: dict[int, list[int]] = {}
        for row, count in enumerate(queries):
            self._rows.setdefault(count, []).append(row)
        self._counted = _column([min(count, policy.window) for count in queries], device)
        self._names = fields_of(policy)

    @property
    def watches(self) -> tuple[Watch, ...]:
        """One for each field of the record."""
        watch = {STATE: Watch(None, self._policy.query_weight), RECENT: Watch(max(1, self._policy.window))}
        return tuple(watch[name] for name in self._names)

    def see(self, layer: int, sums: tuple[Tensor, ...], group: int) -> None:
        """See ``minikv.models.observer.Observer``."""
        layer = self._sources[layer]
        enter = {STATE: self._accumulate, RECENT: self._slide}
        for name, found in zip(self._names, sums, strict=True):
            found = found[..., : self._length].contiguous()
            old = self._records.read(name, layer, self._seq_ids, self._length)
            new = enter[name](layer, old, found, group).masked_fill(self._absent, 0)
            self._records.write(name, layer, self._seq_ids, new)

    def _accumulate(self, layer: int, state: Tensor, sums: Tensor, group: int) -> Tensor:
        """The policy's own way, for all sequences together that have computed the same number of tokens."""
        policy = self._policy
        sums = sums / group if policy.over_group == "mean" else sums
        positions = self._records.positions(layer, self._seq_ids, self._length, self._evicted)
        if len(self._rows) == 1:
            return policy.observe(sums, Seen(state, next(iter(self._rows)), positions))
        new = torch.empty_like(state)
        for count, rows in self._rows.items():
            new[rows] = policy.observe(sums[rows], Seen(state[rows], count, positions[rows]))
        return new

    def _slide(self, layer: int, recent: Tensor, sums: Tensor, group: int) -> Tensor:
        """The mean over the last queries. A forward of fewer than the window leaves the older ones their share.

        Each of them would have to be kept to drop the oldest exactly; instead all of them fade alike.
        """
        share = self._counted / self._policy.window
        return recent * (1 - share) + sums / (self._policy.window * group)


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1)
