"""EvictionRunner: the part of an eviction that runs on the device: scores, selection and moves. Lesson 14."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.paged.asking import Asking, needs_queries
from minikv.eviction.paged.plan import EvictionPlan, held
from minikv.eviction.paged.records import PLACES, RECENT, ROWS, STATE, PagedObserver, TokenRecords, fields_of
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.policy import Needs, Policy, View
from minikv.eviction.policies.select import select

# Eviction of whole blocks: the choice of blocks. Tensors in, tensors out. A block is dropped from the table that the
# layers of a group share, so all layers and heads drop the same tokens, and the tokens of a block stay or go together.
# In return no token moves, and the kept blocks can stay shared.


def least_capacity(budget: Budget, block_size: int) -> int:
    """Return the smallest capacity under which sinks and recent tokens always fit in whole blocks, at any offset."""
    return -(-budget.n_sink // block_size) * block_size + budget.n_recent + block_size - 1


def token_ranks(scores: Sequence[Tensor]) -> Tensor:
    """Return float32 [B, S] from the scores [B, H, S] of several layers: the mean rank of each token, from 0 to 1.

    Each layer's scores have a unit of their own, so only the order within a layer counts. A token's rank there is the
    share of tokens with a lower score, plus half of those with an equal one.
    """
    means = torch.stack([score.float().mean(1) for score in scores])  # [layers, B, S]
    ordered = means.sort(-1).values
    worse, not_better = (torch.searchsorted(ordered, means, right=right) for right in (False, True))
    return (worse + not_better - 1).float().mean(0) / (2 * max(1, means.shape[-1] - 1))


def blocks_to_keep(
    ranks: Tensor, positions: Tensor, budget: Budget, block_size: int, per_block: str
) -> Tensor:
    """Return bool [B, blocks]: the blocks that stay, with at most ``capacity`` tokens; the last block always stays.

    ``ranks`` and ``positions`` [B, S] are in the order of the table. The score of a block is that of its best
    token ("max"), or the sum over its tokens ("sum"); a block with a sink or a recent token stays with any score.
    Of equal blocks the earlier stays. ``capacity`` must be ``least_capacity`` or more.
    """
    batch, length = ranks.shape
    full = (length - 1) // block_size
    tail = length - full * block_size
    whole = ranks[:, : full * block_size].unflatten(1, (full, block_size))
    worth = whole.amax(-1) if per_block == "max" else whole.sum(-1)
    newest = positions.amax(-1, keepdim=True)
    protected = (positions < budget.n_sink) | (positions > newest - budget.n_recent)
    protected = protected[:, : full * block_size].unflatten(1, (full, block_size)).any(-1)
    order = worth.masked_fill(protected, torch.inf).argsort(dim=-1, descending=True, stable=True)
    most = min(full, (budget.capacity - tail) // block_size)
    keep = torch.zeros(batch, full + 1, dtype=torch.bool, device=ranks.device)
    keep.scatter_(1, order[:, :most], True)
    keep[:, full] = True
    return keep


# The moves of an eviction's survivors: as few as possible. The survivors end up in the first ``keep`` places of their
# block table. Most lie there already and stay; the others lie behind and fill the holes. So an eviction after every
# step moves one token a layer, not the whole cache. The tokens are in no order then. Attention needs none: keys carry
# the rotation of their true positions, and every cached token lies before every later query. ``positions`` says which
# token is which.


@dataclass(frozen=True)
class Moves:
    """Moves from place ``src[b, h, i]`` to place ``dst[b, h, i]``, int64 [B, H, n]; all are read before any is written.

    Every list has the same length, so that no count has to be read back from a GPU: a head with fewer moves
    fills its list with moves of a place onto itself. ``origin`` [B, H, keep]: the former places of the first ``keep``.
    """

    src: Tensor
    dst: Tensor
    origin: Tensor


def fill_holes(kept: Tensor, length: int) -> Moves:
    """Return the moves that bring the distinct places ``kept`` (int64 [B, H, keep]) to the first ones."""
    keep = kept.shape[-1]
    survives = kept.new_zeros(*kept.shape[:-1], length, dtype=torch.uint8).scatter_(-1, kept, 1)
    front, behind = survives[..., :keep], survives[..., keep:]
    most = min(keep, length - keep)
    # dst has the holes first, then the places that stay. src has the survivors behind ``keep`` first, then the evicted
    # ones. Both sorts are stable, so each part is in order of place.
    holes = front.argsort(dim=-1, stable=True)[..., :most]
    movers = behind.argsort(dim=-1, descending=True, stable=True)[..., :most] + keep
    moving = torch.arange(most, device=kept.device) < behind.sum(-1, keepdim=True)
    src = torch.where(moving, movers, holes)
    places = torch.arange(keep, device=kept.device).expand(kept.shape)
    return Moves(src, holes, places.scatter(-1, holes, src))


def in_order(kept: Tensor, length: int) -> Moves:
    """Return the moves that bring ``kept``, ascending, to the first places: tokens in order stay in order."""
    places = torch.arange(kept.shape[-1], device=kept.device).expand(kept.shape)
    return Moves(kept, places, kept)


def slots_of(tables: Tensor, places: Tensor, block_size: int) -> Tensor:
    """Return int64 [B, H, n]: the slots of ``places`` [B, H, n] in the block tables [B, W]."""
    rows = tables.long().unsqueeze(1).expand(-1, places.shape[1], -1)
    return rows.gather(-1, places // block_size) * block_size + places % block_size


# One layer's resident tokens as a policy sees them, gathered out of blocks only if the policy reads them.


class PagedView(View):
    """A ``View`` of B sequences of ``length`` resident tokens, in the order of their block tables [B, W].

    Gathering keys costs a copy of the layer, so it waits until the policy reads ``keys``; a policy that scores by
    attention never does. Keys come in the stored dtype, in float32 if that has 8 bits.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        layer: int,
        tables: Tensor,
        *,
        state: Tensor,
        window_probs: Tensor | None,
        positions: Tensor,
        num_layers: int,
    ):
        length = positions.shape[-1]
        own = {
            "_cache": cache,
            "_tables": tables,
            "state": state,
            "window_probs": window_probs,
            "positions": positions,
            "valid": torch.ones(len(tables), length, dtype=torch.bool, device=positions.device),
            "layer": layer,
            "num_layers": num_layers,
            "latent": cache.spec.layers[layer].kind == "latent",
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)  # the view is as frozen as any other

    @property
    def keys(self) -> Tensor:
        """[B, H, S, Dk]: rotated, as cached; the latents of a latent layer."""
        return self._gathered[0]

    @property
    def values(self) -> Tensor:
        """[B, H, S, Dv]; the rope keys of a latent layer."""
        return self._gathered[1]

    @cached_property
    def _gathered(self) -> tuple[Tensor, Tensor]:
        cache, length = self._cache, self.positions.shape[-1]  # type: ignore[attr-defined]
        tables = self._tables  # type: ignore[attr-defined]
        pairs = [cache.gather(self.layer, table, length) for table in tables]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys).transpose(1, 2), torch.stack(values).transpose(1, 2)


