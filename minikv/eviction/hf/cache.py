"""EvictingCache: transformers' DynamicCache with layers that evict where it has full attention. Lesson 14.

``generate`` makes a DynamicCache of its own, and so may a caller. ``adopt`` changes the layers of an empty one in
place, so every reference to it sees the evicting layers.
"""

from collections.abc import Sequence
from typing import Any

from transformers.cache_utils import DynamicCache, DynamicLayer

from minikv.eviction.hf.layer import EvictingLayer
from minikv.eviction.hf.rules import LayerRules, Record


class EvictingCache(DynamicCache):
    """A cache for a model of ``config``; ``rules``: one a layer, None where the layer keeps its own class.

    ``records``: each layer counts its evictions in its own.
    """

    def __init__(
        self, config: Any, rules: Sequence[LayerRules | None], records: Sequence[Record] | None = None
    ):
        super().__init__(config=config)
        adopt(self, config, rules, records)


def full_layers(config: Any) -> tuple[bool, ...]:
    """Whether transformers caches all tokens of each decoder layer of ``config``, and nothing else."""
    return tuple(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


def adopt(
    cache: DynamicCache,
    config: Any,
    rules: Sequence[LayerRules | None],
    records: Sequence[Record] | None = None,
) -> None:
    """Give ``cache``, which must be empty, evicting layers wherever there are ``rules``."""
    own = DynamicCache(config=config).layers
    kept = records or [Record() for _ in rules]
    cache.layers = [
        layer if rule is None else EvictingLayer(rule, record)
        for layer, rule, record in zip(own, rules, kept, strict=True)
    ]


def evicting_layers(cache: Any) -> list[EvictingLayer]:
    """The evicting layers of ``cache``, in their order."""
    return [layer for layer in getattr(cache, "layers", ()) if isinstance(layer, EvictingLayer)]


def is_empty(cache: Any) -> bool:
    """Whether ``cache`` is a DynamicCache to which nothing was added, and that is not offloaded."""
    if type(cache) is not DynamicCache or cache.offloading:
        return False
    return not any(_used(layer) for layer in cache.layers)


def _used(layer: Any) -> bool:
    """Whether anything was added to a layer of transformers: tokens, or a recurrent state."""
    if type(layer).__name__ == "DummyLayer":  # it never holds a token; older releases have no such class
        return False
    state = getattr(layer, "has_previous_state", False)
    seen = any(state.values()) if isinstance(state, dict) else bool(state)
    return seen or bool(getattr(layer, "is_initialized", False))
