"""What the memory-budget widget shows: its controls, and the budget of some settings in words and numbers.

Plain data of ``minikv.plan``, without a widget library: a notebook gives the same answers as a page of the site, where
Python runs in the reader's browser.
"""

import math
from collections.abc import Mapping
from typing import Any

from minikv.course.widgets.fields import doubling, form_of, names, offered_models, select, slider
from minikv.course.widgets.parts import nothing_stacked, stacked
from minikv.errors import MiniKVError
from minikv.i18n import text
from minikv.plan import MemoryBudget, find_gpu, gpu_names, plan_memory
from minikv.units import exact_bytes, format_bytes

TP_SIZES = (1, 2, 4, 8)
KV_DTYPES = (None, "bf16", "fp16", "fp32", "fp8", "fp8_scaled", "int8")
MAX_CONTEXT, MAX_BATCH = 2**24, 2**16  # tokens and sequences that the number boxes take


def budget_form(start: dict[str, Any], configs: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """Return the controls: their labels, their options, and the settings of Reset, ``start``.

    ``configs`` offers models beside the catalogue's.
    """
    # Only models with every field that the weights need, and cards with a memory size as torch prints it.
    models = [*configs, *offered_models()]
    gpus = [name for name in gpu_names() if find_gpu(name).total_bytes]
    own = text("widgets.kv_dtype_own", lang)
    return {
        **form_of("widgets", start, lang),
        "columns": ["", text("widgets.column_term", lang), "GiB", text("widgets.column_bytes", lang)],
        "fields": [
            select("widgets", "model", names(start["model"], models), lang),
            select("widgets", "gpu", names(start["gpu"], gpus), lang),
            select("widgets", "tp", [(tp, str(tp)) for tp in TP_SIZES], lang),
            select("widgets", "kv_dtype", [(name, name or own) for name in KV_DTYPES], lang),
            slider("widgets", "context", doubling(128, 2**20), 1, MAX_CONTEXT, 1, lang),
            slider("widgets", "batch", doubling(1, 1024), 1, MAX_BATCH, 1, lang),
            slider("widgets", "utilization", [share / 100 for share in range(50, 100)], 0.01, 1, "any", lang),
        ],
    }


def budget_of(state: dict[str, Any], configs: Mapping[str, Any]) -> MemoryBudget:
    """Return the budget of the settings ``state``. Raises ``MiniKVError`` where they do not work together."""
    chosen = dict(state)
    name = chosen.pop("model")
    return plan_memory(configs.get(name, name), **chosen)


def budget_view(state: dict[str, Any], configs: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """Return bar, rows, figures and the sentence of the settings ``state``, or the sentence of their error."""
    try:
        budget = budget_of(state, configs)
    except MiniKVError as refusal:
        refused = getattr(refusal, "budget", None)
        drawn = nothing_stacked(lang) if refused is None else _bar(refused, state, lang)
        return {**drawn, "figures": [], "status": refusal.text(lang), "error": True}
    return _view(budget, state, lang)


def _bar(budget: MemoryBudget, state: dict[str, Any], lang: str) -> dict[str, Any]:
    """All of the card's memory, or where that is too small, what everything would take and how much is too much."""
    fits = budget.fits
    parts, limit = (budget.parts(), None) if fits else (budget.wanted(), budget.limit_bytes)
    aria = "widgets.bar" if fits else "widgets.bar_over"
    return stacked(parts, "widgets.", lang, name=state["gpu"], aria=aria, limit=limit)


def _view(budget: MemoryBudget, state: dict[str, Any], lang: str) -> dict[str, Any]:
    return {
        **_bar(budget, state, lang),
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
