"""K and V of every token, in one pool of blocks for all layers; and the arithmetic of its bytes."""

import torch
from torch import Tensor

from minikv.plan.spec.cache_spec import CacheSpec


def token_bytes(num_layers: int, num_kv_heads: int, k_dim: int, v_dim: int, itemsize: int) -> int:
    """Bytes that one token takes in the cache: a K and a V for each layer and KV head."""
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize


def block_bytes(token_bytes: int, block_size: int) -> int:
    """Bytes of one block of ``block_size`` tokens, all layers together."""
    return token_bytes * block_size


def num_blocks_that_fit(
    total: int, utilization: float, used: int, peak: int, current: int, block_bytes: int
) -> int:
    """Blocks that a GPU has room for, all figures but ``utilization`` in bytes, measured after a warm-up.

    ``used`` is in use now, by all processes; ``current`` of it by torch's live tensors, at most ``peak``.
    So a step needs ``peak - current`` beside what is used, and of ``total * utilization`` the rest is for the
    cache.
    """
    return int(total * utilization - used - (peak - current)) // block_bytes


class KVCache:
    """Two tensors: ``k`` [layers, num_blocks, block_size, kv_heads, k_dim] and ``v`` [..., v_dim]."""

    def __init__(
        self, spec: CacheSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ):
        layer = spec.layers[0]
        # How many tokens a query of each layer sees, itself included; the spec counts those before it.
        self.windows = [None if each.window is None else each.window + 1 for each in spec.layers]
        shape = (len(spec.layers), num_blocks, block_size, layer.kv_heads)
        # Zeros, not empty: slots that were never written are masked, and NaN * 0 would still be NaN.
        self.k = torch.zeros(*shape, layer.k_dim, dtype=dtype, device=device)
        self.v = torch.zeros(*shape, layer.v_dim, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store ``key`` [T, kv_heads, k_dim] and ``value`` [T, kv_heads, v_dim] in ``slots`` [T]."""
        # Views [num_blocks * block_size, kv_heads, dim]: a row for each slot.
        k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
        k[slots], v[slots] = key.to(k.dtype), value.to(v.dtype)
