"""A table of figures with a row for each part, for table.js and as plain lines."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from minikv.i18n import text


def figure_row(key: str, prefix: str, values: Sequence[str], lang: str) -> dict[str, Any]:
    """Return a row; its label is the sentence ``prefix`` + key ("widgets_roofline.step")."""
    return {"key": key, "label": text(prefix + key, lang), "values": list(values)}


def figure_lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of text, one each."""
    return ["  " + " | ".join([row["label"], *row["values"]]) for row in rows]


def milliseconds(seconds: float) -> str:
    """Return milliseconds with three significant digits, never in powers of ten: "0.0120", "4.17", "1,234"."""
    ms = seconds * 1e3
    return f"{ms:,.{max(0, 2 - math.floor(math.log10(ms)))}f}"
