"""A table of figures, a row a part: what table.js draws, and the same as plain lines."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from minikv.i18n import text


def figure_row(key: str, prefix: str, values: Sequence[str], lang: str) -> dict[str, Any]:
    """A row whose label is the sentence ``prefix`` + key ("widgets_roofline.step")."""
    return {"key": key, "label": text(prefix + key, lang), "values": list(values)}


def figure_lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The rows as lines of text, one each."""
    return ["  " + " | ".join([row["label"], *row["values"]]) for row in rows]


def milliseconds(seconds: float) -> str:
    """Milliseconds with three significant digits, never in powers of ten: "0.0120", "4.17", "1,234"."""
    ms = seconds * 1e3
    return f"{ms:,.{max(0, 2 - math.floor(math.log10(ms)))}f}"
