"""The fleet widget: the wait for the first token with a number of replicas, a router and host memory.

Above, a bar of the prompts' tokens: found on the GPUs, found in host memory, computed. Below, one curve: all requests
from the fastest to the slowest, with their wait for the first token on a logarithmic axis. Every result is a
simulation of the whole trace by ``minikv.simulate``.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import names, select
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.table import figure_lines, figure_row
from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.i18n import text
from minikv.plan import find_gpu, find_model, gpu_names
from minikv.simulate import ROUTERS, Answers, Assumptions, Fleet, Outcome, Trace, simulate
from minikv.simulate.router import RouterName
from minikv.units import GIB

REPLICAS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
HOST_GIB = (0, 32, 64, 128, 256)
LOADS = (0.5, 0.75, 1.0, 1.5, 2.0)
Y_LOW, Y_HIGH = 0.01, 1000.0  # seconds, the ends of the plot
PERCENTS = {"p50": 50, "p90": 90, "p99": 99}
LOOKS = {"device": "cached", "host": "host", "computed": "activations"}  # of the palette


class FleetWidget(FormWidget):
    """Controls, a bar, a curve, a sentence and a table: ``trace`` on a fleet.

    ``lang`` is "en" or "zh". ``p99_seconds`` is the required p99 of the time to first token. The other arguments are
    the start, to which Reset returns: ``model`` and ``gpu`` are catalogue names, ``tp`` GPUs a replica; ``host_gib``
    is host memory for blocks, of each replica; ``load`` multiplies the rate of the requests. A pool has
    blocks of ``block_size`` tokens. Settings that were seen before are not simulated again.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue, ``ArgumentError`` for an unknown
    language and for a trace that is none. Later, a choice that cannot work is shown.
    """

    _table = "widgets_fleet"
    _esm = script("bar.js", "form.js", "table.js", "fleet.js")
    _css = style("fleet.css")

    def __init__(
        self,
        lang: str,
        trace: Trace,
        *,
        model: str = "Llama-3.1-70B",
        gpu: str = "H200",
        tp: int = 2,
        replicas: int = 2,
        router: str = "prefix",
        host_gib: int = 0,
        load: float = 1.0,
        p99_seconds: float = 2.0,
        block_size: int = 64,
        assumptions: Assumptions | None = None,
    ):
        if not isinstance(trace, Trace):
            raise ArgumentError("simulate_type", what="trace", kind="Trace", value=type(trace).__name__)
        self._trace, self._model, self._seconds = trace, find_model(model).name, p99_seconds
        self._options: dict[str, Any] = {"tp": tp, "block_size": block_size, "assumptions": assumptions}
        self._run = lru_cache(maxsize=64)(self._simulate)
        start = {
            "gpu": find_gpu(gpu).name,
            "replicas": replicas,
            "router": router,
            "host_gib": host_gib,
            "load": load,
        }
        super().__init__(lang, start)

    def text(self) -> str:
        """Return the result as plain lines, in the widget's language."""
        with self._turn:
            state, view = dict(self.state), self.view
        if view["error"]:
            return view["status"]
        values = {**state, "router": text(f"{self._table}.router_{state['router']}", self._lang)}
        gpus = self._options["tp"] * state["replicas"]
        summary = text(f"{self._table}.summary", self._lang, model=self._model, gpus=gpus, **values)
        return "\n".join([summary, *figure_lines(view["table"]), view["status"]])

    def _form(self, lang: str) -> dict[str, Any]:
        def own(key: str, values: Any) -> dict[str, Any]:
            return select(self._table, key, [(v, _option(self._table, key, v, lang)) for v in values], lang)

        tp = self._options["tp"]
        cards = names(self._start["gpu"], _cards(self._model, tp))
        return {
            **super()._form(lang),
            "x_label": text(f"{self._table}.x_label", lang),
            "y_label": text(f"{self._table}.y_label", lang),
            "columns": ["", *PERCENTS],
            "fields": [
                {"key": "gpu", "label": text(f"{self._table}.gpu", lang, tp=tp), "options": cards},
                own("replicas", _offered(self._start["replicas"], REPLICAS)),
                own("router", ROUTERS),
                own("host_gib", _offered(self._start["host_gib"], HOST_GIB)),
                own("load", _offered(self._start["load"], LOADS)),
            ],
        }

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        try:
            outcome, gpus = self._run(*_checked(state))
        except MiniKVError as refusal:
            sentence = refusal.text(lang)
            nothing: dict[str, Any] = {"bar": None, "plot": None, "table": []}
            return {**nothing, "aria": sentence, "status": sentence, "error": True}
        return _view(outcome, gpus, self._seconds, lang)

    def _simulate(
        self, gpu: str, replicas: int, router: RouterName, host_gib: float, load: float
    ) -> tuple[Outcome, int]:
        fleet = Fleet.plan(
            self._model,
            gpu,
            replicas=replicas,
            router=router,
            host_kv_bytes=int(host_gib * GIB),
            **self._options,
        )
        return simulate(faster(self._trace, load), fleet), fleet.gpus


