"""bind_model: joins a Hugging Face decoder and a cache of blocks to an object that computes a Batch. Lesson 11a."""

import inspect
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from minikv.cache.allocator import kv_dtype_of, stated_dtype
from minikv.cache.paged import PagedKVCache
from minikv.cache.pages import Pages
from minikv.cache.states import StatePages, StateSlots
from minikv.errors import ArgumentError, ConfigError, check_choice
from minikv.kernels.dispatch import check_readable
from minikv.models.attention import ATTENTION, passes_on, register, windows_asked
from minikv.models.batch import Batch, seen_window, sees
from minikv.models.measured import carries_states, measure, state_shapes
from minikv.models.sharding import check_shard, ranks_of
from minikv.models.takes_cache import TakesCache
from minikv.models.trial import Forward, blocks_needed, hold_against_own, hold_together
from minikv.models.wanted import forward
from minikv.plan.spec.cache_spec import CacheSpec

Reads = Literal["auto", "paged", "gather"]
_SIZES = ("kv_heads", "k_dim", "v_dim", "index_bytes", "rate", "reads_layer")
TRIAL_BLOCK = 4  # tokens of a block in a trial: a sequence has several
_BOUND = "_minikv_bound"  # an attribute of a bound model: a ``_Bound``


class _Bound:
    """``own``: the model's own attention. ``adapters``: those bound to the model; a copy of the model has none."""

    def __init__(self, own: str):
        self.own = own
        self.adapters: WeakSet[Adapter] = WeakSet()  # weak: an adapter that was dropped no longer counts

    def __reduce__(self) -> tuple:
        return _Bound, (self.own,)


