"""measure: the layers of a decoder that is on no list, from what its own cache holds after a few tokens.

    measure(model).explain()      "measured, not known: ..."
    LLM(model)                    measures by itself

The model runs on a ``DynamicCache`` of transformers, or keeps its states in an object of its own that
``takes_cache.py`` can read as one. What that holds has to be K and V of every token, or of a window, in layers that
minikv can explain to the last attribute, or states of a fixed size. Everything else is refused by name.
``bind_model`` then holds the model on blocks against its own forward before it is used: see ``trial.py``.
"""

import sys
from itertools import chain
from typing import Any

import torch

from minikv.cache.allocator import config_of
from minikv.cache.states import StateShape
from minikv.errors import ConfigError, MiniKVError, first_line
from minikv.models.batch import sees
from minikv.models.cache_argument import name_of
from minikv.models.takes_cache import TakesCache
from minikv.plan.dtypes import AnyKVDtype
from minikv.plan.spec.architectures import ARCHITECTURES
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.compressed import SPARSE
from minikv.plan.spec.config import read_config
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.spec.measured import keep_measured, measured_layers

_OWN_INDEXED = ("MiniMaxM3VLSparseCacheLayer",)  # classes of a model's own file, with keys for an indexer
CHUNKS = (5, 3)  # tokens of the two forwards: the second one shows that the cache grows by its tokens
_STATES = ("recurrent_states", "conv_states")
_KINDS = {
    "DynamicLayer": "full",
    "DynamicIndexedLayer": "full",
    "DynamicSlidingWindowLayer": "sliding",
    "LinearAttentionLayer": "linear",
    "LinearAttentionAndFullAttentionLayer": "hybrid",
    "LinearAttentionAndSlidingWindowAttentionLayer": "hybrid",
    "DummyLayer": "none",
}


def measure(model: Any, *, tp: int = 1, kv_dtype: AnyKVDtype | None = None) -> CacheSpec:
    """Return the spec of ``model``, measured if its architecture is on no list; then every call knows its config.

    Two forwards read the weights. Raises ``ConfigError`` that names the first layer that minikv cannot explain, and for
    a model with a cache that it cannot read.
    """
    config = config_of(model)
    if tp > 1 and config.model_type not in ARCHITECTURES:  # this rank's model was measured, and has its share
        raise ConfigError("measured_tp", name=config.name, model_type=config.stated_type, tp=tp)
    if config.model_type not in ARCHITECTURES and measured_layers(config) is None:
        layers = layers_of(model)
        for told in (config, read_config(model.config)):
            keep_measured(told, layers)
    spec = CacheSpec.from_config(config, tp=tp, kv_dtype=kv_dtype)
    for number, layer in enumerate(spec.layers):
        # Mistral-Large-4 keeps a latent without a part that has positions: it is planned, and no block has such a V.
        if config.model_type not in ARCHITECTURES and layer.k_dim and not layer.v_dim:
            raise ConfigError("measured_layer", name=config.name, layer=number, what="v_dim 0")
    return spec


def layers_of(model: Any) -> list[LayerSpec]:
    """Return what each layer caches, measured, whether the model is known or not. Two forwards are run."""
    return [_spec_of(*found) for found in _explained(model, run_own(model))]


def check_described(model: Any, spec: CacheSpec) -> None:
    """Raise ``ConfigError`` unless ``model`` caches what ``spec`` describes; it names the first layer that differs.

    Two forwards show what the model's own cache holds. Of layers without a cache, and of those that read another
    layer's, that is nothing.
    """
    cache = run_own(model)
    held = [_spec_of(*found) for found in _explained(model, cache)]
    # A cache ends with the last layer that was used.
    held += [LayerSpec("none")] * (len(spec.layers) - len(held))
    if len(held) != len(spec.layers):
        raise ConfigError("spec_layers", name=spec.name, described=len(spec.layers), held=len(held))
    for number, (told, found) in enumerate(zip(spec.layers, held, strict=True)):
        for field in ("kv_heads", "k_dim", "v_dim", "window", "index_bytes", "state_bytes"):
            mine, theirs = getattr(told, field), getattr(found, field)
            if field == "window":
                mine = sees(spec, told)
            if mine != theirs:
                values = {"layer": number, "field": field, "described": mine, "held": theirs}
                raise ConfigError("spec_layer", name=spec.name, **values)


