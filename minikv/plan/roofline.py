"""Lower bounds for the time of a decode step, with any kernels.

A decode step reads every weight that it uses once, and the cache of every sequence once. Its time is at least
those bytes over the GPU's bandwidth, and at least its FLOPs over the GPU's FLOP rate. Sources: Williams et al. 2009
(roofline); the bandwidths and FLOP rates of ``data/gpus.json``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minikv.errors import ArgumentError, check_count
from minikv.plan.catalog import GPU
from minikv.plan.step_work import StepWork, step_cost
from minikv.plan.step_work import experts_touched as experts_touched

MOST_BATCH = 2**20  # sequences: the largest batch that ``ridge_batch`` tries


@dataclass(frozen=True)
class Roof:
    """The limits of a device: ``bandwidth_gb_s`` (10**9 bytes a second) and ``tflops`` (10**12 FLOP a second).

    From a data sheet (``gpu_roof``) or measured (``minikv.memory``'s ``read_bandwidth`` and ``matmul_rate``).
    Raises ``ArgumentError`` unless both are positive and finite.
    """

    name: str
    bandwidth_gb_s: float
    tflops: float

    def __post_init__(self) -> None:
        for what in ("bandwidth_gb_s", "tflops"):
            value = getattr(self, what)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ArgumentError("out_of_range", what=what, value=value, low=0, high=math.inf)

    @property
    def ridge(self) -> float:
        """The ridge point in FLOP per byte: work below it is bound by memory, work above it by arithmetic."""
        return self.tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    def tflops_at(self, intensity: float) -> float:
        """The highest FLOP rate of work of ``intensity`` FLOP per byte, in 10**12 FLOP a second."""
        return min(self.tflops, self.bandwidth_gb_s * 1e9 * intensity / 1e12)

    def seconds(self, flops: int, num_bytes: int) -> float:
        """The least seconds of work that does ``flops`` and moves ``num_bytes``, both at once."""
        return max(flops / (self.tflops * 1e12), num_bytes / (self.bandwidth_gb_s * 1e9))


@dataclass(frozen=True)
class DecodeWork(StepWork):
    """The bytes and FLOPs of one decode step of ``tokens`` sequences that see ``context`` tokens each.

    ``weight_bytes`` are read once for the whole batch, ``cache_bytes`` once for each sequence. ``weight_flops`` are
    the products with weight matrices, ``attention_flops`` Q K^T and P V; one multiplication and one addition are two.
    """

    context: int

    @property
    def intensity(self) -> float:
        """FLOP per byte of the whole step."""
        return self.flops / self.num_bytes

    @property
    def weight_intensity(self) -> float:
        """FLOP per byte of weight: grows with the batch."""
        return self.weight_flops / self.weight_bytes

    @property
    def attention_intensity(self) -> float:
        """FLOP per byte of cache: the same for every batch and, without windows, for every context."""
        return self.attention_flops / self.cache_bytes


def gpu_roof(gpu: GPU) -> Roof:
    """The roof of a card's data sheet in bf16, or in fp16 where it has no bf16 (dense, no sparsity).

    Raises ``ArgumentError`` ("roof_unknown") for a card without a 16-bit FLOP rate in the catalogue.
    """
    tflops = gpu.bf16_tflops or gpu.fp16_tflops
    if not tflops:
        raise ArgumentError("roof_unknown", name=gpu.name)
    return Roof(gpu.name, gpu.bandwidth_gb_s, tflops)


def decode_work(config: Any, batch: int, context: int, *, kv_dtype: str | None = None) -> DecodeWork:
    """The work of one decode step of ``batch`` sequences, each seeing ``context`` tokens, on one GPU.

    ``config`` and ``kv_dtype``: as for ``CacheSpec.from_config``. Weights are in the checkpoint's dtype. Only experts
    that some token is routed to count (``experts_touched``); an untied embedding does not. MLA is counted absorbed:
    every head attends to the latent itself, 2 * heads * ((c + r) + c) FLOPs a cached token and layer. Norms, softmax,
    activations and the few bytes written are left out.

    Raises ``ArgumentError`` for no sequences or tokens, ``ConfigError`` ("roofline_unknown") for layers with
    attention that is not counted here (recurrent, cross, sparse), and what ``weight_list`` raises.
    """
    check_count("batch", batch)
    return _step_of(config, context, kv_dtype)(batch)


def ridge_batch(config: Any, context: int, roof: Roof, *, kv_dtype: str | None = None) -> int | None:
    """The smallest batch with a decode step that reaches the ridge point of ``roof``; None where no batch does.

    None is usual: a cache is read for one sequence alone, so a larger batch adds bytes as well as FLOPs. The search
    ends at a million sequences, and does not check that they fit the card. Raises as ``decode_work`` does.
    """
    step = _step_of(config, context, kv_dtype)
    low, high = 0, 1
    while step(high).intensity < roof.ridge:
        low, high = high, 2 * high
        if high > MOST_BATCH:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if step(middle).intensity >= roof.ridge else (middle, high)
    return high


def decode_floor(weight_bytes: int, cache_bytes: int, bandwidth_gb_s: float) -> float:
    """The least seconds of a step that reads ``weight_bytes`` and ``cache_bytes`` at ``bandwidth_gb_s`` (10**9 B/s)."""
    return (weight_bytes + cache_bytes) / (bandwidth_gb_s * 1e9)


def _step_of(config: Any, context: int, kv_dtype: str | None) -> Callable[[int], DecodeWork]:
    """The work of a step at this context, as a function of the batch, so that the config is read once."""
    check_count("context", context)
    cost = step_cost(config, kv_dtype=kv_dtype)
    seen = [each.seen(context) for each in cost.attention]

    def step(batch: int) -> DecodeWork:
        counts = [batch * tokens for tokens in seen]
        return DecodeWork(**vars(cost.counted(batch, batch, counts, counts)), context=context)

    return step
