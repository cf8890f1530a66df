"""The allocation widget: from used, peak and current to the number of blocks, with the reader's settings.

A time-line before the formula shows what the driver and torch report after each call of a start-up. A bar after it
shows where the device's bytes are in the end. The short form and the wrong formula stand beside the result.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minikv.course.widgets.allocation_case import MAX_GIB, Case, planned, report_start, reported
from minikv.course.widgets.base import script, style
from minikv.course.widgets.budget_view import TP_SIZES
from minikv.course.widgets.fields import doubling, names, offered_models, select, slider
from minikv.course.widgets.form import FormWidget
from minikv.course.widgets.parts import nothing_stacked, stacked
from minikv.errors import MiniKVError, check_count
from minikv.i18n import text
from minikv.plan import find_gpu, find_model, gpu_names
from minikv.plan.budget import CUDA_CONTEXT_BYTES
from minikv.units import exact_bytes, format_bytes, gib

if TYPE_CHECKING:  # it imports torch, which the other widgets do not need
    from minikv.cache.allocation import AllocationReport

TABLE = "widgets_allocation"
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
MAX_TOKENS = 2**20  # of a warm-up
SHARES = [share / 100 for share in range(50, 100)]
GIBS = [quarter / 4 for quarter in range(16)] + [4.0 + whole for whole in range(37)]  # 0 .. 40
# Looks of the palette: used has the colour of what is not torch's, peak that of the activations.
LINES = {"used": "other", "peak": "activations", "current": "weights"}


class AllocationWidget(FormWidget):
    """The allocation formula of one GPU, live. Bytes of one rank; blocks of ``block_size`` tokens.

    ``lang`` is "en" or "zh". The controls begin with these: ``model`` and ``gpu``, names of the catalogue; ``tp``
    ranks; ``utilization``, the share of the GPU; ``warmup_tokens``, the tokens of the warm-up (cut to the model's
    positions); ``non_torch``, GiB of the CUDA context and other processes; ``loading``, GiB of copies while the weights
    load. ``context`` and ``batch`` are those of ``size_for_bytes``: layers with windows get blocks for them.

    With a measured ``report`` the widget begins at its terms, to the byte, and offers ``utilization``, ``non_torch``,
    ``activations`` and ``loading`` (GiB); the other arguments are ignored.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue. Raises ``ArgumentError`` for an unknown
    language, an invalid ``context`` or ``batch``, and a report with a given size. Later, a setting that cannot work
    raises nothing: the widget shows the sentence of its error.
    """

    _table = TABLE
    _esm = script("bar.js", "form.js", "parts.js", "allocation.js")
    _css = style("allocation.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        model: str = "Llama-3.1-8B",
        gpu: str = "H200",
        tp: int = 1,
        utilization: float = 0.9,
        warmup_tokens: int = 8192,
        non_torch: float = gib(CUDA_CONTEXT_BYTES),
        loading: float = 1.0,
        block_size: int = 16,
        context: int | None = None,
        batch: int | None = None,
        report: "AllocationReport | None" = None,
    ):
        for what, count in (("context", context), ("batch", batch)):
            if count is not None:
                check_count(what, count)
        self._case_of: Callable[[dict[str, Any]], Case]
        self._measured = report is not None
        if report is not None:
            start = report_start(report)
            self._case_of = lambda state: reported(report, state)
        else:
            start = {
                "model": find_model(model).name,
                "gpu": find_gpu(gpu).name,
                "tp": tp,
                "utilization": utilization,
                "warmup_tokens": warmup_tokens,
                "non_torch": non_torch,
                "loading": loading,
                "block_size": block_size,
            }
            self._case_of = lambda state: planned(state, context, batch)
        super().__init__(lang, start)

    @property
    def case(self) -> Case | None:
        """The terms and the cache on the screen, or None where the settings do not work together."""
        try:
            return self._case_of(self.state)
        except MiniKVError:
            return None

    @property
    def summary(self) -> str:
        """The view as plain lines, in the widget's language; the same in every run."""
        with self._turn:
            view = self.view
        lines = [view["heading"]] if view["heading"] else []
        for row in view["moments"]:
            sizes = {value["key"]: value["exact"] for value in row["values"]}
            lines.append(_say("line_moment", self._lang, label=row["label"], **sizes))
        lines += [
            _say("line_part", self._lang, label=row["label"], size=f"{row['text']} GiB", exact=row["exact"])
            for row in view["rows"]
        ]
        lines += [_say("line_sum", self._lang, label=row["label"], text=row["text"]) for row in view["sums"]]
        return "\n".join([*lines, view["status"]])

    def text(self) -> str:
        """Return ``summary``, which ``show`` prints where there is no picture."""
        return self.summary

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        try:
            case = self._case_of(state)
        except MiniKVError as refusal:
            empty = {"heading": "", "scale": 1, "limit": 0, "moments": [], "sums": []}
            sentence = refusal.text(lang)
            return {**nothing_stacked(lang), **empty, "aria": sentence, "status": sentence, "error": True}
        return _view(case, lang)

    def _form(self, lang: str) -> dict[str, Any]:
        shared = [
            slider(TABLE, "utilization", SHARES, 0.01, 1, "any", lang),
            slider(TABLE, "non_torch", GIBS, 0, MAX_GIB, "any", lang),
            slider(TABLE, "loading", GIBS, 0, MAX_GIB, "any", lang),
        ]
        if self._measured:
            fields = [*shared, slider(TABLE, "activations", GIBS, 0, MAX_GIB, "any", lang)]
        else:
            models = offered_models()
            gpus = [name for name in gpu_names() if find_gpu(name).total_bytes]
            sizes = sorted({*BLOCK_SIZES, self._start["block_size"]})
            fields = [
                select("widgets", "model", names(self._start["model"], models), lang),
                select("widgets", "gpu", names(self._start["gpu"], gpus), lang),
                select("widgets", "tp", [(tp, str(tp)) for tp in TP_SIZES], lang),
                select(TABLE, "block_size", [(size, str(size)) for size in sizes], lang),
                slider(TABLE, "warmup_tokens", doubling(128, 65536), 1, MAX_TOKENS, 1, lang),
                *shared,
            ]
        return {
            **super()._form(lang),
            "columns": ["", text("widgets.column_term", lang), "GiB", text("widgets.column_bytes", lang)],
            "timeline": _say("timeline", lang),
            "bar": _say("bar_title", lang),
            "exact": _say("exact", lang),
            "limit": _say("limit", lang),
            "lines": [
                {"key": key, "look": look, "label": _say(f"line_{key}", lang)} for key, look in LINES.items()
            ],
            "moment_columns": [_say("column_call", lang), *LINES, _say("column_does", lang)],
            "fields": fields,
        }


