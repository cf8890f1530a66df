"""The memory-budget widget: where every GiB of one GPU goes, while the reader turns the knobs.

The reader's controls write ``state``; ``plan_memory`` answers; the answer, in words and numbers of the
widget's language, is ``view``, which the script draws. Settings that cannot work are part of the lesson:
the sentence of the ``MiniKVError`` stands in the readout, and the widget goes on.
"""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page, source
from minikv.course.widgets.form import select, slider
from minikv.errors import MiniKVError
from minikv.i18n import pick_language, text
from minikv.plan import MemoryBudget, find_gpu, find_model, gpu_names, model_names, plan_memory
from minikv.plan.config import read_config
from minikv.units import exact_bytes, format_bytes, gib

TP_SIZES = (1, 2, 4, 8)
KV_DTYPES = (None, "bf16", "fp16", "fp32", "fp8", "fp8_scaled", "int8")
MAX_CONTEXT, MAX_BATCH = 2**24, 2**16  # tokens and sequences that the number boxes take


class BudgetWidget(anywidget.AnyWidget):
    """Controls, a stacked bar of one GPU's memory, and the figures; everything is per GPU and in bytes.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``model`` is anything
    that ``CacheSpec.from_config`` takes, ``gpu`` a catalogue name, ``tp`` the tensor-parallel size, ``context``
    tokens a sequence, ``batch`` sequences, ``kv_dtype`` None (the model's own) or a name that ``plan_memory``
    takes, ``utilization`` the share of the GPU's memory that may be used. ``configs`` offers more models: a
    name, and again anything that ``from_config`` takes. A ``model`` that is a config is offered too, under the
    name that it gives itself.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue, ``ConfigError`` for a config
    that cannot be read, ``ArgumentError`` for a language and for a model that is no config. Later, a choice
    that cannot work raises nothing: it is shown.
    """

    _esm = source("bar.js", "form.js", "budget.js")
    _css = source("shared.css", "form.css", "budget.css")

    form = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        lang: str = "en",
        *,
        model: Any = "Llama-3.1-8B",
        gpu: str = "H200",
        tp: int = 1,
        context: int = 4096,
        batch: int = 1,
        kv_dtype: str | None = None,
        utilization: float = 0.9,
        configs: Mapping[str, Any] | None = None,
    ):
        self._lang = pick_language(lang)
        self._configs = dict(configs or {})
        self._turn = threading.RLock()
        start: dict[str, Any] = {
            "model": self._offer(model),
            "gpu": find_gpu(gpu).name,
            "tp": tp,
            "context": context,
            "batch": batch,
            "kv_dtype": kv_dtype,
            "utilization": utilization,
        }
        self._start = start
        self._budget, view = self._answer(start, self._lang)
        super().__init__(form=self._form(self._lang), state=start, view=view)

    @property
    def budget(self) -> MemoryBudget | None:
        """The budget that is on the screen, or None where the settings do not work together."""
        return self._budget

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Messages of the browser, one at a time: while a cell runs, ipykernel 7 uses another thread."""
        with self._turn:
            super().set_state(sync_data)

    @traitlets.validate("state")
    def _complete(self, proposal: Any) -> dict[str, Any]:
        """``widget.state = {"tp": 8}`` turns one knob: the others stay where they are."""
        return {**self._start, **self.state, **proposal["value"]}

    @traitlets.observe("state")
    def _replan(self, change: Any) -> None:
        # The state is read inside the turn: whoever comes last draws the newest settings, in whatever order
        # the threads arrive.
        with self._turn:
            self._budget, self.view = self._answer(self.state, self._lang)

    def text(self) -> str:
        """The same answer as plain lines, in the widget's language: for a reader without the picture."""
        with self._turn:
            state, view = self.state, self.view
        lines = [_heading(state, self._lang)]
        lines += [f"  {row['label']}: {row['text']} GiB ({row['exact']} B)" for row in view["rows"]]
        lines += [f"  {figure['label']}: {figure['value']}" for figure in view["figures"]]
        return "\n".join([*lines, view["status"]])

    def photo_html(self) -> str:
        """A page that draws this widget as it is now, in English and ASCII, inside ``id="photo"``."""
        state = self.state
        traits = {"form": self._form("en"), "state": state, "view": self._answer(state, "en")[1]}
        return photo_page(text("widgets.title", "en"), self._esm, self._css, traits)

    def _answer(self, state: dict[str, Any], lang: str) -> tuple[MemoryBudget | None, dict[str, Any]]:
        """The budget of these settings and the view of it; without a budget, the view of the refusal."""
        chosen = dict(state)
        name = chosen.pop("model")
        try:
            budget = plan_memory(self._configs.get(name, name), **chosen)
        except MiniKVError as refusal:
            return None, _refusal(refusal, lang)
        return budget, _view(budget, state, lang)

    def _offer(self, model: Any) -> str:
        """The name of ``model`` among the options. A config of the caller's own joins them under a free name."""
        if isinstance(model, str) and model in self._configs:
            return model
        own = name = read_config(model).name
        if isinstance(model, str) and not Path(model).exists():
            return name  # the catalogue's
        number = 1
        while name in self._configs or name in model_names():
            number += 1
            name = f"{own} ({number})"
        self._configs[name] = model
        return name

    def _form(self, lang: str) -> dict[str, Any]:
        """The controls: their labels, what they offer, and where Reset returns to."""
        # Offered is what has an answer: every field that the weights need, a memory size that torch prints.
        models = [*self._configs, *(name for name in model_names() if find_model(name).complete)]
        gpus = [name for name in gpu_names() if find_gpu(name).total_bytes]
        own = text("widgets.kv_dtype_own", lang)
        return {
            "lang": "zh-CN" if lang == "zh" else "en",
            "title": text("widgets.title", lang),
            "legend": text("widgets.controls", lang),
            "reset": text("widgets.reset", lang),
            "columns": ["", text("widgets.column_term", lang), "GiB", text("widgets.column_bytes", lang)],
            "defaults": self._start,
            "fields": [
                select("widgets", "model", _with(self._start["model"], models), lang),
                select("widgets", "gpu", _with(self._start["gpu"], gpus), lang),
                select("widgets", "tp", [(tp, str(tp)) for tp in TP_SIZES], lang),
                select("widgets", "kv_dtype", [(name, name or own) for name in KV_DTYPES], lang),
                slider("widgets", "context", _doubling(128, 2**20), 1, MAX_CONTEXT, 1, lang),
                slider("widgets", "batch", _doubling(1, 1024), 1, MAX_BATCH, 1, lang),
                slider(
                    "widgets", "utilization", [share / 100 for share in range(50, 100)], 0.01, 1, "any", lang
                ),
            ],
        }


