"""What widgets share and need no widget library for: a stacked bar and its table, for bar.js and parts.js; letters."""

from collections.abc import Callable, Mapping
from typing import Any

from minikv.i18n import text
from minikv.units import gib

# The meaning, in the palette, of each part of a memory. Parts of one bar differ: an LLM that evicts captures no graphs.
LOOKS = {
    "weights": "weights", "current": "weights", "used": "weights", "buffers": "buffers", "workspace": "buffers",
    "kv": "k", "kv_used": "k", "kv_cells": "k", "padding": "padding", "records": "graphs", "graphs": "graphs",
    "host": "host",
    "activations": "activations", "tensors": "activations", "rest": "activations", "process": "activations",
    "cached": "cached", "not_torch": "other", "context": "other", "cuda_context": "other", "others": "processes",
    "headroom": "free", "left": "free", "kv_left": "free", "kept_free": "kept",
}  # fmt: skip


def in_gib(num_bytes: int) -> str:
    """Return GiB with two decimals ("125.82"), for a column that says GiB."""
    return f"{gib(num_bytes):,.2f}"


def stacked(
    parts: Mapping[str, int],
    prefix: str,
    lang: str,
    *,
    name: str,
    aria: str = "widgets.bar",
    write: Callable[[int], str] = in_gib,
    total_text: Callable[[int], str] | None = None,
    values: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return ``bar`` and ``rows`` of ``parts``; their labels are the sentences ``prefix`` + key ("widgets.kv").

    ``aria`` is the sentence of the whole bar, with ``name`` as its {gpu}. ``write`` formats a size in the rows,
    ``total_text`` (None: GiB) the total below the bar, ``values`` fills in the labels. What is beyond ``limit`` bytes
    is drawn as too much.
    """
    rows: list[dict[str, Any]] = [
        {
            "key": key,
            "letter": chr(ord("A") + index),
            "look": LOOKS[key],
            "label": text(prefix + key, lang, **(values or {})),
            "bytes": num_bytes,
            "text": write(num_bytes),
            "exact": f"{num_bytes:,}",
        }
        for index, (key, num_bytes) in enumerate(parts.items())
    ]
    total = sum(parts.values())
    total_row = {
        "key": "total", "letter": "", "label": text("widgets.total", lang), "bytes": total,
        "text": write(total), "exact": f"{total:,}",
    }  # fmt: skip
    spoken = [
        text("widgets.bar_part", lang, label=row["label"], gib=gib(row["bytes"]))
        for row in rows
        if row["bytes"]
    ]
    joined = text("widgets.bar_joint", lang).join(spoken)
    bar: dict[str, Any] = {
        "total": total,
        "total_text": f"{in_gib(total)} GiB" if total_text is None else total_text(total),
        "aria": text(aria, lang, gpu=name, total=gib(total), parts=joined),
        "empty": "",
        "parts": rows,
    }
    if limit is not None and total > limit:
        bar["over"] = {
            "limit": limit,
            "limit_text": text("widgets.edge", lang, limit=gib(limit)),
            "text": text("widgets_memory_bar.over", lang, gib=gib(total - limit)),
        }
    return {"bar": bar, "rows": [*rows, total_row]}


def nothing_stacked(lang: str) -> dict[str, Any]:
    """Return ``bar`` and ``rows`` for settings that do not work together."""
    empty = text("widgets.bar_empty", lang)
    return {"bar": {"total": 0, "total_text": "", "aria": empty, "empty": empty, "parts": []}, "rows": []}


def letters(number: int) -> str:
    """Return the letters of ``number``: 0 is A, 25 is Z, 26 is AA, like the columns of a spreadsheet."""
    name, number = "", number + 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name