def _view(case: Case, lang: str) -> dict[str, Any]:
    terms, cache = case.terms, case.cache
    names_of = {"name": case.name, "gpu": case.gpu}
    moments = [
        {
            "key": moment.call,
            "label": _say(f"call_{moment.call}", lang),
            "does": _say(f"does_{moment.call}", lang),
            "values": [
                {"key": key, "bytes": size, "text": f"{gib(size):,.1f}", "exact": f"{size:,}"}
                for key in LINES
                for size in (getattr(moment, key),)
            ],
        }
        for moment in case.moments()
    ]
    return {
        "heading": _say("summary", lang, **names_of, utilization=terms.utilization),
        **stacked(
            case.parts(),
            f"{TABLE}.part_",
            lang,
            name=case.gpu,
            aria=f"{TABLE}.bar",
        ),
        "scale": terms.total,
        "limit": terms.limit,
        "moments": moments,
        "aria": _timeline_aria(case, lang),
        "sums": [
            {"key": key, "label": _say(f"sum_{key}", lang), "text": said} for key, said in _sums(case, lang)
        ],
        "status": _say(
            "status",
            lang,
            blocks=cache.num_blocks,
            tokens=cache.num_blocks * case.block_size,
            block_size=case.block_size,
            kv=format_bytes(cache.kv_bytes),
            warmup=_say("of_tokens", lang, tokens=case.warmup_tokens) if case.warmup_tokens else "",
            activations=format_bytes(case.activations),
        ),
        "error": False,
    }


def _timeline_aria(case: Case, lang: str) -> str:
    moments = [
        _say(
            "aria_moment",
            lang,
            call=_say(f"call_{moment.call}", lang),
            used=gib(moment.used),
            peak=gib(moment.peak),
            current=gib(moment.current),
        )
        for moment in case.moments()
    ]
    return _say("aria", lang, limit=gib(case.terms.limit), moments=_say("aria_joint", lang).join(moments))


def _sums(case: Case, lang: str) -> list[tuple[str, str]]:
    """Return the formula with its numbers, the blocks, and the results of two other formulas: (key, sentence)."""
    terms, cache = case.terms, case.cache
    values = {key: f"{value:,}" for key, value in terms.as_dict().items()}
    values |= {"total": f"{terms.total:,}", "utilization": str(terms.utilization)}
    aside = cache.kv_bytes - cache.num_blocks * case.block_bytes
    counts = dict(
        available=terms.available,
        aside=aside,
        block_bytes=case.block_bytes,
        blocks=cache.num_blocks,
        block_size=case.block_size,
        tokens=cache.num_blocks * case.block_size,
    )
    short, all_free = case.fit(terms.short_form), case.fit(case.free)
    missing = case.missing_after(all_free)
    return [
        ("formula", _say("formula", lang, **values)),
        ("blocks", _say("blocks_aside" if aside else "blocks", lang, **counts)),
        (
            "short",
            _say(
                "short_more" if case.not_torch else "short_same",
                lang,
                short=exact_bytes(terms.short_form),
                more=format_bytes(case.not_torch),
                blocks=short.num_blocks - cache.num_blocks,
            ),
        ),
        (
            "free",
            _say(
                "free_lacks" if missing > 0 else "free_enough",
                lang,
                way=_say("way_aside" if aside else "way", lang),
                free=exact_bytes(case.free),
                blocks=all_free.num_blocks,
                activations=format_bytes(case.activations),
                missing=format_bytes(abs(missing)),
            ),
        ),
    ]


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"{TABLE}.{key}", lang, **values)
