"""Way: how the cache is kept while a model is asked: whole, evicted by a policy, or in another dtype. Lesson 14.

>>> [str(way) for way in (Way(), Way("keydiff", kept=0.25), Way(kv_dtype="int8"))]
['full cache', 'keydiff, 25 % kept', 'int8']
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache

from minikv.cache.codec import Codec, find_codec
from minikv.eviction.policies.choices import PolicyName
from minikv.eviction.study.curves import FULL, evicting_with, shared_out
from minikv.eviction.study.suite import Evicting, no_eviction
from minikv.models.cache_argument import cache_in, with_cache


@dataclass(frozen=True)
class Way:
    """``policy`` keeps the share ``kept`` of the tokens, sinks and recent window included; or K, V in ``kv_dtype``."""

    policy: PolicyName | None = None
    kept: float = 1.0
    kv_dtype: str | None = None

    def __str__(self) -> str:
        if self.policy is not None:
            return f"{self.policy}, {100 * self.kept:g} % kept"
        return self.kv_dtype or FULL

    def evicting(self, model: Any, tokens: int) -> Evicting:
        """The cache after ``tokens`` are read: a context manager of ``model`` in which its forwards keep it so."""
        if self.policy is not None:
            sizes = shared_out(max(1, round(self.kept * tokens)))
            return evicting_with(self.policy, sizes, scope="layer" if is_latent(model) else "head")
        return no_eviction if self.kv_dtype is None else rounding_to(self.kv_dtype)


def is_latent(model: Any) -> bool:
    """Whether the model caches one row a token for all heads (MLA), so that its heads keep the same tokens."""
    return any(hasattr(module, "kv_b_proj") for module in model.modules())


class RoundingCache(DynamicCache):
    """transformers' cache with the K and V that ``codec`` reads back: the error of fewer bytes, not the saving."""

    def __init__(self, config: Any, codec: Codec):
        super().__init__(config=config)
        self.codec = codec

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Store rounded rows; the forward that brings them reads them rounded too, as a paged cache's does."""
        k, v = (self.codec.decode(*self.codec.encode(x), dtype=x.dtype) for x in (key_states, value_states))
        return super().update(k, v, layer_idx, *args, **more)


def rounding_to(kv_dtype: str) -> Evicting:
    """Forwards without a cache begin a ``RoundingCache``. Raises ``ArgumentError`` for no such dtype."""
    codec = find_codec(kv_dtype)

    @contextmanager
    def rounding(model: Any) -> Iterator[None]:
        def give(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            if cache_in(given) is None:
                given = with_cache(module, given, RoundingCache(module.config, codec))
            return args, given

        hook = model.register_forward_pre_hook(give, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    return rounding