def state_shapes(model: Any) -> tuple[StateShape, ...]:
    """Return the tensors of a fixed size that the layers of ``model`` keep for a sequence. Two forwards are run."""
    if rates := getattr(model.config, "compress_rates", None):
        from minikv.models.compressed_cache import waiting_shapes  # it imports transformers

        chunks = (CHUNKS[0], rates.get(SPARSE, 1))  # so that an entry was made
        return waiting_shapes(run_own(model, chunks).layers)
    return tuple(state for _, _, states in _explained(model, run_own(model)) for state in states)


@torch.no_grad()
def carries_states(model: Any) -> bool:
    """Return whether a forward of several tokens goes on from the states of those before it; True without states.

    The classes of Mamba-1 begin anew there (transformers 5.23), and the convolution of RecurrentGemma does, so behind
    the first chunk their tokens come one by one. Two tokens are computed behind states of zeros, and of ones: where
    they are read, something that a layer then holds differs.
    """
    tokens = torch.ones(1, 2, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    first = run_own(model).layers
    for name in _STATES:
        if not any(_tensors(layer, name) for layer in first):
            continue
        ends = []
        for value in (0.0, 1.0):
            cache = run_own(model)
            for layer in cache.layers:
                for state in _tensors(layer, name):
                    state.fill_(value)
            _run(model, cache, tokens)
            held = [_tensors(layer, "keys", "values", *_STATES) for layer in cache.layers]
            ends.append(list(chain(*held)))
        if all(map(torch.equal, *ends)):
            return False
    return True


@torch.no_grad()
def run_own(model: Any, chunks: tuple[int, int] = CHUNKS) -> Any:
    """Return the cache of transformers with which the model's own code has computed ``chunks`` tokens."""
    embedding = model.get_input_embeddings()
    tokens = torch.arange(1, 1 + sum(chunks), device=embedding.weight.device) % embedding.num_embeddings
    takes = TakesCache.of(model)
    try:
        cache = takes.empty(model)
        for ids in tokens[None].split(chunks, dim=1):
            found = takes.returned(_run(model, cache, ids), cache)
    except MiniKVError:
        raise
    except Exception as error:
        raise ConfigError("measured_failed", name=name_of(model), reason=first_line(error)) from error
    if found is not cache:
        raise ConfigError("measured_other_cache", name=name_of(model), kind=type(found).__name__)
    return cache


def _run(model: Any, cache: Any, ids: torch.Tensor) -> Any:
    """Run the model's own code on ``ids`` [1, n] behind what ``cache`` holds; return its output."""
    from minikv.models.adapter import own_attention  # it imports this file

    with own_attention(model):
        return TakesCache.of(model).run(model, cache, input_ids=ids)


def _explained(model: Any, cache: Any) -> list[tuple[Any, str, tuple[StateShape, ...]]]:
    """Return each layer of the cache with its kind and its states. Raises for one that holds anything else."""
    from transformers import cache_utils

    # The exact classes: a class derived from one of them does something of its own. Older releases lack some.
    kinds = {getattr(cache_utils, name, None): kind for name, kind in _KINDS.items()}
    kinds |= {_own_class(model, name): "full" for name in _OWN_INDEXED}
    types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or []
    # Elements of a latent, of which such a module makes K and V. Beside an indexer, copies are read anyway.
    sparse = any(_index_keys(layer) is not None for layer in cache.layers)
    ranks = {
        getattr(module, "layer_idx", None): getattr(module.kv_b_proj, "in_features", None)
        for module in model.modules()
        if hasattr(module, "kv_b_proj") and not sparse
    }
    found = []
    for number, layer in enumerate(cache.layers):
        kind = kinds.get(type(layer))
        if kind is None or _strange(layer):
            what = type(layer).__name__ if kind is None else _strange(layer)
            raise ConfigError("measured_layer", name=name_of(model), layer=number, what=what)
        if number < len(types) and types[number] == "chunked_attention":
            kind = "chunked"
        keys = getattr(layer, "keys", None)
        if keys is None and kind in ("full", "sliding", "chunked"):
            kind = "none"  # never used: a layer without attention
        if keys is not None:
            _check_tokens(model, number, layer)
            if kind == "full" and keys.shape[1] == 1 and ranks.get(number) == keys.shape[3]:
                kind = "latent"
        states = _states(number, layer)
        if kind == "linear" and not any(state.name == "recurrent" for state in states):
            kind = "conv" if states else "none"
        found.append((layer, kind, states))
    return found


def _own_class(model: Any, name: str) -> type | None:
    """Return the class of that name in the file with the model's code."""
    return getattr(sys.modules[type(model).__module__], name, None)


def _index_keys(layer: Any) -> torch.Tensor | None:
    """Return what the layer keeps for an indexer, [1, tokens, dim], under either of its names."""
    keys = getattr(layer, "idx_keys", None)  # [1, 1, tokens, dim]
    return getattr(layer, "indexer_keys", None) if keys is None else keys[:, 0]


def _tensors(layer: Any, *names: str) -> list[torch.Tensor]:
    """Return what the layer holds under these names: a tensor, or a dict of them."""
    found = [getattr(layer, name, None) for name in names]
    parts = chain(*(each.values() if isinstance(each, dict) else [each] for each in found))
    return [each for each in parts if each is not None]


def _strange(layer: Any) -> str:
    """Return the first attribute of the layer that another layer of its class does not have; "" if there is none."""
    known = vars(type(layer)(sliding_window=getattr(layer, "sliding_window", 1))).keys()
    known |= {
        "dtype",
        "device",
        "keys",
        "values",
        "batch_size",
        "max_batch_size",
        "indexer_dtype",
        "indexer_device",
    }
    if getattr(layer, "indexer_position_ids", None) is not None:
        return f"{type(layer).__name__}.indexer_position_ids"
    return next((f"{type(layer).__name__}.{name}" for name in sorted(vars(layer).keys() - known)), "")


def _check_tokens(model: Any, number: int, layer: Any) -> None:
    """Raise unless the layer holds one K and one V of each token, or of each in its window; so with indexer keys."""
    k, v = layer.keys, layer.values
    window = getattr(layer, "sliding_window", None)
    count = sum(CHUNKS) if window is None else min(sum(CHUNKS), window - 1)
    for tensor in (k, v):
        if tensor.dim() != 4 or tensor.shape[:3] != (1, k.shape[1], count) or not tensor.is_floating_point():
            shape = f"{type(layer).__name__} {list(tensor.shape)}"
            raise ConfigError("measured_layer", name=name_of(model), layer=number, what=shape)
    index = _index_keys(layer)
    if index is not None and (index.dim() != 3 or index.shape[:2] != (1, count)):
        shape = f"indexer_keys {list(index.shape)}"
        raise ConfigError("measured_layer", name=name_of(model), layer=number, what=shape)


def _states(number: int, layer: Any) -> tuple[StateShape, ...]:
    """Return the states of a layer, in the order of their indices."""
    return tuple(
        StateShape(number, name, index, tuple(tensor.shape[1:]), tensor.dtype)
        for name in ("conv", "recurrent")
        for index, tensor in getattr(layer, f"{name}_states", {}).items()
        if tensor is not None
    )


def _spec_of(layer: Any, kind: str, states: tuple[StateShape, ...]) -> LayerSpec:
    """Return the layer's spec; its window counts the query too, and its elements get the cache's dtype later."""
    keys = getattr(layer, "keys", None)
    state_bytes = sum(state.num_bytes for state in states)
    if keys is None:
        return LayerSpec(kind, state_bytes=state_bytes)
    heads, k_dim, v_dim = keys.shape[1], keys.shape[3], layer.values.shape[3]
    window, index = getattr(layer, "sliding_window", None), _index_keys(layer)
    index_bytes = 0 if index is None else index.shape[2] * index.itemsize
    return LayerSpec(
        kind, heads, k_dim, v_dim, index_bytes=index_bytes, window=window, state_bytes=state_bytes
    )
