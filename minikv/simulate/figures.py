"""The figures of a simulation as a table: name, figure and meaning, then what limits the fleet."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minikv.engine.serve.metrics import Percentiles
from minikv.i18n import pick_language, text
from minikv.shown import Shown
from minikv.simulate.verdict import bottleneck
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.simulate.outcome import Answers
    from minikv.simulate.sweep import Fewest, Target

IDLE = 0.5  # share of the time: a fleet that idles for more of it does not limit the requests


def shown_answers(answers: "Answers", lang: str) -> Shown:
    """A row a figure, then what limits the fleet and how its busy time divides."""
    lang = pick_language(lang)
    duration = long(answers.seconds, lang)
    title = _say("answers_title", lang, requests=answers.requests, gpus=answers.gpus, duration=duration)
    return Shown(title, rows=list(figure_rows(answers, lang)), right=(1,), lines=limit_lines(answers, lang))


def figure_rows(found: "Answers", lang: str) -> Iterable[tuple[str, str, str]]:
    """(name, figure, what it means)."""
    values: dict[str, tuple[str, dict[str, Any]]] = {
        "served": (f"{found.requests:,}", {"duration": long(found.seconds, lang)}),
        "ttft": (three(found.ttft), {}),
        "queued": (three(found.queued), {}),
        "tpot": (three(found.tpot), {}),
        "e2e": (three(found.e2e), {}),
        "throughput": (f"{found.tokens_per_second:,.0f}", {"requests": found.requests_per_second}),
        "hit_rate": (f"{found.hit_rate:.1%}", {}),
        "host_hit_rate": (f"{found.host_hit_rate:.1%}", {}),
        "busy": (f"{found.utilisation:.1%}", {}),
        "occupancy": (f"{found.occupancy:.1%}", {"peak": found.peak_occupancy}),
        "waste": (f"{found.waste:.1%}", {}),
        "preemptions": (f"{found.preemptions:,}", {"swaps": found.swaps}),
    }
    if len(found.tiers) < 2:
        del values["host_hit_rate"]
    for name, (value, details) in values.items():
        yield _say(f"row_{name}", lang), value, _say(f"row_{name}_means", lang, **details)
    for tier in found.tiers:
        held, cached = format_bytes(round(tier.held_bytes)), format_bytes(round(tier.cached_bytes))
        means = _say("row_tier_means", lang, held=held, cached=cached)
        yield _say(f"row_tier_{tier.name}", lang), format_bytes(tier.total_bytes), means
    law = found.littles_law
    means = _say("row_little_means", lang, rate=law.rate, time=law.time, error=law.error)
    yield _say("row_little", lang), f"{law.in_system:.3g}", means


def limit_lines(answers: "Answers", lang: str) -> list[str]:
    """What limits the fleet, and how its busy time divides."""
    shares = dict(answers.limits)
    name = bottleneck(answers)
    first = _say(f"limits_{name}", lang, share=shares.get(name, 0.0), blocked=answers.blocked)
    idle = 1 - answers.utilisation
    lines = [_say("limits_idle", lang, idle=idle)] if idle > IDLE else []
    return [*lines, first, _say("limits_all", lang, **shares, blocked=answers.blocked)]


def shown_fewest(found: "Fewest", lang: str) -> Shown:
    """The smallest fleet, why one replica less is not enough, and a row for each fleet that was tried."""
    lang, before = pick_language(lang), found.one_less
    tp = found.gpus // found.replicas
    values = {
        "gpus": found.gpus,
        "replicas": found.replicas,
        "tp": tp,
        "target": spell_target(found.target, lang),
    }
    lines = []
    if before is not None:
        ttft, tpot = short(before.ttft.p99), short(before.tpot.p99 if before.tpot else None)
        lines.append(_say("fewest_one_less", lang, gpus=before.gpus, ttft=ttft, tpot=tpot))
    if not found.steady:
        lines.append(_say("fewest_unsteady", lang))
    head, rows = run_table([({"replicas": number}, run) for number, run in found.tried.items()], lang)
    return Shown(_say("fewest_answer", lang, **values), head, rows, range(len(head)), lines)


def run_table(
    runs: Sequence[tuple[Mapping[str, Any], "Answers"]], lang: str
) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a row a run): the settings, the same names in all runs, then the figures."""
    settings = list(runs[0][0])
    without = set(settings)
    if not any(len(answers.tiers) > 1 for _, answers in runs):
        without.add("host_hit_rate")
    columns = [name for name in _cells(runs[0][1], lang) if name not in without]
    rows = []
    for values, answers in runs:
        cells = _cells(answers, lang)
        rows.append([*map(str, values.values()), *(cells[name] for name in columns)])
    return [*settings, *(_say(f"column_{name}", lang) for name in columns)], rows


def _cells(found: "Answers", lang: str) -> dict[str, str]:
    """A run as one line of a table."""
    return {
        "gpus": f"{found.gpus:,}",
        "kv": format_bytes(found.tiers[0].total_bytes),
        "ttft50": short(found.ttft.p50),
        "ttft99": short(found.ttft.p99),
        "tpot99": short(found.tpot.p99 if found.tpot else None),
        "tokens": f"{found.tokens_per_second:,.0f}",
        "hit_rate": f"{found.hit_rate:.1%}",
        "host_hit_rate": f"{found.host_hit_rate:.1%}",
        "waste": f"{found.waste:.1%}",
        "preemptions": f"{found.preemptions:,}",
        "busy": f"{found.utilisation:.0%}",
        "limit": _say(f"limit_{bottleneck(found)}", lang),
    }


def spell_target(target: "Target", lang: str) -> str:
    limits = {"target_ttft": target.p99_ttft, "target_tpot": target.p99_tpot}
    said = [_say(name, lang, seconds=seconds) for name, seconds in limits.items() if seconds is not None]
    return ("，" if lang == "zh" else ", ").join(said)


def three(found: Percentiles | None) -> str:
    return "-" if found is None else " / ".join(short(value) for value in (found.p50, found.p90, found.p99))


def short(seconds: float | None) -> str:
    """Milliseconds below a second; three figures."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def long(seconds: float, lang: str) -> str:
    if seconds < 120:
        return _say("duration_seconds", lang, value=seconds)
    if seconds < 7200:
        return _say("duration_minutes", lang, value=seconds / 60)
    return _say("duration_hours", lang, value=seconds / 3600)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"simulate.{key}", lang, **values)
