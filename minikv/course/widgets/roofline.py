"""The roofline widget: one decode step under a device's roof, with the reader's settings.

The plot is logarithmic both ways: FLOP per byte to the right, 10**12 FLOP a second upwards. The roof is the
device's limit, its corner the ridge point. Three marks stand on the roof: the whole step, its products with
weights alone, its attention alone. All numbers are ``minikv.plan.roofline``'s.
"""

import math
from functools import lru_cache
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import doubling, names, offered_models, select, slider
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.table import figure_lines, figure_row, milliseconds
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import text
from minikv.plan import CacheSpec, find_gpu, find_model, gpu_names
from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.roofline import DecodeWork, Roof, decode_work, gpu_roof, ridge_batch
from minikv.plan.weights.weight_bytes import weight_list
from minikv.units import gib

KV_DTYPES = (None, "bf16", "fp32", "fp8", "fp8_scaled", "int8")
MAX_CONTEXT, MAX_BATCH = 2**24, 4096  # tokens and sequences that the number boxes take
X_LOW, X_HIGH = 2.0**-2, 2.0**14  # FLOP per byte, the ends of the plot
PARTS = ("step", "weights", "attention")  # S, W and A


class RooflineWidget(FormWidget):
    """Controls, the roof with its marks, a sentence and a table: one decode step on one GPU.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``model`` and ``gpu`` are
    catalogue names, ``batch`` sequences of ``context`` tokens each, ``kv_dtype`` None (the model's own) or a name of
    ``KV_DTYPES``. ``measured`` is a roof of this machine, offered beside the catalogue's; ``gpu`` may be its name.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue, ``ArgumentError`` for a card without
    a FLOP rate, for a ``measured`` that is no ``Roof`` and for an unknown language. Later, a choice that cannot work is
    shown.
    """

    _table = "widgets_roofline"
    _esm = script("bar.js", "form.js", "table.js", "roofline.js")
    _css = style("roofline.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        model: str = "Llama-3.1-8B",
        gpu: str = "H200",
        batch: int = 1,
        context: int = 4096,
        kv_dtype: str | None = None,
        measured: Roof | None = None,
    ):
        if measured is not None and not isinstance(measured, Roof):
            raise ArgumentError("roof_not_a_roof", kind=type(measured).__name__)
        self._roofs = {roof.name: roof for roof in _catalogue_roofs()}
        if measured is not None:
            self._roofs = {measured.name: measured} | self._roofs
        start: dict[str, Any] = {
            "model": find_model(model).name,
            "gpu": self._roof(gpu).name,
            "batch": batch,
            "context": context,
            "kv_dtype": kv_dtype,
        }
        super().__init__(lang, start)

    def text(self) -> str:
        """Return the result as plain lines, in the widget's language."""
        with self._turn:
            state, view = dict(self.state), self.view
        if view["error"]:
            return view["status"]
        own = text("widgets.kv_dtype_own", self._lang)
        values = {**state, "kv_dtype": state["kv_dtype"] or own}
        summary = text(f"{self._table}.summary", self._lang, **values)
        return "\n".join([summary, *figure_lines(view["table"]), view["status"]])

    def _form(self, lang: str) -> dict[str, Any]:
        columns = [text(f"{self._table}.column_{key}", lang) for key in ("gib", "gflop", "ratio", "time")]
        return {
            **super()._form(lang),
            "x_label": text(f"{self._table}.x_label", lang),
            "y_label": text(f"{self._table}.y_label", lang),
            "columns": ["", *columns],
            "fields": [
                select("widgets", "model", names(self._start["model"], _countable()), lang),
                select(self._table, "gpu", names(self._start["gpu"], list(self._roofs)), lang),
                slider("widgets", "batch", doubling(1, MAX_BATCH), 1, MAX_BATCH, 1, lang),
                slider("widgets", "context", doubling(128, 2**20), 1, MAX_CONTEXT, 1, lang),
                select(
                    "widgets",
                    "kv_dtype",
                    [(name, name or text("widgets.kv_dtype_own", lang)) for name in KV_DTYPES],
                    lang,
                ),
            ],
        }

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        try:
            roof = self._roof(state["gpu"])
            if isinstance(state["batch"], int) and state["batch"] > MAX_BATCH:
                raise ArgumentError("out_of_range", what="batch", value=state["batch"], low=0, high=MAX_BATCH)
            if state["kv_dtype"] is not None:
                find_kv_dtype(state["kv_dtype"])
            work = decode_work(state["model"], state["batch"], state["context"], kv_dtype=state["kv_dtype"])
            first = ridge_batch(state["model"], state["context"], roof, kv_dtype=state["kv_dtype"])
        except MiniKVError as refusal:
            sentence = refusal.text(lang)
            return {"plot": None, "table": [], "aria": sentence, "status": sentence, "error": True}
        return _view(roof, work, first, state, lang)

    def _roof(self, name: Any) -> Roof:
        """Return an offered roof, or the catalogue's card of that name; raises for others."""
        found = self._roofs.get(name)
        return gpu_roof(find_gpu(str(name))) if found is None else found