class EvictionRunner:
    """``policy`` on ``layers``, {group: the numbers of its layers}, of ``cache``; see ``PagedEviction``.

    It knows no block manager: each call passes the block tables. ``records`` must be told of each sequence that
    begins and ends, and has room for ``rows`` of them of ``places`` tokens before it grows. Nothing is read back from
    the device, so the CPU does not wait, except where ``select`` looks for NaN. ``turning`` turns queries for a policy
    that asks for it.
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
        turning: Rotary | None = None,
    ):
        self.cache, self.layers, self.policy, self.budget, self.scope = cache, layers, policy, budget, scope
        specs = cache.spec.layers
        self._sources = {
            number: number if layer.reads_layer is None else layer.reads_layer
            for number, layer in enumerate(specs)
        }
        heads = {number: specs[number].kv_heads for group in layers.values() for number in group}
        self.records = TokenRecords(heads, fields_of(policy), cache.device, rows, places)
        self._asking = Asking(policy, turning) if needs_queries(policy) else None

    def observer(
        self,
        seq_ids: Sequence[Hashable],
        queries: Sequence[int],
        lengths: Sequence[int],
        evicted: Sequence[int],
    ) -> PagedObserver | None:
        """Return the observer of a forward of the last ``queries[i]`` of the ``lengths[i]`` tokens of ``seq_ids[i]``.

        ``evicted[i]``: how many tokens it has lost before. None if the policy does not use attention.
        """
        if not self.policy.needs & Needs.ATTENTION or not seq_ids:
            return None
        sources, device = self._sources, self.cache.device
        return PagedObserver(
            self.policy, self.records, seq_ids, queries, lengths, evicted, sources, device, self._asking
        )

    @torch.no_grad()
    def carry_out(self, plans: Sequence[EvictionPlan]) -> None:
        """Choose the tokens that stay, and move them, in the order of the plans, with no other write in between.

        Plans of one length run as one batch. A plan that copies blocks runs alone, after all earlier plans: its copies
        may go to blocks that these have freed.
        """
        for group in _groups(plans):
            keep = next(iter(group[0].compactions.values())).num_tokens
            if keep < group[0].length:
                self._carry_out(group, keep)

    def view(self, layer: int, plans: Sequence[EvictionPlan], tables: Tensor) -> PagedView:
        """Return the view of these sequences, all of one length, in ``layer``, by their block tables [B, W]."""
        names, length = [plan.seq_id for plan in plans], plans[0].length
        positions = self.records.positions(layer, names, length, [plan.evicted for plan in plans])
        state = torch.zeros((), device=self.cache.device).expand(positions.shape)
        probs = None
        if STATE in fields_of(self.policy):
            state = self.records.read(STATE, layer, names, length)
        if Needs.WINDOW in self.policy.needs:
            probs = self.records.read(RECENT, layer, names, length)
        number = len(self.cache.spec.layers)
        view = PagedView(
            self.cache, layer, tables, state=state, window_probs=probs, positions=positions, num_layers=number
        )
        if self._asking is not None and Needs.EXPECTED in self.policy.needs:
            object.__setattr__(view, "window_probs", self._asking.expected(self.records, names, layer, view))
        return view

    def score(self, view: PagedView) -> Tensor:
        """Return [B, H, S], H as in the cache."""
        return self.policy.score(view).expand(-1, self.cache.spec.layers[view.layer].kv_heads, -1)

    def _carry_out(self, plans: Sequence[EvictionPlan], keep: int) -> None:
        names, size = [plan.seq_id for plan in plans], self.cache.block_size
        for group, layers in self.layers.items():
            each = [plan.compactions[group] for plan in plans]
            pairs = [(copy.src, copy.dst) for one in each for copy in one.copies]
            if pairs:
                self.cache.copy_blocks(group, *map(list, zip(*pairs, strict=True)))
            old, new = (
                torch.tensor(tables, device=self.cache.device)
                for tables in ([one.old_table for one in each], [one.new_table for one in each])
            )
            for layer in layers:
                view = self.view(layer, plans, old)
                moves = self._choose(view)
                # [B, H, n] -> [H, B * n]
                lists = [
                    slots.transpose(0, 1).flatten(1).contiguous()
                    for slots in (slots_of(old, moves.src, size), slots_of(new, moves.dst, size))
                ]
                if self.scope == "layer":
                    lists = [slots[0] for slots in lists]
                self.cache.move(layer, *lists)
                self.records.keep(layer, names, moves.origin, view.positions)
        for name in names:
            self.records.pack(name, keep)

    def _choose(self, view: PagedView) -> Moves:
        """Choose the tokens that stay in one layer, as moves."""
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


def _groups(plans: Sequence[EvictionPlan]) -> Iterator[list[EvictionPlan]]:
    """Yield plans that can be carried out together, in an order in which none is overwritten."""
    waiting: dict[int, list[EvictionPlan]] = {}
    for plan in plans:
        if plan.num_copies:
            yield from waiting.values()
            waiting = {}
            yield [plan]
        else:
            waiting.setdefault(plan.length, []).append(plan)
    yield from waiting.values()


# One sequence loses its worst blocks: they are chosen on the device, read back, and taken from its table. The block
# manager has to know the dropped blocks (not the dropped tokens), so this waits for the device, once for each KV cache
# group. Nothing moves.


@torch.no_grad()
def drop_worst_blocks(runner: EvictionRunner, manager: BlockManager, seq_id: Hashable, per_block: str) -> int:
    """Evict whole blocks of the committed ``seq_id`` down to the capacity; return the evicted tokens, in each layer.

    All layers of a group lose the same blocks: those of the lowest mean rank.
    """
    length, evicted = held(manager, seq_id)
    for group, layers in runner.layers.items():
        table = tuple(manager.block_table(seq_id, group))
        plan = EvictionPlan(seq_id, length, evicted, {})
        tables = torch.tensor([table], device=runner.cache.device)
        views = [runner.view(layer, [plan], tables) for layer in layers]
        ranks = token_ranks([runner.score(view) for view in views])
        size, positions = runner.cache.block_size, views[0].positions[:, 0]
        keep = blocks_to_keep(ranks, positions, runner.budget, size, per_block)[0]
        manager.drop_blocks(seq_id, (~keep).nonzero().flatten().tolist(), group)
        origin = keep.repeat_interleave(size)[:length].nonzero().flatten()
        for layer, view in zip(layers, views, strict=True):
            heads = view.positions.shape[1]
            runner.records.keep(layer, [seq_id], origin.expand(1, heads, -1), view.positions)
    left = held(manager, seq_id)[0]
    runner.records.pack(seq_id, left)
    return length - left
