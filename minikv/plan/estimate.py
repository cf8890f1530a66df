"""Cache size and batch size from the spec: two helpers that many scripts write for themselves.

A published script estimated DeepSeek-V3's cache with ``hidden_size // num_attention_heads`` and sized its batches
by it. The estimate was 2.86x too small for the cache of its day (lesson 03).
"""

import math
from typing import Any

from minikv.errors import ArgumentError, check_count
from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.spec.architectures import split_heads
from minikv.plan.spec.cache_spec import CacheSpec, model_dtype_of
from minikv.plan.spec.config import read_config


def estimate_kv_cache_gb(config: Any, num_tokens: int, batch: int = 1, **spec_arguments: Any) -> float:
    """The cache of ``batch`` sequences of ``num_tokens`` tokens in GB (10**9 bytes, as the name says).

    ``spec_arguments`` are those of ``CacheSpec.from_config`` (tp, kv_dtype, layout).
    """
    return CacheSpec.from_config(config, **spec_arguments).bytes_for(num_tokens, batch) / 1e9


def rebuilt_bytes(config: Any, num_tokens: int, *, tp: int = 1) -> int:
    """Bytes of K and V that transformers rebuilds in one MLA layer in every step, for one sequence; 0 without MLA.

    A latent cache alone does not make decoding cheap: ``expand_kv`` makes K and V of all ``num_tokens`` tokens
    again. V is a view of ``kv_b_proj``'s output, so that whole output lives beside K:
    heads * ((nope + v) + (nope + rope)) elements a token. An engine that absorbs ``kv_b_proj`` rebuilds nothing.
    """
    reader = read_config(config)
    if not reader.get("kv_lora_rank"):
        return 0
    nope, rope = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
    heads = split_heads(reader.count("num_attention_heads"), tp)
    elements = heads * ((nope + reader.count("v_head_dim")) + (nope + rope))
    return num_tokens * elements * find_kv_dtype(model_dtype_of(reader, [])).itemsize


EXPANDED_BYTES = 2**29  # of one MLA layer at a time: where all its heads take more, they take turns


def expanded_bytes(config: Any, num_tokens: int, *, tp: int = 1) -> int:
    """Bytes of K and V that minikv makes of ``num_tokens`` latents at a time, in a prefill on a GPU; 0 without MLA.

    They are alive beside those of the prompt's own tokens, which the model's code makes and minikv does not read. With
    them is a copy of the rope keys, and before that one of the latents (``LatentSizes.key_bytes``). A model with an
    indexer reads copies, of which its own code makes K and V of all tokens at once.
    """
    whole, reader = rebuilt_bytes(config, num_tokens, tp=tp), read_config(config)
    if not whole or reader.get("index_topk"):
        return whole
    nope, rope = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
    heads = split_heads(reader.count("num_attention_heads"), tp)
    copies = num_tokens * max(rope, reader.count("kv_lora_rank") - heads * (nope + rope))
    itemsize = find_kv_dtype(model_dtype_of(reader, [])).itemsize
    return min(whole + copies * itemsize, EXPANDED_BYTES)


def max_batch_size(
    config: Any,
    free_bytes: int,
    num_tokens: int,
    *,
    step_bytes: int = 0,
    safety: float = 0.9,
    **spec_arguments: Any,
) -> int:
    """How many sequences of ``num_tokens`` tokens a dense transformers cache fits into ``safety`` of ``free_bytes``.

    ``num_tokens`` counts prompt and answer. A sequence counts with the bytes that transformers *holds* after a prefill
    of them: a sliding layer keeps the whole prompt until the next step. Two more things live during a step only: a
    second copy of one layer, since a cache grows by joining old and new into a new tensor, and one layer's rebuilt
    K and V where the cache holds latents. ``step_bytes`` are the other bytes of a step (activations).
    """
    check_count("free_bytes", free_bytes, least=0)
    check_count("num_tokens", num_tokens)
    spec = CacheSpec.from_config(config, **spec_arguments)
    if not isinstance(safety, int | float) or not 0 < safety <= 1:
        raise ArgumentError("out_of_range", what="safety", value=safety, low=0, high=1)
    check_count("step_bytes", step_bytes, least=0)
    if spec.layout == "vllm":
        held, joined = spec.bytes_for(num_tokens), 0  # blocks do not move as they grow
    else:
        held = spec.held_bytes_for(num_tokens, step=num_tokens)
        joined = max(layer.held_bytes_for(num_tokens, num_tokens) for layer in spec.layers)
    rebuilt = rebuilt_bytes(config, num_tokens, tp=spec.tp) if spec.layout == "hf" else 0
    one = held + joined + rebuilt + step_bytes
    return math.floor(free_bytes * safety) // one if one else 0
