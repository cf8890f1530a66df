"""Outcome: the times and counts of each request of a simulation, and the figures for capacity planning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from minikv.engine.serve.metrics import Percentiles
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.simulate.figures import short, shown_answers
from minikv.simulate.totals import ReplicaTotals
from minikv.units import GIB

if TYPE_CHECKING:
    from minikv.engine.core.sequence import Sequence
    from minikv.simulate.fleet import Fleet
    from minikv.simulate.trace import Trace

Progress = Callable[[int], object]
"""A function that is called with the number of a run's ended requests."""


@dataclass(frozen=True)
class Tier:
    """KV bytes of the whole fleet in one kind of memory, "device" or "host".

    ``held_bytes``: held by sequences; ``cached_bytes``: held only by the prefix cache; both averaged over the busy
    seconds. ``peak_bytes``: the sum of each replica's peak of held bytes (on the host, with the cached ones).
    """

    name: str
    total_bytes: int
    held_bytes: float
    cached_bytes: float
    peak_bytes: int

    @property
    def gib(self) -> float:
        """``total_bytes`` in GiB."""
        return self.total_bytes / GIB


@dataclass(frozen=True)
class LittlesLaw:
    """L = lambda * W: ``in_system`` requests on average, ``rate`` a second, each for ``time`` seconds on average.

    ``in_system`` is measured along the clock, ``time`` request by request (Little 1961).
    """

    in_system: float
    rate: float
    time: float

    @property
    def error(self) -> float:
        """The difference of the two sides, as a share of ``in_system``."""
        return abs(self.in_system - self.rate * self.time) / self.in_system if self.in_system else 0.0