def _catalogue_roofs() -> list[Roof]:
    """Return the cards with a 16-bit FLOP rate in their data sheets."""
    cards = [find_gpu(name) for name in gpu_names()]
    return [gpu_roof(card) for card in cards if card.bf16_tflops or card.fp16_tflops]


@lru_cache(maxsize=1)
def _countable() -> tuple[str, ...]:
    """Return the models of the catalogue that ``decode_work`` can count."""
    return tuple(offered_models(lambda name: decode_work(name, 1, 1)))


def _view(
    roof: Roof, work: DecodeWork, first: int | None, state: dict[str, Any], lang: str
) -> dict[str, Any]:
    parts = {
        "step": (work.flops, work.num_bytes),
        "weights": (work.weight_flops, work.weight_bytes),
        "attention": (work.attention_flops, work.cache_bytes),
    }
    status = _status(roof, work, first, state, lang)
    return {
        "plot": _plot(roof, {key: flops / num_bytes for key, (flops, num_bytes) in parts.items()}, lang),
        "table": [_row(key, *parts[key], roof, lang) for key in ("weights", "attention", "step")],
        "aria": text("widgets_roofline.aria", lang, status=status),
        "status": status,
        "error": False,
    }


def _plot(roof: Roof, intensities: dict[str, float], lang: str) -> dict[str, Any]:
    """Return everything in shares of the plot's width and height, from its lower left corner."""
    low = math.floor(math.log10(roof.tflops_at(X_LOW)))
    high = math.ceil(math.log10(roof.tflops * 1.2))

    def across(intensity: float) -> float:
        inside = min(max(intensity, X_LOW), X_HIGH)
        return math.log(inside / X_LOW) / math.log(X_HIGH / X_LOW)

    def up(tflops: float) -> float:
        return (math.log10(tflops) - low) / (high - low)

    marks = []
    for key in PARTS:
        value = intensities[key]
        marks.append(
            {
                "key": key,
                "letter": key[0].upper(),
                "x": across(value),
                "y": up(roof.tflops_at(min(max(value, X_LOW), X_HIGH))),
                "value": value,
                "text": text(f"widgets_roofline.mark_{key}", lang, value=value),
            }
        )
    powers = range(0, 15, 2)
    return {
        "roof": [[across(x), up(roof.tflops_at(x))] for x in (X_LOW, roof.ridge, X_HIGH)],
        "ridge": {
            "x": across(roof.ridge),
            "value": roof.ridge,
            "text": text("widgets_roofline.ridge", lang, value=roof.ridge),
        },
        "marks": marks,
        "x_ticks": [[across(2.0**power), f"{2**power:,}"] for power in powers],
        "y_ticks": [[up(10.0**power), f"{10.0**power:,.15g}"] for power in range(low, high + 1)],
    }


def _row(key: str, flops: int, num_bytes: int, roof: Roof, lang: str) -> dict[str, Any]:
    arithmetic, memory = flops / (roof.tflops * 1e12), num_bytes / (roof.bandwidth_gb_s * 1e9)
    seconds = {"memory": milliseconds(memory), "arithmetic": milliseconds(arithmetic)}
    times = text("widgets_roofline.times", lang, **seconds)
    values = [f"{gib(num_bytes):,.3f}", f"{flops / 1e9:,.1f}", f"{flops / num_bytes:,.2f}", times]
    return figure_row(key, "widgets_roofline.", values, lang)


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 10 else f"{tokens:.2g}"


def _status(roof: Roof, work: DecodeWork, first: int | None, state: dict[str, Any], lang: str) -> str:
    arithmetic, floor = work.flops / (roof.tflops * 1e12), roof.seconds(work.flops, work.num_bytes)
    memory_bound = work.intensity < roof.ridge
    said = text(
        "widgets_roofline.memory_bound" if memory_bound else "widgets_roofline.compute_bound",
        lang,
        gpu=roof.name,
        intensity=work.intensity,
        ridge=roof.ridge,
        floor=milliseconds(floor),
        waiting=1 - arithmetic / floor,
        tokens=_rate(state["batch"] / floor),
    )
    key = "no_ridge_batch" if first is None else "ridge_batch"
    said += text(f"widgets_roofline.{key}", lang, batch=first, context=state["context"])
    total = find_gpu(roof.name).total_bytes if roof.name in gpu_names() else None
    needed = _held(state)
    if total is not None and needed > total:
        said += text("widgets_roofline.too_much", lang, needed=gib(needed), total=gib(total))
    return said


def _held(state: dict[str, Any]) -> int:
    """Return the bytes in memory for such steps: the caches and all weights, also those that no step reads."""
    weights = sum(weight.bytes for weight in weight_list(state["model"]))
    spec = CacheSpec.from_config(state["model"], kv_dtype=state["kv_dtype"])
    return weights + state["batch"] * spec.bytes_for(state["context"])
