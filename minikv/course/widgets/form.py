"""What form.js needs to build a control: its label, what it offers, and how a screen reader says its value."""

from collections.abc import Sequence
from typing import Any

from minikv.i18n import text


def select(table: str, key: str, options: Sequence[Sequence[Any]], lang: str) -> dict[str, Any]:
    """A list of [value, text] to choose from; its label is the sentence ``key`` of ``messages/<table>.toml``."""
    return {"key": key, "label": text(f"{table}.{key}", lang), "options": options}


def slider(
    table: str, key: str, steps: Sequence, least: float, most: float, step: float | str, lang: str
) -> dict[str, Any]:
    """A slider along ``steps``, with a box for any number from ``least`` to ``most`` in steps of ``step`` ("any").

    The table has the sentences ``key`` and ``key_value``, which says a value: "{value} tokens".
    """
    label = text(f"{table}.{key}", lang)
    return {
        "key": key,
        "label": label,
        "exact": text("widgets.exact", lang, label=label),
        "value_text": text(f"{table}.{key}_value", lang, value="{value}"),  # the script fills in the number
        "steps": steps,
        "min": least,
        "max": most,
        "step": step,
    }
