"""eviction_report: the evictions of a model's layers, and four ways in which they go wrong, by name. Lesson 15b.

sinks_gone      a text's first token is gone: a model that parks attention there writes garbage
window_small    tokens are dropped as they leave the recent window: the text drifts, and the kept set is frozen
scores_stale    the scores do not follow the text: quality falls off a cliff as it goes on
cache_grows     a cache, or a layer, does not evict: memory grows as if nothing were installed

A fifth is a fault of the policy: scores_nan, in a decode step, which does not wait for the device to check its scores.
"""

from dataclasses import dataclass
from typing import Any

from minikv.eviction.hf.handle import EvictionHandle
from minikv.eviction.hf.install import eviction_of
from minikv.eviction.policies.policy import Needs
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of

AT_ONCE = 0.9  # from this share of a layer's decode evictions on, tokens go as they leave the window
FEW = 8  # fewer evictions in decode steps say nothing
OBSERVED = 0.5  # the least share of forwards that a policy by probabilities should have observed


@dataclass(frozen=True)
class Finding:
    """One fault: its ``code``, the ``layers`` where it was seen, and the numbers."""

    code: str
    layers: tuple[int, ...]
    values: dict[str, Any]

    def text(self, lang: str = "en") -> str:
        """The fault and its remedy in ``lang``. Raises ``ArgumentError`` for a language that is not ours."""
        lang = pick_language(lang)
        numbers = text("eviction.between_layers", lang).join(map(str, self.layers))
        layers = text("eviction.layer" if len(self.layers) == 1 else "eviction.layers", lang, layers=numbers)
        return text(f"eviction.{self.code}", lang, layers=layers, **self.values)


@dataclass(frozen=True)
class EvictionReport:
    """The evictions of a model in its last text.

    ``layers``: {decoder layer: the values of its ``Record``}, of the layers that evict. ``findings``: the faults.
    """

    policy: str
    capacity: int
    peak_resident: int
    layers: dict[int, dict[str, Any]]
    findings: tuple[Finding, ...]

    def shown(self, lang: str = "en") -> Shown:
        """A few lines in ``lang``: the install, the counts, and every finding.

        Raises ``ArgumentError`` for a language that is not ours.
        """
        lang = pick_language(lang)
        dropped = sum(values["dropped"] for values in self.layers.values())
        peak = max(values["peak_resident"] for values in self.layers.values())
        numbers = {"capacity": self.capacity, "bound": self.peak_resident, "peak": peak, "dropped": dropped}
        head = text("eviction.head", lang, policy=self.policy, layers=len(self.layers), **numbers)
        told = [finding.text(lang) for finding in self.findings] or [text("eviction.fine", lang)]
        return Shown(head, lines=[f"  {line}" for line in told])

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        found = ", ".join(finding.code for finding in self.findings) or "nothing wrong"
        capacity = f"capacity {self.capacity:,} tokens"
        return one_line("EvictionReport", self.policy, f"{len(self.layers)} layers", capacity, found)


def eviction_report(model: Any) -> EvictionReport:
    """The evictions since the last text began. ``model``: a model with eviction installed, or its ``EvictionHandle``.

    Raises ``ArgumentError`` for a model without. The numbers outlive the cache; no K or V is kept for them.
    """
    eviction = model if isinstance(model, EvictionHandle) else eviction_of(model)
    layers = {
        number: record.values()
        for number, (record, rule) in enumerate(zip(eviction.records, eviction.rules, strict=True))
        if rule is not None
    }
    found = (_sinks_gone, _window_small, _scores_stale, _layer_grows, _cache_grows, _scores_nan)
    findings = tuple(finding for look in found if (finding := look(eviction, layers)) is not None)
    name = type(eviction.policy).__name__
    return EvictionReport(name, eviction.capacity, eviction.peak_resident, layers, findings)


Layers = dict[int, dict[str, Any]]


def _sinks_gone(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    gone = tuple(number for number, values in layers.items() if values["first_gone"])
    return Finding("sinks_gone", gone, {"n_sink": eviction.budget.n_sink}) if gone else None


def _window_small(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    """Skips a budget of 0: then the window is meant to be everything."""
    shares = {
        number: values["at_once"] / values["single"]
        for number, values in layers.items()
        if values["single"] >= FEW and eviction.budget.budget
    }
    small = tuple(number for number, share in shares.items() if share >= AT_ONCE)
    if not small:
        return None
    least = min(shares[number] for number in small)
    return Finding("window_small", small, {"n_recent": eviction.budget.n_recent, "share": least})


def _scores_stale(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    if Needs.PROBS not in eviction.policy.needs:
        return None
    stale = tuple(n for n, values in layers.items() if values["observed"] < OBSERVED * values["forwards"])
    if not stale:
        return None
    values = layers[stale[0]]
    return Finding("scores_stale", stale, {"observed": values["observed"], "forwards": values["forwards"]})


def _layer_grows(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    """Find layers above their bound: eviction was paused, or runs after prompts only."""
    bounds = {n: rule.budget.peak_resident for n, rule in enumerate(eviction.rules) if rule is not None}
    above = tuple(n for n, values in layers.items() if values["peak_resident"] > bounds[n])
    if not above:
        return None
    values = {"resident": layers[above[0]]["peak_resident"], "bound": bounds[above[0]]}
    return Finding("layer_grows", above, values)


def _cache_grows(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    if eviction.foreign is None:
        return None
    kind, tokens = eviction.foreign
    return Finding("cache_grows", tuple(layers), {"kind": kind, "tokens": tokens})


def _scores_nan(eviction: EvictionHandle, layers: Layers) -> Finding | None:
    """Find NaN scores in decode steps; after a prompt ``select`` raises for them."""
    found = tuple(n for n, values in layers.items() if values["not_numbers"])
    if not found:
        return None
    values = {
        "evictions": max(layers[n]["not_numbers"] for n in found),
        "policy": type(eviction.policy).__name__,
    }
    return Finding("scores_nan", found, values)