@dataclass(frozen=True)
class Answers:
    """The figures of a simulation, ``seconds`` long from the first arrival to the last token.

    - ``ttft``: from arrival to first token. ``tpot``: the mean time from token to token of a request with two or more
      (None where there is none). ``e2e``: from arrival to the last token. ``queued``: from arrival to the begin of the
      first step with the request. All are percentiles in seconds, in which each request counts once.
    - ``tokens_per_second``: generated. ``hit_rate``, ``host_hit_rate``: shares of the prompts' tokens that were found
      on the device, or in host memory, when a request was first admitted.
    - ``occupancy``: the share of the blocks that sequences held. ``waste``: the share of their slots without a token.
      Both are averaged over the steps by their seconds. ``utilisation``: the share of the time that replicas compute.
    - ``limits``: shares of the busy seconds: "compute" and "bandwidth" (the longer of the two in each step), "link",
      "overhead", "host". ``blocked``: the share in which a request waited for nothing but blocks.
    """

    requests: int
    gpus: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    ttft: Percentiles
    tpot: Percentiles | None
    e2e: Percentiles
    queued: Percentiles
    tokens_per_second: float
    requests_per_second: float
    hit_rate: float
    host_hit_rate: float
    preemptions: int
    swaps: int
    occupancy: float
    peak_occupancy: float
    waste: float
    utilisation: float
    blocked: float
    limits: Mapping[str, float] = field(hash=False)
    tiers: tuple[Tier, ...]
    littles_law: LittlesLaw

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"limits": dict(self.limits)}  # a read-only view cannot be pickled

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, limits=MappingProxyType(state["limits"]))  # type: ignore[arg-type]

    def shown(self, lang: str = "en") -> Shown:
        """A row a figure, then what limits the fleet."""
        return shown_answers(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return one_line("Answers", "", *self.facts())

    def facts(self) -> list[str]:
        """The four figures that a ``repr`` has."""
        tpot = [] if self.tpot is None else [f"TPOT p99 {short(self.tpot.p99)}"]
        load = f"{self.requests:,} requests on {self.gpus:,} GPUs"
        return [load, f"TTFT p99 {short(self.ttft.p99)}", *tpot, f"{self.tokens_per_second:,.0f} tokens/s"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One entry a request in every array, in the order of the trace.

    float64, seconds of the trace's clock: ``arrival``, ``admitted`` (the begin of the first step with the request),
    ``first_token``, ``finish``. int64: ``replica``, ``prompt_tokens``, ``output_tokens``, ``cached_tokens`` of the
    prompt found on the device, ``host_tokens`` found in host memory, ``preemptions``. ``replicas``: the sums of each
    replica's steps.
    """

    fleet: "Fleet"
    arrival: np.ndarray
    admitted: np.ndarray
    first_token: np.ndarray
    finish: np.ndarray
    replica: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    host_tokens: np.ndarray
    preemptions: np.ndarray
    replicas: tuple[ReplicaTotals, ...]

    @property
    def ttft(self) -> np.ndarray:
        """float64 [requests]: seconds from arrival to the first token, time in the queue included."""
        return self.first_token - self.arrival

    @property
    def tpot(self) -> np.ndarray:
        """float64: seconds a token after the first, of each request that has more than one."""
        many = self.output_tokens > 1
        return ((self.finish - self.first_token)[many]) / (self.output_tokens[many] - 1)

    @property
    def e2e(self) -> np.ndarray:
        """float64 [requests]: seconds from arrival to the last token."""
        return self.finish - self.arrival

    @property
    def queued(self) -> np.ndarray:
        """float64 [requests]: seconds from arrival to the begin of the first step with the request."""
        return self.admitted - self.arrival

    @property
    def seconds(self) -> float:
        """Seconds from the first arrival to the last token."""
        return float(self.finish.max() - self.arrival.min())

    def shown(self, lang: str = "en") -> Shown:
        """The table of ``answers()``."""
        return self.answers().shown(lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return one_line("Outcome", "", *self.answers().facts())

    def answers(self) -> Answers:
        prompt, seconds = int(self.prompt_tokens.sum()), self.seconds
        busy = sum(each.busy_seconds for each in self.replicas)
        held, slots, wasted, peak = self._blocks()
        return Answers(
            requests=len(self.arrival),
            gpus=self.fleet.gpus,
            seconds=seconds,
            prompt_tokens=prompt,
            output_tokens=int(self.output_tokens.sum()),
            ttft=percentiles(self.ttft),
            tpot=percentiles(self.tpot) if (self.output_tokens > 1).any() else None,
            e2e=percentiles(self.e2e),
            queued=percentiles(self.queued),
            tokens_per_second=int(self.output_tokens.sum()) / seconds,
            requests_per_second=len(self.arrival) / seconds,
            hit_rate=int(self.cached_tokens.sum()) / prompt,
            host_hit_rate=int(self.host_tokens.sum()) / prompt,
            preemptions=int(self.preemptions.sum()),
            swaps=sum(each.swaps for each in self.replicas),
            occupancy=held / busy,
            peak_occupancy=peak,
            waste=wasted / slots if slots else 0.0,
            utilisation=busy / (seconds * len(self.replicas)),
            blocked=sum(each.blocked_seconds for each in self.replicas) / busy,
            limits=MappingProxyType(self._limits(busy)),
            tiers=self._tiers(busy),
            littles_law=self._littles_law(),
        )

    def _blocks(self) -> tuple[float, float, float, float]:
        """(share of held blocks, held slots, wasted slots, each times seconds; the highest share of held blocks)."""
        total, size = sum(self.fleet.blocks), self.fleet.block_size
        held = sum(sum(each.held) for each in self.replicas)
        wasted = sum(sum(each.wasted) for each in self.replicas)
        peak = max(sum(each.peak) for each in self.replicas) / total
        return held / total, held * size, wasted, peak

    def _limits(self, busy: float) -> dict[str, float]:
        names = [name for name, _ in self.replicas[0].parts()]
        return {name: sum(dict(each.parts())[name] for each in self.replicas) / busy for name in names}

    def _tiers(self, busy: float) -> tuple[Tier, ...]:
        fleet, replicas = self.fleet, self.replicas
        sizes = [num_bytes * fleet.tp for num_bytes in fleet.block_bytes]  # a block on all ranks
        device = sum(size * count for size, count in zip(sizes, fleet.blocks, strict=True)) * len(replicas)

        def mean(name: str) -> float:
            """Bytes of the whole fleet: the sum of each replica's average over its own busy seconds."""
            return sum(
                size * blocks / each.busy_seconds
                for each in replicas
                if each.busy_seconds
                for size, blocks in zip(sizes, getattr(each, name), strict=True)
            )

        def most(name: str) -> int:
            return sum(
                size * blocks
                for each in replicas
                for size, blocks in zip(sizes, getattr(each, name), strict=True)
            )

        tiers = [Tier("device", device, mean("held"), mean("cached"), most("peak"))]
        if fleet.host_blocks:
            host = sum(sizes) * fleet.host_blocks * len(replicas)
            tiers.append(Tier("host", host, mean("host_held"), mean("host_cached"), most("host_peak")))
        return tuple(tiers)

    def _littles_law(self) -> LittlesLaw:
        seconds = self.seconds
        area = sum(each.in_system for each in self.replicas)
        return LittlesLaw(area / seconds, len(self.arrival) / seconds, float(self.e2e.mean()))


class OutcomeRecord:
    """Fills the arrays of an ``Outcome`` while ``fleet`` runs ``trace``."""

    def __init__(self, trace: "Trace", fleet: "Fleet", progress: Progress | None = None):
        self._ended, self._progress = 0, progress
        requests, count = trace.requests, len(trace)
        self.fleet = fleet
        self.arrival = np.array([each.arrival for each in requests], np.float64)
        self.prompt_tokens = np.array([each.prompt_tokens for each in requests], np.int64)
        self.output_tokens = np.array([each.output_tokens for each in requests], np.int64)
        self.admitted, self.first_token, self.finish = (np.full(count, np.nan) for _ in range(3))
        self.replica, self.cached, self.loaded, self.preemptions = (
            np.zeros(count, np.int64) for _ in range(4)
        )

    def end(self, seq: "Sequence") -> None:
        index = int(seq.id.request)
        self.admitted[index], self.first_token[index] = seq.admitted_at, seq.first_token_at
        self.finish[index] = seq.finished_at
        loaded = seq.figures.get("num_loaded", 0)
        self.cached[index] = (seq.num_cached or 0) - loaded
        self.loaded[index], self.preemptions[index] = loaded, seq.num_preemptions
        self._ended += 1
        if self._progress is not None:
            self._progress(self._ended)

    def outcome(self, replicas: list[ReplicaTotals]) -> Outcome:
        return Outcome(
            fleet=self.fleet,
            arrival=self.arrival,
            admitted=self.admitted,
            first_token=self.first_token,
            finish=self.finish,
            replica=self.replica,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached,
            host_tokens=self.loaded,
            preemptions=self.preemptions,
            replicas=tuple(replicas),
        )


def percentiles(seconds: np.ndarray) -> Percentiles:
    """Percentiles of the values, interpolated between neighbours."""
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
    return Percentiles(p50, p90, p99, len(seconds))
