"""Lesson 12: one model on several GPUs in two layouts, and the tokens that all GPUs hold together. On paper.

    tensor parallel          every request on every rank; each rank has its KV heads, or whole latents
    data-parallel attention  every request on one rank, which has all its heads or its latents

Data-parallel attention has attention's weights whole on every rank; all others (above all experts) are sharded as with
tensor parallelism. That is an idealisation: an engine may keep more whole copies, and moves tokens between ranks at
every layer.
"""

from dataclasses import dataclass

from minikv.plan import CacheSpec, plan_memory
from minikv.plan.pool import max_length
from minikv.plan.weights.weight_bytes import weight_bytes


@dataclass(frozen=True)
class Way:
    """One layout: the bytes of weights and of the KV pool on a rank, the bytes of a token there, and the capacity.

    ``tokens`` is the capacity of all ranks for different requests; ``longest`` is the capacity for one request.
    """

    weight_bytes: int
    kv_bytes: int
    token_bytes: int
    tokens: int
    longest: int


def two_ways(model: str, gpu: str, ranks: int) -> tuple[Way, Way]:
    """Return tensor parallelism and data-parallel attention on ``ranks`` GPUs, as ``plan_memory`` counts them.

    Raises what ``plan_memory`` raises, for instance where the weights do not fit.
    """
    sliced = plan_memory(model, gpu=gpu, tp=ranks)
    whole = CacheSpec.from_config(model)
    more = weight_bytes(model).parts["attention"] - weight_bytes(model, tp=ranks).parts["attention"]
    weights = sliced.weight_bytes + more
    # The activations are assumed to be the same in both layouts.
    pool = plan_memory(model, gpu=gpu, tp=ranks, weight_bytes=weights).kv_bytes
    tp_tokens = int(max_length(sliced.spec, sliced.kv_bytes, 1, sliced.block_size))
    dp_tokens = int(max_length(whole, pool, 1, sliced.block_size))
    return (
        Way(sliced.weight_bytes, sliced.kv_bytes, sliced.spec.bytes_for(1), tp_tokens, tp_tokens),
        Way(weights, pool, whole.bytes_for(1), ranks * dp_tokens, dp_tokens),
    )
