"""The figures of a run, from its events: throughput, hit rate, waste, occupancy, preemptions and latencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minikv.engine.ext.events import AnyEvent, Event, StepEvent
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of


@dataclass(frozen=True)
class Percentiles:
    """Seconds, interpolated between neighbours; ``count`` sequences were measured."""

    p50: float
    p90: float
    p99: float
    count: int


@dataclass(frozen=True)
class Metrics:
    """A run from its first event to its last, ``seconds`` of the scheduler's clock.

    - ``generated_tokens``: of the sequences that have ended. ``computed_tokens``: those that went through a forward.
    - ``hit_rate``: the share of the prefill's tokens, those of a recompute included, that the prefix cache had on the
      device.
    - ``lost_tokens``: tokens with K and V lost by preemption; a swap loses none unless its step fails.
      ``swaps`` are among the ``preemptions``. ``host_hit_rate``: the share of the prefill's tokens that came from the
      host.
    - ``drafted_tokens`` were computed as drafts, and ``accepted_tokens`` of them were right; ``acceptance`` is their
      share, None without drafts.
    - ``occupancy``: the share of the blocks in use; ``waste``: the share of their slots without a token. Over all KV
      cache groups together, averaged over the steps by their seconds.
    - ``evicted_tokens``: evicted from the layers without a window. ``length`` and ``resident``: the tokens of a running
      sequence, and those of them that these layers held, in the mean over sequences and steps by the steps' seconds.
      None if the log does not have them.
    - ``ttft``: from arrival to the first token; ``tpot``: from token to token after it, the mean of each sequence that
      finished with at least two. None if no sequence got that far.
    - ``tokens_per_second``: generated; None if no time passed.
    """

    seconds: float
    steps: int
    finished: int
    aborted: int
    failed: int
    computed_tokens: int
    generated_tokens: int
    tokens_per_second: float | None
    hit_rate: float
    waste: float
    occupancy: float
    peak_occupancy: float
    preemptions: int
    lost_tokens: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    swaps: int = 0
    host_hit_rate: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    acceptance: float | None = None
    evicted_tokens: int = 0
    length: float | None = None
    resident: float | None = None

    def shown(self, lang: str = "en") -> Shown:
        """Return a row a figure: its name, its value, and its meaning."""
        lang = pick_language(lang)
        rows = [
            (_say(name, lang), value, _say(f"{name}_means", lang, **values))
            for name, (value, values) in self._figures().items()
        ]
        counts = {"finished": self.finished, "aborted": self.aborted, "failed": self.failed}
        title = _say("title", lang, **counts, generated=self.generated_tokens, seconds=self.seconds)
        return Shown(title, rows=rows, right=(1,))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        speed = "-" if self.tokens_per_second is None else f"{self.tokens_per_second:,.1f}"
        told = [f"{self.finished:,} finished", f"{self.generated_tokens:,} tokens", f"{speed} tokens/s"]
        ttft = [] if self.ttft is None else [f"TTFT p50 {1000 * self.ttft.p50:,.1f} ms"]
        return one_line("Metrics", "", *told, *ttft, f"hit rate {self.hit_rate:.1%}")

    def _figures(self) -> dict[str, tuple[str, dict[str, float]]]:
        """Return each figure as text, with the values of its meaning; figures of absent features are left out."""
        seconds = self.seconds
        values = {
            "throughput": f"{self.tokens_per_second or 0:,.1f}",
            "computed": f"{self.computed_tokens / seconds if seconds else 0:,.1f}",
            "steps": f"{self.steps:,}",
            "ttft": _milliseconds(self.ttft),
            "tpot": _milliseconds(self.tpot),
            "hit_rate": f"{self.hit_rate:.1%}",
            "waste": f"{self.waste:.1%}",
            "occupancy": f"{self.occupancy:.1%}",
            "peak_occupancy": f"{self.peak_occupancy:.1%}",
            "preemptions": f"{self.preemptions:,}",
        }
        if self.lost_tokens:
            values["lost_tokens"] = f"{self.lost_tokens:,}"
        if self.swaps or self.host_hit_rate:
            values |= {"swaps": f"{self.swaps:,}", "host_hit_rate": f"{self.host_hit_rate:.1%}"}
        if self.acceptance is not None:
            values["acceptance"] = f"{self.acceptance:.1%}"
        figures: dict[str, tuple[str, dict[str, float]]] = {
            name: (value, {}) for name, value in values.items()
        }
        if self.evicted_tokens:
            means = {"length": self.length or 0, "resident": self.resident or 0}
            figures["evicted_tokens"] = f"{self.evicted_tokens:,}", means
        return figures


def summary(events: Sequence[AnyEvent]) -> Metrics:
    """Sum up the events of one run. Raises ``ArgumentError`` if there is no step among them."""
    steps = [event for event in events if isinstance(event, StepEvent)]
    if not steps:
        raise ArgumentError("metrics_no_steps", count=len(events))
    others = [event for event in events if isinstance(event, Event)]
    by_kind: dict[str, list[Event]] = {}
    for event in others:
        by_kind.setdefault(event.kind, []).append(event)
    ends = [event for kind in ("finish", "abort", "fail") for event in by_kind.get(kind, [])]
    computed = sum(step.prefill_tokens + step.decode_tokens for step in steps if not step.failed)
    hits, host_hits = (sum(event.tokens for event in by_kind.get(kind, [])) for kind in ("hit", "host_hit"))
    prefilled = hits + host_hits + sum(step.prefill_tokens for step in steps)
    seconds = events[-1].time - min(event.time for event in events)
    generated = sum(event.tokens for event in ends)
    weights = np.array([step.seconds for step in steps])
    weights = weights if weights.sum() > 0 else np.ones(len(steps))
    used = np.array([sum(step.used) for step in steps])
    total = np.array([sum(step.total) for step in steps])
    slots = used * np.array([step.block_size for step in steps])
    wasted = np.array([sum(step.wasted_slots) for step in steps])
    full = float((slots * weights).sum())
    ttft, tpot = _latencies(others)
    length, resident = (_of_a_sequence(steps, weights, of) for of in ("tokens", "resident"))
    preempted = by_kind.get("preempt", [])
    drafted, accepted = (sum(getattr(step, of) for step in steps) for of in ("drafted", "accepted"))
    return Metrics(
        seconds=seconds,
        steps=len(steps),
        finished=len(by_kind.get("finish", [])),
        aborted=len(by_kind.get("abort", [])),
        failed=len(by_kind.get("fail", [])),
        computed_tokens=computed,
        generated_tokens=generated,
        tokens_per_second=generated / seconds if seconds > 0 else None,
        hit_rate=hits / prefilled if prefilled else 0.0,
        waste=float((wasted * weights).sum()) / full if full else 0.0,
        occupancy=float((used / total * weights).sum() / weights.sum()),
        peak_occupancy=float((used / total).max()),
        preemptions=len(preempted),
        lost_tokens=sum(event.tokens for event in preempted if event.how != "swap"),
        ttft=_percentiles(ttft),
        tpot=_percentiles(tpot),
        swaps=sum(event.how == "swap" for event in preempted),
        host_hit_rate=host_hits / prefilled if prefilled else 0.0,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance=accepted / drafted if drafted else None,
        evicted_tokens=sum(event.tokens for event in by_kind.get("forget", [])),
        length=length,
        resident=resident,
    )


def _of_a_sequence(steps: list[StepEvent], weights: np.ndarray, of: str) -> float | None:
    """Return the mean of a count of tokens for one of the running sequences."""
    counts = np.array([getattr(step, of) for step in steps])
    sequences = np.array([step.running for step in steps])
    return float((counts * weights).sum() / (sequences * weights).sum()) if counts.any() else None


def _latencies(events: list[Event]) -> tuple[list[float], list[float]]:
    """Return TTFT of every sequence with a first token, TPOT of every finished one with a second, in seconds."""
    arrivals: dict[object, float] = {}
    firsts: dict[object, float] = {}
    ttft, tpot = [], []
    for event in events:  # in order: a request's id may be used again after its end
        if event.kind == "arrive":
            arrivals[event.request] = event.time
        elif event.kind == "first":
            firsts[event.request, event.sample] = event.time
            ttft.append(event.time - arrivals[event.request])
        elif event.kind == "finish" and event.tokens > 1:
            tpot.append((event.time - firsts[event.request, event.sample]) / (event.tokens - 1))
    return ttft, tpot


def _percentiles(seconds: list[float]) -> Percentiles | None:
    if not seconds:
        return None
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
    return Percentiles(p50, p90, p99, len(seconds))


def _milliseconds(found: Percentiles | None) -> str:
    """Return the three percentiles."""
    if found is None:
        return "-"
    return " / ".join(f"{1000 * value:,.1f}" for value in (found.p50, found.p90, found.p99))


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"engine.metrics_{key}", lang, **values)
