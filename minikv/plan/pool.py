"""From a pool of bytes to blocks, and from blocks to sequences.

Layers of one group (the same window, the same bytes a token) share a block table and a pool of blocks. A full
layer needs a block for every ``block_size`` tokens. A windowed layer frees the blocks that its window has passed,
so its need is bounded. A recurrent layer needs a fixed state a sequence. A compressed layer's blocks hold the entries
of ``block_size`` tokens; its buffers count as a state.
"""

import math
from dataclasses import dataclass

from minikv.errors import check_count
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """All layers that share one block table: ``count`` layers like ``layer``."""

    layer: LayerSpec
    count: int

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block across the layers of this group."""
        return self.count * -(-self.layer.token_bytes * block_size // self.layer.rate)


def kv_cache_groups(spec: CacheSpec) -> tuple[KVCacheGroupSpec, ...]:
    """The KV cache groups that cache tokens, those without a window first."""
    counts: dict[tuple[int | None, int, int], tuple[LayerSpec, int]] = {}
    for layer in spec.layers:
        if layer.token_bytes:
            key = (layer.window, layer.token_bytes, layer.rate)
            counts[key] = (layer, counts.get(key, (layer, 0))[1] + 1)
    groups = [KVCacheGroupSpec(layer, count) for layer, count in counts.values()]
    return tuple(
        sorted(groups, key=lambda group: (group.layer.window is not None, -(group.layer.window or 0)))
    )


def sequence_bytes(spec: CacheSpec, num_tokens: int, block_size: int) -> int:
    """Bytes that one sequence of ``num_tokens`` tokens takes from the pool, in whole blocks.

    This is never less than ``spec.bytes_for(num_tokens)``; the difference is internal fragmentation.
    """
    check_count("num_tokens", num_tokens, least=0)
    check_count("block_size", block_size)
    blocks = sum(
        group.layer.blocks_for(num_tokens, block_size) * group.block_bytes(block_size)
        for group in kv_cache_groups(spec)
    )
    return blocks + (spec.constant_state_bytes if num_tokens else 0)


def max_sequences(spec: CacheSpec, pool_bytes: int, num_tokens: int, block_size: int) -> int:
    """How many sequences of ``num_tokens`` tokens fit into ``pool_bytes``."""
    check_count("num_tokens", num_tokens)
    need = sequence_bytes(spec, num_tokens, block_size)
    return pool_bytes // need if need else 0


def max_length(spec: CacheSpec, pool_bytes: int, batch: int, block_size: int) -> int | float:
    """The most tokens that each of ``batch`` sequences can have; ``math.inf`` where length costs nothing more."""
    check_count("batch", batch)
    share = pool_bytes // batch
    if not any(group.layer.window is None for group in kv_cache_groups(spec)):
        widest = max((layer.window for layer in spec.layers if layer.window is not None), default=1)
        # No windowed layer needs more blocks than at two blocks past the widest window.
        if sequence_bytes(spec, widest + 2 * block_size, block_size) <= share:
            return math.inf
    low, high = 0, 1
    while sequence_bytes(spec, high, block_size) <= share:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sequence_bytes(spec, middle, block_size) <= share else (low, middle)
    return low


def counted_groups(spec: CacheSpec) -> tuple[KVCacheGroupSpec, ...]:
    """The groups with the blocks that an engine counts: those without a window, or all where every layer slides."""
    groups = kv_cache_groups(spec)
    return tuple(group for group in groups if group.layer.window is None) or groups


def counted_block_bytes(spec: CacheSpec, block_size: int) -> int:
    """Bytes of one block that ``num_blocks`` counts."""
    return sum(group.block_bytes(block_size) for group in counted_groups(spec))


def num_blocks(spec: CacheSpec, pool_bytes: int, num_tokens: int, batch: int, block_size: int) -> int:
    """Blocks of the groups without a window that fit into ``pool_bytes``: the block count that an engine prints.

    The blocks and states of sliding and recurrent layers for ``batch`` sequences of ``num_tokens`` tokens are
    subtracted first. A model with sliding layers only counts the blocks of its windows.
    """
    counted = counted_groups(spec)
    bounded = [group for group in kv_cache_groups(spec) if group not in counted]
    aside = batch * spec.constant_state_bytes + batch * sum(
        group.layer.blocks_for(num_tokens, block_size) * group.block_bytes(block_size) for group in bounded
    )
    block = counted_block_bytes(spec, block_size)
    return max(0, pool_bytes - aside) // block if block else 0
