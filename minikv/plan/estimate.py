"""The two helpers that many scripts write for themselves, right this time.

A script in the wild estimated DeepSeek-V3's cache with ``hidden_size // num_attention_heads`` and sized its
batches by it; the estimate was 2.86x too small for the cache of its day (lesson 03). Both functions here ask
the spec instead.
"""

import math
from typing import Any

from minikv.plan.spec import CacheSpec, check_count


def estimate_kv_cache_gb(config: Any, num_tokens: int, batch: int = 1, **spec_arguments: Any) -> float:
    """The cache of ``batch`` sequences of ``num_tokens`` tokens in GB (10**9 bytes, as the name says).

    ``spec_arguments`` are those of ``CacheSpec.from_config`` (tp, kv_dtype, layout).
    """
    return CacheSpec.from_config(config, **spec_arguments).bytes_for(num_tokens, batch) / 1e9


def max_batch_size(
    config: Any,
    free_bytes: int,
    num_tokens: int,
    *,
    step_bytes: int = 0,
    safety: float = 0.9,
    **spec_arguments: Any,
) -> int:
    """How many sequences of ``num_tokens`` tokens a dense cache fits into ``safety`` of ``free_bytes``.

    ``num_tokens`` counts prompt and answer. ``step_bytes`` is what one sequence's activations take during a
    step. transformers grows a cache by joining old and new into a new tensor, so for a moment one layer exists
    twice: the largest layer's bytes are set aside for it.
    """
    check_count("free_bytes", free_bytes, least=0)
    check_count("num_tokens", num_tokens)
    spec = CacheSpec.from_config(config, **spec_arguments)
    largest_layer = max((layer.bytes_for(num_tokens) for layer in spec.layers), default=0)
    one = spec.bytes_for(num_tokens) + largest_layer + step_bytes
    return math.floor(free_bytes * safety) // one if one else 0
