"""StepTime: the seconds of a step on a simulated GPU.

    >>> clock = StepTime.of_model("Llama-3.1-8B", "H200", assumptions=IDEAL)
    >>> round(1000 * clock.seconds(decode=[4096] * 64), 1)        # 64 sequences of 4,096 tokens decode
    10.3
    >>> round(1000 * clock.seconds(prefill=[(0, 8192)]), 0)       # a chunk of 8,192 tokens
    133.0

A step computes and reads at once, so the longer of both counts. The all-reduce and a fixed overhead come on top:

    seconds = max(FLOPs / (FLOP rate * efficiency), bytes / (bandwidth * efficiency)) + all-reduce + overhead

FLOPs and bytes are ``plan.step_work``'s, per rank. With the assumptions ``IDEAL`` a decode step takes exactly
``Roof.seconds(decode_work(...))``. The FLOP rate is that of 16 bits, whatever dtype the weights are stored in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minikv.errors import ArgumentError
from minikv.plan.catalog import GPU, find_gpu
from minikv.plan.roofline import Roof, gpu_roof
from minikv.plan.step_work import StepCost, StepWork, step_cost
from minikv.simulate.assumptions import IDEAL as IDEAL
from minikv.simulate.assumptions import Assumptions

TICKS = 100  # of float64: a shorter step's length would be a percent wrong


class StepSeconds(NamedTuple):
    """The parts of a step's seconds. ``compute`` and ``bandwidth`` run at once, the others after them."""

    compute: float
    bandwidth: float
    link: float
    overhead: float

    @property
    def total(self) -> float:
        return max(self.compute, self.bandwidth) + self.link + self.overhead


@dataclass(frozen=True, eq=False)
class DecodeSeries:
    """``StepSeconds`` of consecutive steps, float64 [steps]; ``link`` and ``overhead`` are the same in all."""

    compute: np.ndarray
    bandwidth: np.ndarray
    link: float
    overhead: float

    @cached_property
    def total(self) -> np.ndarray:
        return np.maximum(self.compute, self.bandwidth) + self.link + self.overhead


@dataclass(frozen=True)
class StepTime:
    """The clock of one replica: ``cost`` on each of its ``cost.tp`` GPUs, each under ``roof``."""

    cost: StepCost
    roof: Roof
    assumptions: Assumptions = field(default_factory=Assumptions)

    @classmethod
    def of_model(
        cls,
        config: Any,
        gpu: str | GPU | Roof,
        *,
        tp: int = 1,
        kv_dtype: str | None = None,
        weight_bytes: int | None = None,
        assumptions: Assumptions | None = None,
    ) -> "StepTime":
        """``config``: as for ``CacheSpec.from_config``; ``gpu``: a catalogue name, its entry, or a measured roof.

        ``weight_bytes``: as for ``step_cost``, one rank's weights where they are not stored as the config says.

        Raises what ``step_cost``, ``find_gpu`` and ``gpu_roof`` raise.
        """
        if not isinstance(gpu, Roof):
            gpu = gpu_roof(gpu if isinstance(gpu, GPU) else find_gpu(gpu))
        cost = step_cost(config, tp=tp, kv_dtype=kv_dtype, weight_bytes=weight_bytes)
        return cls(cost, gpu, assumptions or Assumptions())

    def __post_init__(self) -> None:
        for what, kind in (("cost", StepCost), ("roof", Roof), ("assumptions", Assumptions)):
            if not isinstance(getattr(self, what), kind):
                given = type(getattr(self, what)).__name__
                raise ArgumentError("simulate_type", what=what, kind=kind.__name__, value=given)

    def seconds(self, prefill: Iterable[tuple[int, int]] = (), decode: Iterable[int] = ()) -> float:
        """Seconds of a step of chunks (start, end) and of decodes.

        A decode is given by the tokens that it sees, itself included: one more than it had in the cache.
        """
        return self.parts(self.cost.work(prefill, decode)).total

    def parts(self, work: StepWork) -> StepSeconds:
        """The parts of the seconds that ``work`` takes."""
        return StepSeconds(
            work.flops / self._flop_rate,
            work.num_bytes / self._byte_rate,
            self.link_seconds(work.reduced_bytes),
            self.assumptions.overhead_seconds,
        )

    def decode_series(self, placed: np.ndarray, steps: int) -> DecodeSeries:
        """``parts`` of ``steps`` decode steps of the same sequences, with ``placed`` tokens each before the first."""
        batch, attention = len(placed), self.cost.attention
        none = self.cost.counted(batch, batch, [0] * len(attention), [0] * len(attention))
        flops, num_bytes = np.full(steps, none.flops), np.full(steps, none.num_bytes)
        for each in attention:
            seen = _seen(placed, steps, each.window)
            flops += each.pair_flops * seen
            num_bytes += each.token_bytes * seen
        return DecodeSeries(
            flops / self._flop_rate,
            num_bytes / self._byte_rate,
            self.link_seconds(none.reduced_bytes),
            self.assumptions.overhead_seconds,
        )

    @cached_property
    def _flop_rate(self) -> float:
        return self.roof.tflops * 1e12 * self.assumptions.compute_efficiency

    @cached_property
    def _byte_rate(self) -> float:
        return self.roof.bandwidth_gb_s * 1e9 * self.assumptions.bandwidth_efficiency

    def link_seconds(self, reduced_bytes: int) -> float:
        """Seconds of a ring all-reduce, which moves 2 (tp - 1) / tp of its bytes out of each rank."""
        tp = self.cost.tp
        return 2 * (tp - 1) / tp * reduced_bytes / (self.assumptions.link_gb_s * 1e9)

    def host_seconds(self, num_bytes: int) -> float:
        """Seconds to move ``num_bytes`` of each rank between its GPU and the host, one way."""
        return num_bytes / (self.assumptions.host_gb_s * 1e9)

    def check_clock(self, latest: float) -> None:
        """Raise ``ArgumentError`` if float64 seconds near ``latest`` are too coarse for steps this short."""
        tick, step = float(np.spacing(latest)), self.seconds(decode=[1])
        if step < TICKS * tick:
            raise ArgumentError("fleet_clock", latest=latest, tick=tick, step=step)

    def prefill_rate(self, tokens: int) -> float:
        """Tokens a second of a prompt of ``tokens`` tokens, computed in one step."""
        return tokens / self.seconds(prefill=[(0, tokens)])

    def with_assumptions(self, assumptions: Assumptions) -> "StepTime":
        return replace(self, assumptions=assumptions)


def _seen(placed: np.ndarray, steps: int, window: int | None) -> np.ndarray:
    """int64 [steps]: the tokens that the queries of each step attend to, all sequences together."""
    after = np.arange(1, steps + 1)
    if window is None:
        return int(placed.sum()) + len(placed) * after
    missing = np.sort(np.maximum(window - placed, 0))  # tokens until a sequence fills its window
    growing = len(missing) - np.searchsorted(missing, after)
    return int(np.minimum(placed, window).sum()) + np.cumsum(growing)