@dataclass(frozen=True, eq=False)
class Adapter:
    """A model bound to a cache.

    ``reads`` is "paged" (attention reads the blocks in place, all sequences in one forward) or "gather" (a copy of each
    sequence's history, one forward a sequence). ``position_limit``: positions from there on are refused (None: no
    limit). ``states`` are the slots of a model with layers that keep a state; a batch names the slot of each sequence.
    Of such a model "paged" computes every sequence that goes on by one token in one forward, and any other in its own.
    So does "gather" with ``padding``, the places before all histories: 0, but in a trial.
    """

    model: Any
    cache: Pages
    reads: str
    position_limit: int | None
    _accepts: frozenset[str]
    _takes: TakesCache
    states: StateSlots | None = None
    _carries: bool = True
    padding: int | None = None

    @torch.no_grad()
    def forward(self, input_ids: Any, batch: Batch) -> Tensor:
        """Compute the logits [R, vocabulary] of the rows in ``batch.last`` and store K and V of all T tokens.

        ``input_ids`` [T]: the tokens of the batch, a tensor, a NumPy array or a list. Raises ``ArgumentError`` before
        anything is computed for another number of ids, a batch of another cache, or a position past the limit.
        """
        if not isinstance(batch, Batch) or batch.cache is not self.cache:
            raise ArgumentError("models_other_cache", name=self.cache.spec.name)
        if (batch.state_slots is None) != (self.states is None):
            raise ArgumentError("models_state_slots", name=self.cache.spec.name)
        if batch.observer is not None and self.states is not None:  # it would see a part of the batch's rows
            raise ArgumentError("llm_states", name=self.cache.spec.name, what="observer")
        if self.position_limit is not None and batch.max_position >= self.position_limit:
            name, limit = self.cache.spec.name, self.position_limit
            raise ArgumentError("models_position", name=name, position=batch.max_position, limit=limit)
        ids = torch.as_tensor(input_ids)
        if ids.dtype not in (torch.int64, torch.int32):
            raise ArgumentError("cache_not_whole", what="input_ids", value=str(ids.dtype))
        if ids.shape != (batch.num_tokens,):
            expected = f"[{batch.num_tokens}]"
            raise ArgumentError("cache_shape", what="input_ids", shape=list(ids.shape), expected=expected)
        ids = ids.to(self.cache.device)
        if self.reads == "gather" and self.padding is None:
            return torch.cat(self._gather(ids, batch))
        if self.states is not None:
            return self._beside_states(ids, batch, self.states)
        from minikv.models.hf_cache import PagedCache

        return self._paged(ids, batch, PagedCache(batch))

    def unbind(self) -> None:
        """Give the model its own attention back, once no other cache is bound to it."""
        if self.reads == "paged":
            bound = getattr(self.model, _BOUND)
            bound.adapters.discard(self)
            if not bound.adapters:
                _switch(self.model, bound.own)

    def _paged(self, ids: Tensor, batch: Batch, held: Any, across: bool = False) -> Tensor:
        """Compute the batch in one row [1, T], or ``across``: B rows of a token, as layers with states want decodes."""
        shape = (-1, 1) if across else (1, -1)
        keeps = "logits_to_keep" in self._accepts and not across
        told = {"batch": batch} if self.reads == "paged" else {"attention_mask": held.mask()}
        with forward(batch.num_tokens, self._few(batch)):
            out = self._takes.run(
                self.model,
                held,
                input_ids=ids.view(shape),
                position_ids=batch.positions.view(shape),
                **told,
                **({"logits_to_keep": batch.last} if keeps else {}),
            )
        logits = out.logits[:, 0] if across else out.logits[0]
        return logits if keeps else logits[batch.last]

    def _few(self, batch: Batch) -> Tensor | None:
        """Return the rows with logits if the others need not be computed behind attention; None: all are read.

        A layer with a state reads others, and so may a hook.
        """
        few = len(batch.last) < batch.num_tokens and batch.state_slots is None
        hooks = few and any(each._forward_hooks or each._forward_pre_hooks for each in self.model.modules())
        return batch.last if few and not hooks else None

    def _beside_states(self, ids: Tensor, batch: Batch, states: StateSlots) -> Tensor:
        from minikv.models.hf_cache import PagedCache
        from minikv.models.padded_cache import PaddedCache
        from minikv.models.state_cache import LentStates

        wanted, logits, found = set(batch.last.tolist()), [], []
        for pieces, begun in self._together(batch):
            part, across = batch.part(pieces), len(pieces) > 1
            rows = [row for _, first, end in pieces for row in range(first, end)]
            found += [row for row in rows if row in wanted]
            if self.reads == "gather" and not across:
                logits += self._gather(ids[rows], part)
                continue
            held = PagedCache(part) if self.padding is None else PaddedCache(part, self.padding)
            lent = LentStates(states, part.state_slots or (), len(self.cache.spec.layers), begun=begun)
            held.layers = lent.layers
            logits.append(self._paged(ids[rows], part, held, across))
            lent.put_back()
        order = sorted(range(len(found)), key=found.__getitem__)
        return torch.cat(logits)[order]

    def _together(self, batch: Batch) -> Iterator[tuple[list[tuple[int, int, int]], bool]]:
        """Yield the pieces of each forward, and whether they go on from states.

        Pieces of one token that do so are together: the next of every sequence. Any other is alone. Copies are limited.
        """
        from minikv.models.padded_cache import MOST_COPIED

        starts, lengths = batch.query_starts.tolist(), batch.lengths[0].tolist()
        single: dict[int, list[tuple[int, int, int]]] = {}
        for row, first, end in self._forwards(batch, starts, lengths):
            begun = lengths[row] > starts[row + 1] - first
            if begun and end - first == 1:
                single.setdefault(first - starts[row], []).append((row, first, end))
            else:
                yield [(row, first, end)], begun
        for pieces in single.values():
            if self.padding is not None:
                pieces.sort(key=lambda piece: lengths[piece[0]])
            while pieces:
                most = len(pieces) if self.padding is None else max(1, MOST_COPIED // lengths[pieces[-1][0]])
                yield sorted(pieces[-most:]), True  # ``last`` has the rows in order
                del pieces[-most:]

    def _gather(self, ids: Tensor, batch: Batch) -> list[Tensor]:
        """Compute each sequence in a forward of its own; return the logits of those with rows in ``batch.last``."""
        from minikv.models.compressed_cache import CompressedCache
        from minikv.models.hf_cache import GatheredCache
        from minikv.models.state_cache import LentStates

        starts, wanted = batch.query_starts.tolist(), batch.last.tolist()
        lengths = [values.tolist() for values in batch.lengths]
        compressed = any(layer.rate > 1 for layer in self.cache.spec.layers)
        kind, logits = CompressedCache if compressed else GatheredCache, []
        for row, start, end in self._forwards(batch, starts, lengths[0]):
            after = starts[row + 1] - end  # tokens of the sequence in a later forward
            held = kind(batch, row, start, end, tuple(values[row] - after for values in lengths))
            if self.states is not None and isinstance(held, CompressedCache):
                held.lend(self.states)
            elif self.states is not None and batch.state_slots is not None:
                slot, begun = batch.state_slots[row : row + 1], held.get_seq_length() > 0
                held.layers = LentStates(self.states, slot, len(self.cache.spec.layers), begun=begun).layers
            keep = bisect_left(wanted, end) - bisect_left(wanted, start)
            options: dict[str, Any] = {
                "position_ids": batch.positions[None, start:end],
                "logits_to_keep": max(1, keep),
            }
            options = {name: value for name, value in options.items() if name in self._accepts}
            out = self._takes.run(self.model, held, input_ids=ids[None, start:end], **options)
            if keep:
                logits.append(out.logits[0, -keep:])
        return logits

    def _forwards(
        self, batch: Batch, starts: list[int], lengths: list[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, first row, end) of each forward: all tokens of a sequence, or one if it must be so."""
        for row in range(batch.num_sequences):
            start, end = starts[row], starts[row + 1]
            if self._carries or lengths[row] == end - start:
                yield row, start, end
            else:  # behind a state that the model would not go on from
                yield from ((row, place, place + 1) for place in range(start, end))


def bind_model(
    model: Any, cache: Pages, *, reads: Reads = "auto", states: StateSlots | None = None
) -> Adapter:
    """Bind ``model``, a causal language model of transformers in eval mode, to ``cache``.

    ``reads`` "paged" switches the model to the attention function ``minikv_paged`` until ``unbind``; "gather" does not
    change it and passes it copies; "auto" takes "gather" only for models that cannot do the other. Their class computes
    attention by itself (Bloom, Falcon, MPT), passes no arguments on to it (Nemotron, StableLM) or no window
    (Phi-3.5-MoE), their layers attend to chunks (Llama 4), to what an indexer chooses (DeepSeek-V3.2) or to entries
    made of several tokens (DeepSeek-V4), or their latents or the projection of these are quantized. One token is run
    through the model to find out.

    ``states`` hold what layers without K and V keep of a sequence (``state_shapes``). A model with such layers needs
    them; it reads the blocks in place if its trial shows that its code takes the states of several sequences at once.
    Where it cannot read them, another trial shows whether copies of several histories serve in one forward.

    A model of an architecture that is on no list is measured (``measure``), and held against its own forward.

    Raises ``ArgumentError``, with the model unchanged: a model in training mode or on another device, a cache for other
    layers than those of the model's config (the first is named), "paged" where it is impossible, a GPU with kernels
    that cannot read the cache's dtype. ``ConfigError`` for a model that cannot be measured, or that differs.
    """
    if not isinstance(cache, Pages):
        raise ArgumentError("bind_not_a_cache", kind=type(cache).__name__)
    check_choice("reads", reads, Reads)
    if not callable(getattr(model, "can_generate", None)) or not model.can_generate():
        raise ArgumentError("models_not_a_decoder", kind=type(model).__name__)
    if model.training:
        raise ArgumentError("models_training", kind=type(model).__name__)
    device = model.get_input_embeddings().weight.device
    if device != cache.device:
        raise ArgumentError("kernel_device", what="cache", device=str(cache.device), expected=str(device))
    own = _check_layers(model, cache)
    _check_states(model, own, cache, states)
    measured = any(key == "measured" for key, _ in own.assumptions)
    if ranks_of(model) > 1:
        check_shard(model, cache.spec)
    why = _why_gather(model, cache, measured)
    if why is None and (measured or states is not None) and reads != "gather":
        why = _why_not_on_trial(model, own, measured)
    if why is not None and reads == "paged":
        raise ArgumentError("models_cannot_switch", kind=type(model).__name__, why=why)
    how = "gather" if why is not None or reads == "gather" else "paged"
    padding = None
    if how == "paged":
        check_readable("kv_dtype", cache.codec.dtype, device)
    elif reads == "auto" and states is not None and _pads(model, own, measured):
        padding = 0
    elif measured:
        _trial(model, own, how, measured)
    return _bind(model, cache, how, states, padding)


def _bind(
    model: Any, cache: Pages, how: str, states: StateSlots | None, padding: int | None = None
) -> Adapter:
    accepts = frozenset(inspect.signature(model.forward).parameters)
    limit, carries = _position_limit(model, cache), states is None or carries_states(model)
    adapter = Adapter(model, cache, how, limit, accepts, TakesCache.of(model), states, carries, padding)
    if how == "paged":
        register()
        own = model.config._attn_implementation
        if own != ATTENTION or not hasattr(model, _BOUND):
            setattr(model, _BOUND, _Bound(own))
        getattr(model, _BOUND).adapters.add(adapter)
        _switch(model, ATTENTION)
    return adapter


def _switch(model: Any, attention: str) -> None:
    """Give the model another attention function."""
    if type(model)._can_set_attn_implementation():
        model.set_attn_implementation(attention)
    else:  # RWKV attends nowhere, and its class cannot switch: only its config tells that it is bound
        model.config._attn_implementation = attention


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Give ``model`` its own attention while the block runs, even if caches are bound to it."""
    if model.config._attn_implementation != ATTENTION or not hasattr(model, _BOUND):
        yield
        return
    _switch(model, getattr(model, _BOUND).own)
    try:
        yield
    finally:
        _switch(model, ATTENTION)


def _trial(model: Any, own: CacheSpec, how: str, measured: bool, padding: int | None = None) -> list[Tensor]:
    """Hold ``model`` on blocks in its own dtype against its own forward, or a known one with states against itself.

    Returns the logits of each batch. Raises ``ConfigError`` if they differ.
    """
    spec = measure(model, kv_dtype=kv_dtype_of(model) or own.kv_dtype)
    device = model.get_input_embeddings().weight.device
    states = StateSlots(state_shapes(model), 2, device) if spec.constant_state_bytes else None
    if any(layer.token_bytes for layer in spec.layers):
        windows = [layer.window for layer in spec.layers if layer.window is not None]
        blocks = blocks_needed(windows, TRIAL_BLOCK)
        cache: Pages = PagedKVCache(spec, blocks, TRIAL_BLOCK, device=device)
    else:
        cache = StatePages(spec, 2, None, device)
    adapter = _bind(model, cache, how, states, padding)
    logits: list[Tensor] = []
    forward = _kept(adapter.forward, logits)
    try:
        if measured or states is None:
            hold_against_own(model, cache, forward, None if states is None else (1, 0))
        else:
            hold_together(cache, forward, (1, 0))
    finally:
        adapter.unbind()
        del forward, adapter
        cache.close()
    return logits


def _kept(forward: Forward, logits: list[Tensor]) -> Forward:
    """Return ``forward``, each result of which goes to ``logits`` as well."""

    def kept(ids: Any, batch: Batch) -> Tensor:
        logits.append(forward(ids, batch))
        return logits[-1]

    return kept


def _pads(model: Any, own: CacheSpec, measured: bool) -> bool:
    """Return whether a model with states passes its trial with several sequences in a forward, on padded copies."""
    from minikv.models.padded_cache import FAR

    accepted = {"position_ids", "attention_mask"} <= inspect.signature(model.forward).parameters.keys()
    if not accepted or any(
        layer.rate > 1 or layer.index_bytes or layer.kind == "chunked" for layer in own.layers
    ):
        return False
    try:
        near, far = (_trial(model, own, "gather", measured, before) for before in (1, FAR))
    except ConfigError as error:
        if error.code == "measured_own_cache":
            raise
        return False
    # To the bit: a place that counts may change the logits very little.
    return all(map(torch.equal, near, far))


def _why_not_on_trial(model: Any, own: CacheSpec, measured: bool) -> str | None:
    """Return "trial" if the model, reading blocks in place, does not pass its trial; None: it does."""
    try:
        _trial(model, own, "paged", measured)
    except ConfigError as error:
        if error.code == "measured_own_cache":
            raise
        return "trial"
    return None


def _check_layers(model: Any, cache: Pages) -> CacheSpec:
    """Return the model's own spec. Raises unless the cache was made for the same layers: those that ``update`` gets."""
    spec = cache.spec
    own = measure(model, tp=ranks_of(model), kv_dtype=spec.kv_dtype)
    if len(own.layers) != len(spec.layers):
        raise ArgumentError(
            "models_layer_count", model=len(own.layers), cache=len(spec.layers), name=spec.name
        )
    for number, (want, have) in enumerate(zip(own.layers, spec.layers, strict=True)):
        pairs = {field: (getattr(want, field), getattr(have, field)) for field in _SIZES}
        pairs["window"] = (sees(own, want), sees(spec, have))
        for field, (mine, theirs) in pairs.items():
            if mine == theirs:
                continue
            values = {"layer": number, "field": field, "model": mine, "cache": theirs, "name": spec.name}
            weights, stated = kv_dtype_of(model), stated_dtype(model)[0]
            if field == "index_bytes" and weights not in (None, stated):  # its keys have the weights' dtype
                raise ArgumentError("models_layer_dtype", weights=weights, stated=stated, **values)
            raise ArgumentError("models_layer", **values)
    return own


def _check_states(model: Any, own: CacheSpec, cache: Pages, states: StateSlots | None) -> None:
    """Raise unless there are slots where the model has states, and of their shapes."""
    shapes = state_shapes(model) if own.constant_state_bytes else ()
    if shapes != (() if states is None else states.shapes):
        need = sum(shape.num_bytes for shape in shapes)
        found = 0 if states is None else states.slot_bytes
        raise ArgumentError("models_states", name=own.name, need=need, found=found)
    if states is not None and states.device != cache.device:
        raise ArgumentError(
            "kernel_device", what="states", device=str(states.device), expected=str(cache.device)
        )


def why_copied(spec: CacheSpec) -> str | None:
    """Return why no model can read a cache of ``spec`` in place, in one word; None: that depends on its code."""
    for layer in spec.layers:
        if layer.rate > 1:
            return "compressed"
        if layer.index_bytes:
            return "indexer"
        if layer.kind == "chunked":
            return "chunked"
        if layer.kind == "latent" and layer.itemsize == 1:
            return "latent"
    return None


def _why_gather(model: Any, cache: Pages, measured: bool) -> str | None:
    """Return why this model cannot read the blocks in place, in one word; None: it can."""
    why = why_copied(cache.spec)
    if why is not None:
        return why
    if not any(layer.token_bytes for layer in cache.spec.layers):
        return None  # no layer attends
    if not type(model)._can_set_attn_implementation():
        return "attention"
    if not _absorbs(model, cache):
        return "latent"
    if measured and not passes_on(model):
        return "arguments"
    asked = windows_asked(model)
    for number, layer in enumerate(cache.spec.layers):
        if not layer.token_bytes and layer.reads_layer is None:
            continue
        if number not in asked:
            return "arguments"
        if asked[number] != seen_window(cache, cache.kv_cache_group_of(number)):
            return "window"
    return None


def _absorbs(model: Any, cache: Pages) -> bool:
    """Return whether the projections that are absorbed into the query are plain floats (True without latents)."""
    if not any(layer.kind == "latent" for layer in cache.spec.layers):
        return True
    projections = [module.kv_b_proj for module in model.modules() if hasattr(module, "kv_b_proj")]
    return all(
        projection.weight.is_floating_point() and projection.weight.element_size() > 1
        for projection in projections
    )


def _position_limit(model: Any, cache: Pages) -> int | None:
    """Return the first position that this model cannot compute in a batch with others.

    A table of positions ends (GPT-2, OPT, MPT). "longrope" and "dynamic" RoPE change every angle, also of cached keys,
    once the longest sequence of a batch passes the length of the training.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return cache.spec.max_positions
    limits = [_rope_limit(config, entry) for entry in (rope, *rope.values()) if isinstance(entry, dict)]
    return min((limit for limit in limits if limit is not None), default=None)


def _rope_limit(config: Any, rope: dict) -> int | None:
    if rope.get("rope_type") not in ("longrope", "dynamic"):
        return None
    original = rope.get("original_max_position_embeddings")
    return (
        original
        or getattr(config, "original_max_position_embeddings", None)
        or config.max_position_embeddings
    )
