"""How fast memory allows a decode step to be, whatever the kernels.

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

MOST_BATCH = 2**20  # sequences: where ``ridge_batch`` stops looking


@dataclass(frozen=True)
class Roof:
    """What a device can do at most: ``bandwidth_gb_s`` (10**9 bytes a second) and ``tflops`` (10**12 FLOP a second).

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
        """The ridge point in FLOP per byte: with less the device waits for memory, with more for arithmetic."""
        return self.tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    def tflops_at(self, intensity: float) -> float:
        """The most that work of ``intensity`` FLOP per byte can reach, in 10**12 FLOP a second."""
        return min(self.tflops, self.bandwidth_gb_s * 1e9 * intensity / 1e12)

    def seconds(self, flops: int, num_bytes: int) -> float:
        """The least time of work that does ``flops`` and moves ``num_bytes``, both at once."""
        return max(flops / (self.tflops * 1e12), num_bytes / (self.bandwidth_gb_s * 1e9))


@dataclass(frozen=True)
class DecodeWork(StepWork):
    """One decode step of ``tokens`` sequences that see ``context`` tokens each: what it reads and computes.

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
        """FLOP per byte of cache: the same for every batch and context, but for windows."""
        return self.attention_flops / self.cache_bytes


def gpu_roof(gpu: GPU) -> Roof:
    """The roof that a card's data sheet promises in bf16, or in fp16 where it has no bf16 (dense, no sparsity).

    Raises ``ArgumentError`` ("roof_unknown") for a card without a 16-bit FLOP rate in the catalogue.
    """
    tflops = gpu.bf16_tflops or gpu.fp16_tflops
    if not tflops:
        raise ArgumentError("roof_unknown", name=gpu.name)
    return Roof(gpu.name, gpu.bandwidth_gb_s, tflops)


def decode_work(config: Any, batch: int, context: int, *, kv_dtype: str | None = None) -> DecodeWork:
    """What one decode step of ``batch`` sequences, each seeing ``context`` tokens, reads and computes on one GPU.

    ``config`` and ``kv_dtype``: as for ``CacheSpec.from_config``. Weights are in the checkpoint's dtype; of experts
    those that some token is routed to (``experts_touched``), of an untied embedding nothing. MLA is counted absorbed:
    every head attends to the latent itself, 2 * heads * ((c + r) + c) FLOPs a cached token and layer. Norms, softmax,
    activations and the few bytes written are left out.

    Raises ``ArgumentError`` for no sequences or tokens, ``ConfigError`` ("roofline_unknown") for layers whose
    attention is not counted here (recurrent, cross, sparse), and what ``weight_list`` raises.
    """
    check_count("batch", batch)
    return _step_of(config, context, kv_dtype)(batch)


def ridge_batch(config: Any, context: int, roof: Roof, *, kv_dtype: str | None = None) -> int | None:
    """The smallest batch whose decode step reaches the ridge point of ``roof``; None where no batch does.

    None is the rule: a cache is read for one sequence alone, so a bigger batch brings more bytes and not only more
    FLOPs. (Looked for up to a million sequences. That they fit the card is another matter.) Raises as ``decode_work``.
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
    """The work of a step at this context, as a function of the batch: the config is read once."""
    check_count("context", context)
    cost = step_cost(config, kv_dtype=kv_dtype)
    seen = [each.seen(context) for each in cost.attention]

    def step(batch: int) -> DecodeWork:
        counts = [batch * tokens for tokens in seen]
        return DecodeWork(**vars(cost.counted(batch, batch, counts, counts)), context=context)

    return step
