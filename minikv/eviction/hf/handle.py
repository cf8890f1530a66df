"""EvictionHandle: the result of ``install_kv_eviction``, with hooks before and after each forward. Lesson 14."""

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minikv.errors import ArgumentError
from minikv.eviction.hf.attention import NAMES, register
from minikv.eviction.hf.cache import EvictingCache, adopt, evicting_layers, is_empty
from minikv.eviction.hf.layer import EvictingLayer
from minikv.eviction.hf.rules import LayerRules, Record
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.policy import Policy
from minikv.models.cache_argument import cache_in, with_cache
from minikv.shown import one_line


class EvictionHandle:
    """Eviction in a model, until ``remove()`` or the end of a ``with`` block.

    ``policy``, ``budget``, ``scope``, ``positions``: as installed. ``rules``: one a decoder layer, None where a layer
    does not evict. ``records``: the counts of each layer since the last text began. ``switched``: whether the model
    calls our attention function; otherwise layers evict when a forward ends.
    """

    def __init__(
        self, model: Any, policy: Policy, budget: Budget, rules: list[LayerRules | None], **options: Any
    ):
        self.model, self.policy, self.budget, self.rules = model, policy, budget, rules
        self.scope: str = options["scope"]
        self.positions: str = options["positions"]
        self.other_caches: str = options["other_caches"]
        self.switched: bool = options["switched"]
        self.undo: Any = options["undo"]  # a Connection, while installed
        self.config = model.config.get_text_config(decoder=True)
        self.records = [Record() for _ in rules]
        self.foreign: tuple[str, int] | None = None  # a cache of another class, and its tokens
        self._names = list(inspect.signature(model.forward).parameters)
        self._current: Any = None
        self._last: weakref.ref | None = None
        self._paused = False

    def __repr__(self) -> str:
        layers = f"{sum(rule is not None for rule in self.rules)} of {len(self.rules)} layers forget"
        state = [] if self.undo is not None else ["removed"]
        kept = f"capacity {self.capacity:,} tokens"
        return one_line(
            "EvictionHandle", type(self.policy).__name__, layers, kept, f"scope {self.scope}", *state
        )

    @property
    def capacity(self) -> int:
        """Tokens that a layer keeps after an eviction, on average over the layers."""
        return self.budget.capacity

    @property
    def peak_resident(self) -> int:
        """The most tokens that a layer holds between two forwards; with unequal layer budgets the mean of them."""
        return self.budget.peak_resident

    @property
    def cache(self) -> Any:
        """The cache of the last forward, as long as another reference to it exists; else None."""
        return None if self._last is None else self._last()

    def new_cache(self) -> EvictingCache:
        """An empty cache, to be passed as ``past_key_values``; from transformers 5.24 on as ``cache``."""
        self._begin()
        return EvictingCache(self.config, self.rules, self.records)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Evict nothing inside the block: new tokens are kept beside the resident ones."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def reset_scores(self) -> None:
        """Reset the policy's scores of the text in the last cache; the tokens stay."""
        for layer in evicting_layers(self.cache):
            layer.forget_scores()

    def remove(self) -> None:
        """Give the model back as it was. Raises ``ArgumentError`` where that was done already."""
        if self.undo is None:
            raise ArgumentError("eviction_not_installed", kind=type(self.model).__name__)
        connection, self.undo = self.undo, None
        connection.undo()

    def __enter__(self) -> "EvictionHandle":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.undo is not None:
            self.remove()

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies of the model, which get an install of their own: all but the forward that runs."""
        return {**vars(self), "_current": None, "_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        register()  # another process has not registered them yet

    # Called by the model

    def layer_of(self, module: nn.Module) -> EvictingLayer | None:
        """The layer that ``module`` reads in the forward that runs, if it evicts."""
        layers = getattr(self._current, "layers", ())
        index = module.layer_idx
        found = layers[index] if isinstance(index, int) and index < len(layers) else None
        return found if isinstance(found, EvictingLayer) else None

    def before(self, model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Forward pre-hook: put in a cache that evicts, and tell its layers which tokens are padding."""
        self._current = None
        given = dict(zip(self._names, args, strict=False)) | kwargs
        if given.get("input_ids") is None and given.get("inputs_embeds") is None:
            return args, kwargs  # the model raises for the missing argument
        cache = self._cache_for(given)
        if cache is None:
            return args, kwargs
        given = with_cache(model, given, cache)
        layers = evicting_layers(cache)
        self._check(model, layers)
        batch, new = _shape(given)
        valid = _new_valid(given.get("attention_mask"), layers[0], batch, new)
        if valid is not None and not self.switched:
            raise ArgumentError("eviction_padding", name=model.config._attn_implementation)
        for layer in layers:
            layer.paused = self._paused
            layer.expect(valid)
        if self.positions == "reindexed":
            given["position_ids"] = _reindexed(layers[0], valid, batch, new, given)
        self._current, self._last = cache, weakref.ref(cache)
        return (), given

    def after(self, model: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook, called after an exception too: evict where no attention function has done it."""
        cache, self._current = self._current, None
        if cache is None or output is None:
            return
        for layer in evicting_layers(cache):
            if not layer.pending:
                continue
            if self.switched:
                raise ArgumentError("eviction_not_called", kind=type(model).__name__, layer=layer.rules.layer)
            layer.evict()

    def _cache_for(self, given: dict[str, Any]) -> Any:
        """The cache for this forward; None: not one of ours."""
        cache = cache_in(given)
        if cache is None:
            wanted = given.get("use_cache")
            wanted = getattr(self.config, "use_cache", True) if wanted is None else wanted
            return self.new_cache() if wanted else None
        layers = evicting_layers(cache)
        if layers:
            if any(layer.rules != self.rules[layer.rules.layer] for layer in layers):
                raise ArgumentError("eviction_other_install", name=type(self.model).__name__)
            return cache
        if is_empty(cache):
            self._begin()
            adopt(cache, self.config, self.rules, self.records)
            return cache
        if self.other_caches == "refuse":
            raise ArgumentError("eviction_cache_kind", kind=type(cache).__name__)
        self.foreign = (type(cache).__name__, int(cache.get_seq_length()) + _shape(given)[1])
        return None

    def _begin(self) -> None:
        """Begin a new text, with new records."""
        self.records, self.foreign = [Record() for _ in self.rules], None

    def _check(self, model: Any, layers: list[EvictingLayer]) -> None:
        """Raise for a cache that a failed forward has left half written, and for an attention set after the install."""
        seen = {layer.cumulative_length for layer in layers}
        if len(seen) > 1 or any(layer.pending for layer in layers):
            raise ArgumentError("eviction_broken", least=min(seen), most=max(seen))
        now = self.config._attn_implementation
        if self.switched and now not in NAMES.values():
            raise ArgumentError("eviction_switched", name=now)


def _shape(given: dict[str, Any]) -> tuple[int, int]:
    """(rows, new tokens) of a forward."""
    ids = given.get("input_ids")
    like = given["inputs_embeds"] if ids is None else ids
    return like.shape[0], like.shape[1]


def _new_valid(mask: Any, layer: EvictingLayer, batch: int, new: int) -> Tensor | None:
    """[B, T] bool of a forward's own tokens, from the 2-D mask over all tokens so far; None: no padding among all.

    Raises ``ArgumentError`` for a mask of another form, and for padding that does not stand at the left.
    """
    if mask is None:
        return None
    before = layer.cumulative_length
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        kind = f"{mask.dim()}-D" if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError("eviction_mask", kind=kind)
    if mask.shape[0] != batch or mask.shape[1] < before + new:
        raise ArgumentError("eviction_mask_size", shape=list(mask.shape), batch=batch, tokens=before + new)
    valid = mask[:, : before + new].bool()
    own = valid[:, before:]
    at_right = (valid[:, 1:] < valid[:, :-1]).any(-1)
    rows, whole = torch.stack((at_right.sum(), own.all())).tolist()  # one copy: each waits for a GPU
    if rows:
        raise ArgumentError("eviction_right_padding", rows=rows)
    return None if whole and not layer.padded else own


def _reindexed(
    layer: EvictingLayer, valid: Tensor | None, batch: int, new: int, given: dict[str, Any]
) -> Tensor:
    """[B, T] int64: the places behind the resident tokens; 0 for padding."""
    ids = given.get("input_ids")
    device = (given["inputs_embeds"] if ids is None else ids).device
    if valid is None:
        valid = torch.ones(batch, new, dtype=torch.bool, device=device)
    held = layer.valid.sum(-1, keepdim=True).to(device) if layer.resident else 0
    return (held + valid.to(device).cumsum(-1) - 1).clamp(min=0)