def _checked(state: dict[str, Any]) -> tuple[str, int, RouterName, float, float]:
    """Return the settings in the order of ``_simulate``, or raise: a browser may send anything."""
    check_count("replicas", state["replicas"])
    for what, known in (("router", ROUTERS), ("gpu", gpu_names())):
        name = state[what]
        if not isinstance(name, str) or (what == "router" and name not in known):
            raise ArgumentError("unknown_choice", what=what, value=name, known=", ".join(known))
    for what, low, high in (("host_gib", -1, 2**20), ("load", 0, 100)):
        value = state[what]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low < value <= high:
            raise ArgumentError("out_of_range", what=what, value=value, low=low, high=high)
    return state["gpu"], state["replicas"], state["router"], max(0, state["host_gib"]), state["load"]


def faster(trace: Trace, times: float) -> Trace:
    """Return the same requests at ``times`` the rate."""
    return replace(trace, requests=tuple(replace(r, arrival=r.arrival / times) for r in trace.requests))


def _option(table: str, key: str, value: Any, lang: str) -> str:
    if key == "router":
        return text(f"{table}.router_{value}", lang)
    return (
        text(f"{table}.{key}_none", lang) if value == 0 else text(f"{table}.{key}_value", lang, value=value)
    )


def _offered(start: Any, values: tuple) -> list:
    return list(values) if start in values else [start, *values]


@lru_cache(maxsize=4)
def _cards(model: str, tp: int) -> tuple[str, ...]:
    """Return the cards on which ``tp`` GPUs hold the model and a cache."""

    def fits(name: str) -> bool:
        try:
            Fleet.plan(model, name, tp=tp)
        except MiniKVError:
            return False
        return True

    return tuple(name for name in gpu_names() if fits(name))


def _up(seconds: float) -> float:
    """Return the place of ``seconds`` on the axis, from 0 at its foot to 1 at its top."""
    return math.log(min(max(seconds, Y_LOW), Y_HIGH) / Y_LOW) / math.log(Y_HIGH / Y_LOW)


def _view(outcome: Outcome, gpus: int, bound: float, lang: str) -> dict[str, Any]:
    answers = outcome.answers()
    ttft = np.percentile(outcome.ttft, range(101)).tolist()
    marks = [
        {
            "key": key,
            "x": percent / 100,
            "y": _up(ttft[percent]),
            "value": ttft[percent],
            "text": text("widgets_fleet.mark", lang, percent=key, seconds=seconds_text(ttft[percent])),
        }
        for key, percent in PERCENTS.items()
    ]
    plot = {
        "curve": [[percent / 100, _up(value)] for percent, value in enumerate(ttft)],
        "marks": marks,
        "bound": {"y": _up(bound), "value": bound, "text": text("widgets_fleet.bound", lang, seconds=bound)},
        "x_ticks": [[percent / 100, f"{percent} %"] for percent in range(0, 101, 25)],
        "y_ticks": [[_up(10.0**power), f"{10.0**power:,.15g}"] for power in range(-2, 4)],
    }
    status = _status(answers, ttft[99], gpus, bound, lang)
    table = [
        _row("ttft", answers.ttft, lang),
        _row("queued", answers.queued, lang),
        _row("tpot", answers.tpot, lang),
    ]
    aria = text("widgets_fleet.aria", lang, status=status)
    return {
        "bar": _bar(answers, lang),
        "plot": plot,
        "table": table,
        "aria": aria,
        "status": status,
        "error": False,
    }


def _bar(answers: Answers, lang: str) -> dict[str, Any]:
    """Return the prompts' tokens by source; every part is a share of all."""
    shares = {"device": answers.hit_rate, "host": answers.host_hit_rate}
    shares["computed"] = max(0.0, 1 - sum(shares.values()))
    parts = [
        {
            "key": key,
            "look": LOOKS[key],
            "share": share,
            "text": text(f"widgets_fleet.part_{key}", lang, share=share),
        }
        for key, share in shares.items()
    ]
    return {"label": text("widgets_fleet.bar", lang), "parts": parts}


def _row(key: str, found: Any, lang: str) -> dict[str, Any]:
    values = ["-"] * 3 if found is None else [seconds_text(getattr(found, name)) for name in PERCENTS]
    return figure_row(key, "widgets_fleet.", values, lang)


def seconds_text(seconds: float) -> str:
    """Return three digits, never in powers of ten: "0.0412", "1.27", "218"; "0" below a tenth of a millisecond."""
    if seconds < 1e-4:
        return "0"
    return f"{seconds:,.{max(0, 2 - math.floor(math.log10(seconds)))}f}"


def _status(answers: Answers, p99: float, gpus: int, bound: float, lang: str) -> str:
    return text(
        "widgets_fleet.kept" if p99 <= bound else "widgets_fleet.missed",
        lang,
        gpus=gpus,
        p99=seconds_text(p99),
        bound=bound,
        hits=answers.hit_rate + answers.host_hit_rate,
        busy=answers.utilisation,
        preemptions=answers.preemptions,
    )
