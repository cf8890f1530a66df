"""How fast memory allows a decode step to be, whatever the kernels.

A decode step reads every weight that it uses once, and the cache of every sequence once. Its time is at least
those bytes over the GPU's bandwidth. Sources: Williams et al. 2009 (roofline); the bandwidths and FLOP rates
of ``data/gpus.json``.
"""

from dataclasses import dataclass

from minikv.plan.catalog import GPU


@dataclass(frozen=True)
class DecodeFloor:
    """Bytes that one decode step has to read on one GPU, and the least time for it in seconds."""

    weight_bytes: int
    cache_bytes: int
    seconds: float


def ridge_point(gpu: GPU) -> float | None:
    """FLOP per byte at which 16-bit compute and memory take equally long; None where a figure is unknown."""
    if not gpu.bf16_tflops or not gpu.bandwidth_gb_s:
        return None
    return gpu.bf16_tflops * 1e12 / (gpu.bandwidth_gb_s * 1e9)


def experts_touched(num_experts: int, top_k: int, batch: int) -> float:
    """How many of ``num_experts`` a step of ``batch`` tokens uses on average, if routing is uniform.

    A token misses an expert with probability 1 - top_k / num_experts, and tokens are independent.
    """
    return num_experts * (1 - (1 - top_k / num_experts) ** batch)


def decode_floor(weight_bytes: int, cache_bytes: int, bandwidth_gb_s: float) -> DecodeFloor:
    """The least time of a step that reads ``weight_bytes`` and ``cache_bytes`` at ``bandwidth_gb_s`` (10**9 B/s)."""
    seconds = (weight_bytes + cache_bytes) / (bandwidth_gb_s * 1e9)
    return DecodeFloor(weight_bytes, cache_bytes, seconds)
