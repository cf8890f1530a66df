"""PagedEviction: a policy on a paged cache. Survivors are packed into the first blocks; the rest is free. Lesson 14.

    eviction = PagedEviction(cache, manager, "h2o", budget=Budget(n_sink=4, budget=20, n_recent=8))
    eviction.add("a")                                     beside manager.allocate("a", ...)
    batch = replace(batch, observer=eviction.observer(["a"], [1]))
    adapter.forward(tokens, batch)                        every step: the policy sees the attention
    manager.commit("a")
    eviction.evict(eviction.due(["a"]))                   back to the capacity

All layers of a group share the sequence's block table, so every layer keeps the same number of tokens. Each layer
chooses its own tokens, and with ``scope="head"`` each KV head does. Attention is unchanged: keys carry the rotation of
their true positions, and every cached token lies before every later query, in whatever slot.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError
from minikv.eviction.hf.rotary import Rotary, turning_for
from minikv.eviction.paged.plan import EvictionPlan, held, plan_eviction
from minikv.eviction.paged.records import PagedObserver, SavedRecord
from minikv.eviction.paged.runner import EvictionRunner, drop_worst_blocks, least_capacity
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PerBlock, PolicyName, Scope, Unit, check_choices
from minikv.eviction.policies.literature import policy_of
from minikv.eviction.policies.policy import Needs, Policy
from minikv.models.adapter import own_attention
from minikv.models.protocols import CausalLM
from minikv.plan import CacheSpec
from minikv.shown import one_line

# What eviction on a paged cache refuses, by name and before anything is kept.


def layers_without_window(cache: Any, manager: Any) -> dict[int, list[int]]:
    """The layers of ``cache`` that keep every token, by group; ``manager`` allocates their blocks."""
    if not isinstance(cache, PagedKVCache):
        raise ArgumentError("eviction_not_paged", kind=type(cache).__name__)
    if not isinstance(manager, BlockManager):
        raise ArgumentError("eviction_not_a_manager", kind=type(manager).__name__)
    ours, theirs = (
        (len(cache.kv_cache_groups), cache.block_size),
        (len(manager.kv_cache_groups), manager.block_size),
    )
    if ours != theirs:
        raise ArgumentError(
            "eviction_manager", groups=ours[0], size=ours[1], other_groups=theirs[0], other_size=theirs[1]
        )
    found: dict[int, list[int]] = {}
    for number, layer in enumerate(cache.spec.layers):
        if layer.rate > 1:
            raise ArgumentError("eviction_compressed", name=cache.spec.name, layer=number, rate=layer.rate)
        if layer.token_bytes and manager.kv_cache_groups[cache.kv_cache_group_of(number)].window is None:
            found.setdefault(cache.kv_cache_group_of(number), []).append(number)
    if not found:
        raise ArgumentError("eviction_no_full", name=cache.spec.name)
    return found


def check_policy(
    policy: Policy,
    budget: Budget,
    cache: PagedKVCache,
    layers: Mapping[int, Sequence[int]],
    scope: str,
    unit: str,
) -> None:
    """Raise ``ArgumentError`` unless blocks can do what ``policy``, ``scope`` and ``unit`` ask for."""
    numbers, name = [number for group in layers.values() for number in group], type(policy).__name__
    latent = [number for number in numbers if cache.spec.layers[number].kind == "latent"]
    if scope == "head" and latent:
        raise ArgumentError("eviction_paged_latent", layer=latent[0], name=cache.spec.name)
    if scope == "head" and unit == "block":
        raise ArgumentError("eviction_blocks_head")
    shares = policy.layer_budgets(budget.budget, len(numbers))
    if len(set(shares)) > 1:
        raise ArgumentError("eviction_paged_layers", policy=name, least=min(shares), most=max(shares))
    if unit == "block":
        least, size = least_capacity(budget, cache.block_size), cache.block_size
        if budget.capacity < least:
            raise ArgumentError("eviction_blocks_few", capacity=budget.capacity, least=least, block_size=size)


def fitted_policy(
    policy: Policy, model: Any, spec: CacheSpec, budget: Budget, scope: Scope
) -> tuple[Policy, Rotary | None]:
    """Return ``policy`` fitted to ``model``, and the rotary embedding by which it turns queries.

    Raises ``ArgumentError`` for a policy that reads queries where ``model`` is None, for a ``model`` that is no decoder
    in eval mode, and for a policy that turns queries where ``model`` has no rotary embedding.
    """
    if model is None and not policy.needs & Needs.QUERIES:
        return policy, None
    if model is None:
        raise ArgumentError("eviction_paged_model", policy=type(policy).__name__)
    if not hasattr(model, "set_attn_implementation"):
        raise ArgumentError("models_not_a_decoder", kind=type(model).__name__)
    if model.training:
        raise ArgumentError("models_training", kind=type(model).__name__)
    latent = any(layer.kind == "latent" for layer in spec.layers)
    with own_attention(model):  # it may be bound to the cache, or to another one
        return policy.fitted(model, budget, scope), turning_for(policy, model, latent)


class PagedEviction:
    """``policy`` on the blocks of ``cache``, which ``manager`` allocates. Layers with a window need no eviction.

    ``budget``: how many tokens a layer keeps, see ``Budget``. ``scope`` "layer": the heads of a layer keep the same
    tokens; "head": each head keeps its own. ``unit`` "block" drops whole blocks from the table that all layers share,
    and moves nothing; a block has the score of its best token, or with ``per_block="sum"`` the sum over its tokens.

    ``model``: the one that computes on the cache, for a policy that reads queries (Echo, ExpectedAttention).

    Raises ``ArgumentError`` for another cache or manager, a model without a layer that keeps everything, "head" where
    there is one latent a token, unequal layer budgets (the layers share a table), a policy that reads queries where
    there is no model, or one without a rotary embedding, and a capacity of too few blocks.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        manager: BlockManager,
        policy: PolicyName | Policy,
        *,
        budget: Budget,
        scope: Scope = "layer",
        unit: Unit = "token",
        per_block: PerBlock = "max",
        model: CausalLM | None = None,
    ):
        self.cache, self.manager, self.budget = cache, manager, budget
        self.scope, self.unit, self.per_block = scope, unit, per_block
        check_choices(scope, unit, per_block)
        self._layers = layers_without_window(cache, manager)
        self.policy, turning = fitted_policy(policy_of(policy), model, cache.spec, budget, scope)
        check_policy(self.policy, budget, cache, self._layers, scope, unit)
        self.runner = EvictionRunner(cache, self._layers, self.policy, budget, scope, turning=turning)
        self.records = self.runner.records

    def __repr__(self) -> str:
        layers, kept = f"{len(self._layers)} layers forget", f"capacity {self.budget.capacity:,} tokens"
        return one_line("PagedEviction", type(self.policy).__name__, layers, kept, f"unit {self.unit}")

    def add(self, seq_id: Hashable) -> None:
        """Add a sequence, before or after its allocation. Its tokens from the prefix cache have no scores yet."""
        self.records.add(seq_id)

    def remove(self, seq_id: Hashable) -> None:
        """Remove a sequence that has ended, or that begins again from its first token."""
        self.records.remove(seq_id)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Let ``child`` begin with a copy of ``parent``'s record, as in ``BlockManager.fork``."""
        self.records.fork(parent, child)

    def swap_out(self, seq_id: Hashable) -> SavedRecord:
        """Take the sequence's record off the device; ``swap_in`` takes it when the blocks are back from the host."""
        return self.records.save(seq_id)

    def swap_in(self, seq_id: Hashable, saved: SavedRecord) -> None:
        """Restore the record of a sequence with blocks that are back on the device."""
        self.records.restore(seq_id, saved)

    def observer(self, seq_ids: Sequence[Hashable], queries: Sequence[int]) -> PagedObserver | None:
        """Return the observer for the ``Batch`` of the last ``queries[i]`` tokens of ``seq_ids[i]``, which have their
        slots.

        None if the policy does not use attention: nothing is computed then. The scores of a forward that fails stay in
        the record, so its sequences have to end.
        """
        return self.runner.observer(seq_ids, queries, *self._lengths(seq_ids))

    def due(self, seq_ids: Iterable[Hashable]) -> list[Hashable]:
        """Return the sequences that hold more than ``budget.peak_resident`` tokens."""
        names = list(seq_ids)
        lengths, _ = self._lengths(names)
        most = self.budget.peak_resident
        return [name for name, length in zip(names, lengths, strict=True) if length > most]

    def positions(self, seq_id: Hashable, layer: int) -> Tensor:
        """Return int64 [kv_heads, S]: the true positions of the sequence's tokens in ``layer``, by place."""
        (length,), evicted = self._lengths([seq_id])
        return self.records.positions(layer, [seq_id], length, evicted)[0]

    @torch.no_grad()
    def evict(self, seq_ids: Iterable[Hashable]) -> int:
        """Evict from these sequences down to the capacity; return how many tokens were evicted, in each layer.

        With ``unit`` "token" exactly ``budget.capacity`` tokens stay, with "block" at most that many. All their tokens
        must be committed. Raises ``ArgumentError`` before anything is changed, and ``OutOfBlocksError`` if shared
        blocks cannot be copied: that sequence is unchanged then, but those before it have been evicted from.
        """
        names = [*dict.fromkeys(seq_ids)]
        lengths, _ = self._lengths(names)
        for name, length in zip(names, lengths, strict=True):
            self.records.check(name)
            for group in self._layers:
                # Keeps all tokens, but raises the errors of an eviction before any token moves
                self.manager.compact(name, length, group)
        over = [name for name, length in zip(names, lengths, strict=True) if length > self.budget.capacity]
        if self.unit == "token":
            self._evict_tokens(over)
        else:
            self._evict_blocks(over)
        return sum(lengths) - sum(self._lengths(names)[0])

    def _evict_tokens(self, names: list[Hashable]) -> None:
        plans: list[EvictionPlan] = []
        try:
            for name in names:
                plans.append(plan_eviction(self.manager, name, self.budget.capacity))
        finally:
            self.runner.carry_out(plans)

    def _evict_blocks(self, names: list[Hashable]) -> None:
        for name in names:
            drop_worst_blocks(self.runner, self.manager, name, self.per_block)

    def _lengths(self, names: Sequence[Hashable]) -> tuple[list[int], list[int]]:
        """Return how many tokens each sequence holds and has lost; these are equal in all groups without a window."""
        each = [held(self.manager, name) for name in names]
        return [length for length, _ in each], [evicted for _, evicted in each]
