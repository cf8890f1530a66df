"""ReplicaTotals: sums over the steps of one replica."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from minikv.simulate.step_time import DecodeSeries, StepSeconds


def running_sums(start: float, values: np.ndarray) -> np.ndarray:
    """float64 [len(values) + 1]: the partial sums from ``start`` on, rounded as a loop of additions rounds."""
    return np.add.accumulate(np.concatenate(([start], values)))


@dataclass
class ReplicaTotals:
    """Sums over the steps of one replica, ``busy_seconds`` long together; one number for each KV cache group in a list.

    - ``prefill_tokens``, ``decode_tokens``: computed, those of a recompute included.
    - ``compute_seconds``, ``bandwidth_seconds``: of the steps in which FLOPs, or bytes, took longer; ``link_seconds``,
      ``overhead_seconds``, ``host_seconds`` (transfers to and from host memory) come on top. The five add up to
      ``busy_seconds``.
    - ``held``, ``cached``: blocks that sequences held, and free blocks with a cached prefix, times seconds;
      ``wasted``: slots of held blocks without a token, times seconds. ``peak``: the most blocks that were held at once.
    - ``host_held``, ``host_cached``: the same of host memory; ``host_peak``: the most of both at once.
    - ``blocked_seconds``: of the steps in which a request waited though a seat and tokens of the budget were left.
    - ``in_system``: requests that had arrived and not ended, times seconds.
    """

    num_kv_cache_groups: int
    steps: int = 0
    busy_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    compute_seconds: float = 0.0
    bandwidth_seconds: float = 0.0
    link_seconds: float = 0.0
    overhead_seconds: float = 0.0
    host_seconds: float = 0.0
    blocked_seconds: float = 0.0
    in_system: float = 0.0
    preemptions: int = 0
    swaps: int = 0
    held: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    wasted: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    host_held: list[float] = field(default_factory=list)
    host_cached: list[float] = field(default_factory=list)
    host_peak: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("held", "cached", "wasted", "host_held", "host_cached"):
            setattr(self, name, [0.0] * self.num_kv_cache_groups)
        self.peak, self.host_peak = [0] * self.num_kv_cache_groups, [0] * self.num_kv_cache_groups

    def add_step(self, parts: StepSeconds, moved: float, prefill: int, decode: int) -> float:
        """Add a step of ``prefill`` and ``decode`` tokens with ``moved`` seconds of transfers; returns its seconds."""
        compute, bandwidth, link, overhead = parts
        if compute > bandwidth:
            self.compute_seconds += compute
        else:
            self.bandwidth_seconds += bandwidth
        self.link_seconds += link
        self.overhead_seconds += overhead
        self.host_seconds += moved
        seconds = parts.total + moved
        self.busy_seconds += seconds
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += decode
        return seconds

    def add_blocks(self, kv_cache_group: int, seconds: float, held: int, cached: int, wasted: int) -> None:
        """Add the device's blocks of a group in a step of ``seconds``."""
        self.held[kv_cache_group] += held * seconds
        self.cached[kv_cache_group] += cached * seconds
        self.wasted[kv_cache_group] += wasted * seconds
        if held > self.peak[kv_cache_group]:
            self.peak[kv_cache_group] = held

    def add_host_blocks(self, kv_cache_group: int, seconds: float, held: int, cached: int) -> None:
        self.host_held[kv_cache_group] += held * seconds
        self.host_cached[kv_cache_group] += cached * seconds
        self.host_peak[kv_cache_group] = max(self.host_peak[kv_cache_group], held + cached)

    def add_decodes(self, parts: DecodeSeries, steps: slice, decode: int, blocked: bool) -> None:
        """``add_step`` of many steps of ``decode`` tokens each; ``blocked``: a request waits for blocks in all."""
        compute, bandwidth, seconds = parts.compute[steps], parts.bandwidth[steps], parts.total[steps]
        longer = compute > bandwidth
        self.compute_seconds = _sum(self.compute_seconds, np.where(longer, compute, 0.0))
        self.bandwidth_seconds = _sum(self.bandwidth_seconds, np.where(longer, 0.0, bandwidth))
        self.link_seconds = _sum(self.link_seconds, np.full(len(seconds), parts.link))
        self.overhead_seconds = _sum(self.overhead_seconds, np.full(len(seconds), parts.overhead))
        self.busy_seconds = _sum(self.busy_seconds, seconds)
        if blocked:
            self.blocked_seconds = _sum(self.blocked_seconds, seconds)
        self.steps += len(seconds)
        self.decode_tokens += decode * len(seconds)

    def add_blocks_of_steps(
        self,
        kv_cache_group: int,
        seconds: np.ndarray,
        held: np.ndarray,
        cached: np.ndarray,
        wasted: np.ndarray,
    ) -> None:
        """``add_blocks`` of many steps."""
        self.held[kv_cache_group] = _sum(self.held[kv_cache_group], held * seconds)
        self.cached[kv_cache_group] = _sum(self.cached[kv_cache_group], cached * seconds)
        self.wasted[kv_cache_group] = _sum(self.wasted[kv_cache_group], wasted * seconds)
        self.peak[kv_cache_group] = max(self.peak[kv_cache_group], int(held.max()))

    def add_host_blocks_of_steps(
        self, kv_cache_group: int, seconds: np.ndarray, held: int, cached: int
    ) -> None:
        """``add_host_blocks`` of many steps in which the host's blocks stay as they are."""
        self.host_held[kv_cache_group] = _sum(self.host_held[kv_cache_group], held * seconds)
        self.host_cached[kv_cache_group] = _sum(self.host_cached[kv_cache_group], cached * seconds)
        self.host_peak[kv_cache_group] = max(self.host_peak[kv_cache_group], held + cached)

    def parts(self) -> Iterator[tuple[str, float]]:
        """(name, seconds) of each part of the busy seconds."""
        for name in ("compute", "bandwidth", "link", "overhead", "host"):
            yield name, getattr(self, f"{name}_seconds")


def _sum(start: float, values: np.ndarray) -> float:
    """``start`` plus the values, added one after the other: ``np.sum`` rounds differently."""
    return float(running_sums(start, values)[-1])
