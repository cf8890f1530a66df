"""Lesson 12: one model on several GPUs in two ways, and the tokens that all of them hold together. On paper.

    tensor parallel          every request on every rank: each keeps its KV heads, or whole latents
    data-parallel attention  every request on one rank, which keeps all its heads or its latents

With the second, attention's weights are whole on every rank; all others (experts above all) are cut as with the first.
That is an idealisation: an engine may keep whole copies of more, and moves tokens between ranks at every layer.
"""

from dataclasses import dataclass

from minikv.plan import CacheSpec, plan_memory
from minikv.plan.pool import max_length
from minikv.plan.weights.weight_bytes import weight_bytes


@dataclass(frozen=True)
class Way:
    """``weight_bytes`` and ``kv_bytes`` (the pool) of one rank, the cost of a token there, and what all ranks hold.

    ``tokens`` are those of different requests together, ``longest`` the most that one request can have, as far as
    memory goes.
    """

    weight_bytes: int
    kv_bytes: int
    token_bytes: int
    tokens: int
    longest: int


def two_ways(model: str, gpu: str, ranks: int) -> tuple[Way, Way]:
    """Tensor parallel and data-parallel attention on ``ranks`` GPUs, as ``plan_memory`` counts them.

    Raises as ``plan_memory`` does, so where the weights do not fit either way.
    """
    sliced = plan_memory(model, gpu=gpu, tp=ranks)
    whole = CacheSpec.from_config(model)
    more = weight_bytes(model).parts["attention"] - weight_bytes(model, tp=ranks).parts["attention"]
    weights = sliced.weight_bytes + more
    pool = plan_memory(
        model, gpu=gpu, tp=ranks, weight_bytes=weights
    ).kv_bytes  # activations are taken as the same
    tp_tokens = int(max_length(sliced.spec, sliced.kv_bytes, 1, sliced.block_size))
    dp_tokens = int(max_length(whole, pool, 1, sliced.block_size))
    return (
        Way(sliced.weight_bytes, sliced.kv_bytes, sliced.spec.bytes_for(1), tp_tokens, tp_tokens),
        Way(weights, pool, whole.bytes_for(1), ranks * dp_tokens, dp_tokens),
    )
