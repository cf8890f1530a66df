"""The controls of a form as plain data, for form.js: what a widget's Python says of them.

Nothing here imports a widget library, so that a page can ask for the same form without a notebook.
"""

from collections.abc import Callable, Sequence
from typing import Any

from minikv.errors import MiniKVError
from minikv.i18n import text
from minikv.plan import find_model, model_names


def form_of(table: str, start: dict[str, Any], lang: str) -> dict[str, Any]:
    """Return the part of a form that does not change: its labels, and ``start``, the settings of Reset.

    ``messages/<table>.toml`` has the sentences "title" and "controls".
    """
    return {
        "lang": "zh-CN" if lang == "zh" else "en",
        "title": text(f"{table}.title", lang),
        "legend": text(f"{table}.controls", lang),
        "reset": text("widgets.reset", lang),
        "defaults": start,
    }


def select(table: str, key: str, options: Sequence[Sequence[Any]], lang: str) -> dict[str, Any]:
    """Return a list of [value, text] to choose from; its label is the sentence ``key`` of ``messages/<table>.toml``."""
    return {"key": key, "label": text(f"{table}.{key}", lang), "options": options}


def slider(
    table: str, key: str, steps: Sequence, least: float, most: float, step: float | str, lang: str
) -> dict[str, Any]:
    """Return a slider along ``steps``, with a box for any number from ``least`` to ``most`` in steps of ``step``
    ("any").

    The table has the sentences ``key`` and ``key_value``, the text of a value: "{value} tokens".
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


def names(start: str, offered: Sequence[str]) -> list[tuple[str, str]]:
    """Return options by name; the widget's start is always among them."""
    return [(name, name) for name in (offered if start in offered else [start, *offered])]


def doubling(first: int, last: int) -> list[int]:
    """Return a slider's stops: powers of two and, between two of them, the number half-way."""
    steps = []
    while first < last:
        steps += [first, first + first // 2] if first > 1 else [first]
        first *= 2
    return [*steps, last]


def offered_models(count: Callable[[str], object] = find_model) -> list[str]:
    """Return the complete models of the catalogue for which ``count(name)`` raises no ``MiniKVError``."""

    def counted(name: str) -> bool:
        try:
            count(name)
        except MiniKVError:
            return False
        return find_model(name).complete

    return [name for name in model_names() if counted(name)]
