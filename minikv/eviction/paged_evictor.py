"""PagedEvictor: what of an eviction happens on the device. It watches, chooses, moves and remembers. Lesson 14."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from minikv.cache import PagedKVCache
from minikv.eviction.budget import Budget
from minikv.eviction.paged_moves import Moves, fill_holes, in_order, slots_of
from minikv.eviction.paged_observer import RECENT, STATE, PagedObserver, fields_of
from minikv.eviction.paged_plan import PlannedEviction
from minikv.eviction.paged_records import PLACES, ROWS, TokenRecords
from minikv.eviction.paged_view import PagedView
from minikv.eviction.policy import Needs, Policy
from minikv.eviction.select import select


class PagedEvictor:
    """``policy`` on ``layers``, {kind: the numbers of its layers}, of ``cache``; see ``PagedEviction``.

    It knows no block manager: who holds what comes with each call. ``records`` has to be told of each sequence that
    begins and ends, and has room for ``rows`` of them of ``places`` tokens before it grows. Nothing is read back from
    the device, so nothing waits for it, but where ``select`` looks for NaN.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        layers: Mapping[int, Sequence[int]],
        policy: Policy,
        budget: Budget,
        scope: str,
        rows: int = ROWS,
        places: int = PLACES,
    ):
        self.cache, self.layers, self.policy, self.budget, self.scope = cache, layers, policy, budget, scope
        specs = cache.spec.layers
        self._sources = {
            number: number if layer.reads_layer is None else layer.reads_layer
            for number, layer in enumerate(specs)
        }
        heads = {number: specs[number].kv_heads for kind in layers.values() for number in kind}
        self.records = TokenRecords(heads, fields_of(policy), cache.device, rows, places)

    def observer(
        self,
        seq_ids: Sequence[Hashable],
        queries: Sequence[int],
        lengths: Sequence[int],
        evicted: Sequence[int],
    ) -> PagedObserver | None:
        """For a forward of the last ``queries[i]`` of the ``lengths[i]`` tokens that ``seq_ids[i]`` holds with them.

        ``evicted[i]``: how many it has lost before. None where the policy does not look at attention.
        """
        if not fields_of(self.policy) or not seq_ids:
            return None
        return PagedObserver(
            self.policy, self.records, seq_ids, queries, lengths, evicted, self._sources, self.cache.device
        )

    @torch.no_grad()
    def carry_out(self, plans: Sequence[PlannedEviction]) -> None:
        """Choose who stays, and move them: in the order in which the plans were made, nothing written in between.

        Those of one length go together, up to one that copies blocks: they may be what an earlier one has freed.
        """
        for group in _groups(plans):
            keep = next(iter(group[0].compactions.values())).num_tokens
            if keep < group[0].length:
                self._carry_out(group, keep)

    def view(self, layer: int, plans: Sequence[PlannedEviction], tables: Tensor) -> PagedView:
        """What these sequences, all of one length, hold in ``layer``, by their block tables [B, W]."""
        names, length = [plan.seq_id for plan in plans], plans[0].length
        positions = self.records.positions(layer, names, length, [plan.evicted for plan in plans])
        state = torch.zeros((), device=self.cache.device).expand(positions.shape)
        probs = None
        if Needs.PROBS in self.policy.needs:
            state = self.records.read(STATE, layer, names, length)
        if Needs.WINDOW in self.policy.needs:
            probs = self.records.read(RECENT, layer, names, length)
        number = len(self.cache.spec.layers)
        return PagedView(
            self.cache, layer, tables, state=state, window_probs=probs, positions=positions, num_layers=number
        )

    def score(self, view: PagedView) -> Tensor:
        """[B, H, S], H as in the cache."""
        return self.policy.score(view).expand(-1, self.cache.spec.layers[view.layer].kv_heads, -1)

    def _carry_out(self, plans: Sequence[PlannedEviction], keep: int) -> None:
        names, size = [plan.seq_id for plan in plans], self.cache.block_size
        for kind, layers in self.layers.items():
            each = [plan.compactions[kind] for plan in plans]
            pairs = [(copy.src, copy.dst) for one in each for copy in one.copies]
            if pairs:
                self.cache.copy_blocks(kind, *map(list, zip(*pairs, strict=True)))
            old, new = (
                torch.tensor(tables, device=self.cache.device)
                for tables in ([one.old_table for one in each], [one.new_table for one in each])
            )
            for layer in layers:
                view = self.view(layer, plans, old)
                moves = self._choose(view)
                lists = [
                    slots.transpose(0, 1).flatten(1).contiguous()  # [B, H, n] -> [H, B * n]
                    for slots in (slots_of(old, moves.src, size), slots_of(new, moves.dst, size))
                ]
                if self.scope == "layer":
                    lists = [slots[0] for slots in lists]
                self.cache.move(layer, *lists)
                self.records.keep(layer, names, moves.origin, view.positions)
        for name in names:
            self.records.pack(name, keep)

    def _choose(self, view: PagedView) -> Moves:
        """Who stays in one layer, and where to."""
        kept = select(
            self.score(view),
            valid=view.valid,
            n_sink=self.budget.n_sink,
            n_recent=self.budget.n_recent,
            budget=self.budget.budget,
            scope=self.scope,
            positions=view.positions,
        )
        place = in_order if Needs.ORDER in self.policy.needs else fill_holes
        return place(kept, view.positions.shape[-1])


def _groups(plans: Sequence[PlannedEviction]) -> Iterator[list[PlannedEviction]]:
    """Plans that can be carried out together, in an order in which none is overwritten."""
    waiting: dict[int, list[PlannedEviction]] = {}
    for plan in plans:
        if plan.num_copies:
            yield from waiting.values()
            waiting = {}
            yield [plan]
        else:
            waiting.setdefault(plan.length, []).append(plan)
    yield from waiting.values()
