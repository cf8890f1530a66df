"""What eviction on a paged cache refuses, by name and before anything is kept. Lesson 14."""

from collections.abc import Mapping, Sequence
from typing import Any

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError
from minikv.eviction.budget import Budget
from minikv.eviction.echo import refuse_echo
from minikv.eviction.paged_blocks import least_capacity
from minikv.eviction.policy import Needs, Policy


def layers_without_window(cache: Any, manager: Any) -> dict[int, list[int]]:
    """The layers of ``cache`` that keep every token, by kind; ``manager`` shares out their blocks."""
    if not isinstance(cache, PagedKVCache):
        raise ArgumentError("eviction_not_paged", kind=type(cache).__name__)
    if not isinstance(manager, BlockManager):
        raise ArgumentError("eviction_not_a_manager", kind=type(manager).__name__)
    ours, theirs = (len(cache.kinds), cache.block_size), (len(manager.kinds), manager.block_size)
    if ours != theirs:
        raise ArgumentError(
            "eviction_manager", kinds=ours[0], size=ours[1], other_kinds=theirs[0], other_size=theirs[1]
        )
    found: dict[int, list[int]] = {}
    for number, layer in enumerate(cache.spec.layers):
        if layer.token_bytes and manager.kinds[cache.kind_of(number)].window is None:
            found.setdefault(cache.kind_of(number), []).append(number)
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
    numbers, name = [number for kind in layers.values() for number in kind], type(policy).__name__
    latent = [number for number in numbers if cache.spec.layers[number].kind == "latent"]
    refuse_echo(policy)
    if scope == "head" and latent:
        raise ArgumentError("eviction_paged_latent", layer=latent[0], name=cache.spec.name)
    if scope == "head" and unit == "block":
        raise ArgumentError("eviction_blocks_head")
    for what, value in (("queries", policy.over_queries), ("query heads", policy.over_group)):
        if Needs.PROBS in policy.needs and value == "max":
            raise ArgumentError("eviction_paged_max", what=what, policy=name)
    shares = policy.layer_budgets(budget.budget, len(numbers))
    if len(set(shares)) > 1:
        raise ArgumentError("eviction_paged_layers", policy=name, least=min(shares), most=max(shares))
    if unit == "block":
        least, size = least_capacity(budget, cache.block_size), cache.block_size
        if budget.capacity < least:
            raise ArgumentError("eviction_blocks_few", capacity=budget.capacity, least=least, block_size=size)
