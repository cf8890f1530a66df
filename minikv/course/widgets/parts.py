"""A stacked bar and the table below it, from a dictionary of bytes, for bar.js and parts.js."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minikv.i18n import text
from minikv.units import gib


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
    looks: Sequence[int] | None = None,
    write: Callable[[int], str] = in_gib,
    total_text: Callable[[int], str] | None = None,
) -> dict[str, Any]:
    """Return ``bar`` and ``rows`` of ``parts``; their labels are the sentences ``prefix`` + key ("widgets.kv").

    ``aria`` is the sentence of the whole bar, with ``name`` as its {gpu}. ``looks`` are the patterns of bar.js
    (None: in order). ``write`` formats a size in the rows, ``total_text`` (None: GiB) the total below the bar.
    """
    rows: list[dict[str, Any]] = [
        {
            "key": key,
            "letter": chr(ord("A") + index),
            "look": looks[index] if looks else index,
            "label": text(prefix + key, lang),
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
    bar = {
        "total": total,
        "total_text": f"{in_gib(total)} GiB" if total_text is None else total_text(total),
        "aria": text(aria, lang, gpu=name, total=gib(total), parts=joined),
        "empty": "",
        "parts": rows,
    }
    return {"bar": bar, "rows": [*rows, total_row]}


def nothing_stacked(lang: str) -> dict[str, Any]:
    """Return ``bar`` and ``rows`` for settings that do not work together."""
    empty = text("widgets.bar_empty", lang)
    return {"bar": {"total": 0, "total_text": "", "aria": empty, "empty": empty, "parts": []}, "rows": []}