def _with(start: str, names: list[str]) -> list[tuple[str, str]]:
    """Options by name; where the widget starts is always among them."""
    return [(name, name) for name in (names if start in names else [start, *names])]


def _doubling(first: int, last: int) -> list[int]:
    """The slider's stops: powers of two and, between two of them, the number half-way."""
    steps = []
    while first < last:
        steps += [first, first + first // 2] if first > 1 else [first]
        first *= 2
    return [*steps, last]


def _heading(state: dict[str, Any], lang: str) -> str:
    names = {**state, "kv_dtype": state["kv_dtype"] or text("widgets.kv_dtype_own", lang)}
    return text("widgets.summary", lang, **names)


def _view(budget: MemoryBudget, state: dict[str, Any], lang: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "key": key,
            "letter": chr(ord("A") + index),
            "look": index,
            "label": text(f"widgets.{key}", lang),
            "bytes": num_bytes,
            "text": f"{gib(num_bytes):,.2f}",
            "exact": f"{num_bytes:,}",
        }
        for index, (key, num_bytes) in enumerate(budget.parts().items())
    ]
    total = budget.total_bytes
    total_row = {
        "key": "total", "letter": "", "label": text("widgets.total", lang), "bytes": total,
        "text": f"{gib(total):,.2f}", "exact": f"{total:,}",
    }  # fmt: skip
    spoken = [
        text("widgets.bar_part", lang, label=row["label"], gib=gib(row["bytes"]))
        for row in rows
        if row["bytes"]
    ]
    aria = text(
        "widgets.bar", lang,
        gpu=state["gpu"], total=gib(total), parts=text("widgets.bar_joint", lang).join(spoken),
    )  # fmt: skip
    bar = {"total": total, "total_text": f"{gib(total):,.2f} GiB", "aria": aria, "empty": "", "parts": rows}
    return {
        "bar": bar,
        "rows": [*rows, total_row],
        "figures": _figures(budget, state, lang),
        "status": _status(budget, state, lang),
        "error": not budget.fits,
    }


def _counts(budget: MemoryBudget, state: dict[str, Any], lang: str) -> dict[str, str]:
    counts = {
        "blocks": budget.num_blocks,
        "tokens": budget.max_tokens,
        "sequences": budget.max_batch(state["context"]),
    }
    no_limit = text("widgets.no_limit", lang)
    return {key: no_limit if count == math.inf else f"{count:,}" for key, count in counts.items()}


def _figures(budget: MemoryBudget, state: dict[str, Any], lang: str) -> list[dict[str, str]]:
    return [
        {"key": key, "label": text(f"widgets.{key}", lang, context=state["context"]), "value": count}
        for key, count in _counts(budget, state, lang).items()
    ]


def _status(budget: MemoryBudget, state: dict[str, Any], lang: str) -> str:
    short = budget.needed_bytes - budget.kv_bytes
    return text(
        "widgets.fits" if budget.fits else "widgets.too_many",
        lang,
        batch=state["batch"],
        context=state["context"],
        needed=exact_bytes(budget.needed_bytes),
        pool=format_bytes(budget.kv_bytes),
        short=format_bytes(short),
        **_counts(budget, state, lang),
    )


def _refusal(refusal: MiniKVError, lang: str) -> dict[str, Any]:
    empty = text("widgets.bar_empty", lang)
    return {
        "bar": {"total": 0, "total_text": "", "aria": empty, "empty": empty, "parts": []},
        "rows": [],
        "figures": [],
        "status": refusal.text(lang),
        "error": True,
    }
