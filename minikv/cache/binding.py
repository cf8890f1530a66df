"""bind: passes a cache's views to the attention modules of a model that was written for them."""

from torch import nn

from minikv.cache.paged import LayerCache, PagedKVCache
from minikv.errors import ArgumentError


def bind(model: nn.Module, cache: PagedKVCache) -> int:
    """Set ``k_cache`` and ``v_cache`` of every module that has both to ``cache.layer(i)``'s views; return their number.

    Modules count in the order of ``model.modules()``, layers from 0 on, without those that cache no tokens; a shared
    layer gives the views of the layer that it reads. Views are [blocks, block_size, kv_heads, dim] of the cache's
    dtype; nothing is copied. They keep the cache's memory alive until the attributes are set to something else, so
    ``cache.close()`` raises before that. Hugging Face models have no such modules.

    Raises ``ArgumentError``, with nothing set, if the counts differ, for a cache with a codec that has scales (the
    modules have no place for them), and for a module with a ``Parameter`` as ``k_cache`` or ``v_cache``.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("allocator_not_a_model", kind=type(model).__name__)
    if not isinstance(cache, PagedKVCache):
        raise ArgumentError("bind_not_a_cache", kind=type(cache).__name__)
    modules = [
        module for module in model.modules() if hasattr(module, "k_cache") and hasattr(module, "v_cache")
    ]
    layers = _layers(cache)
    if len(modules) != len(layers):
        raise ArgumentError("bind_count", modules=len(modules), layers=len(layers), name=cache.spec.name)
    if any(layer.k_scale is not None for layer in layers):
        raise ArgumentError("bind_scales", codec=cache.codec.name)
    for name, module in model.named_modules():
        for what in ("k_cache", "v_cache"):
            if isinstance(getattr(module, what, None), nn.Parameter):
                raise ArgumentError("bind_parameter", module=name, what=what)
    for module, layer in zip(modules, layers, strict=True):
        module.k_cache, module.v_cache = layer.k, layer.v
    return len(modules)


def _layers(cache: PagedKVCache) -> list[LayerCache]:
    """Return the views of every layer that caches tokens, in order."""
    found = []
    for index in range(len(cache.spec.layers)):
        try:
            found.append(cache.layer(index))
        except ArgumentError as error:
            if error.code != "cache_no_kv":
                raise
    return found
