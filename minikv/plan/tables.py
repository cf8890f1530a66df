"""The two tables of ``minikv plan --table``: the cost of a context length, and the tokens of a shared pool."""

import math
from typing import Any

from minikv.plan import pool
from minikv.plan.budget import MemoryBudget
from minikv.plan.roofline import decode_floor, experts_touched

FIRST_CONTEXT, LAST_CONTEXT = 1024, 2**20  # tokens; the rows double
SHARED_BY = (1, 8, 32)  # sequences


def context_rows(budget: MemoryBudget) -> list[dict[str, Any]]:
    """One row a context length, doubling up to the model's positions.

    ``blocks`` and ``sequence_bytes`` are one sequence's, ``sequences`` how many fit, ``floor_one_s`` and
    ``floor_all_s`` the least seconds of a decode step of one sequence and of all of them (None without a GPU
    with known bandwidth), ``capped`` whether the row ends at max_position_embeddings.
    """
    return [_row(budget, context) for context in context_lengths(budget.spec.max_positions)]


def sharing_rows(budget: MemoryBudget) -> list[dict[str, Any]]:
    """The most tokens of each sequence when 1, 8 or 32 share the pool.

    ``memory_tokens`` is the limit of memory, ``tokens`` the smaller of that and max_position_embeddings; None is no
    limit.
    """
    rows = []
    for sequences in SHARED_BY:
        memory = pool.max_length(budget.spec, max(0, budget.kv_bytes), sequences, budget.block_size)
        tokens = min(memory, budget.spec.max_positions or math.inf)
        rows.append(
            {
                "sequences": sequences,
                "tokens": None if tokens == math.inf else tokens,
                "memory_tokens": None if memory == math.inf else memory,
                "capped": tokens < memory,
            }
        )
    return rows


def context_lengths(max_positions: int | None) -> list[int]:
    """Lengths that double from 1,024, and at the end all positions; no more than 2**20."""
    last = min(max_positions or LAST_CONTEXT, LAST_CONTEXT)
    doubling = [FIRST_CONTEXT << i for i in range(64) if FIRST_CONTEXT << i < last]
    return [*doubling, last]


def _row(budget: MemoryBudget, context: int) -> dict[str, Any]:
    spec, block_size = budget.spec, budget.block_size
    sequences = budget.max_batch(context)
    return {
        "context": context,
        "blocks": math.ceil(context / block_size),
        "sequence_bytes": pool.sequence_bytes(spec, context, block_size),
        "sequences": sequences,
        "floor_one_s": _floor(budget, context, 1),
        "floor_all_s": _floor(budget, context, sequences) if sequences else None,
        "capped": context == spec.max_positions,
    }


def _floor(budget: MemoryBudget, context: int, batch: int) -> float | None:
    weights = weights_read(budget, batch)
    if weights is None or budget.gpu is None or not budget.gpu.bandwidth_gb_s:
        return None
    return decode_floor(weights, budget.spec.bytes_read(context, batch), budget.gpu.bandwidth_gb_s)


def weights_read(budget: MemoryBudget, batch: int) -> int | None:
    """Bytes of the weights that a decode step of ``batch`` tokens reads on one rank.

    Only experts that some token is routed to count (uniform routing assumed). An untied embedding is left out: one
    row a token is read. None for a model with experts and unknown parts of its weights: reading all of them would be
    no floor.
    """
    parts = budget.weights.parts
    if budget.experts is None or (budget.experts != (0, 0) and not parts):
        return None
    experts = parts.get("expert", 0)
    dense = budget.weight_bytes - experts - (parts.get("embedding", 0) if parts.get("lm_head") else 0)
    num_experts, top_k = budget.experts
    if not num_experts:
        return dense + experts
    return dense + int(experts * experts_touched(num_experts, top_k, batch) / num_experts)
