"""Runs in the reader's browser: the answers of the widgets with controls. Everything crosses as JSON."""

import json
from functools import cache
from importlib import import_module
from typing import Any

# File and class of each: their Python needs the standard library alone.
LIVE = {
    "budget": "BudgetWidget",
    "roofline": "RooflineWidget",
    "swap_cost": "SwapCostWidget",
    "walk": "WalkWidget",
}


def answer(asked: str) -> str:
    """``{"widget", "lang", "start", "state"}`` to the widget's view of the state; ``start`` are its first settings."""
    wanted = json.loads(asked)
    widget = _made(wanted["widget"], wanted["lang"], json.dumps(wanted["start"]))
    return json.dumps(widget._answer({**widget.state, **wanted["state"]}, wanted["lang"]), ensure_ascii=False)


@cache
def _made(name: str, lang: str, start: str) -> Any:
    made = getattr(import_module(f"minikv.course.widgets.{name}"), LIVE[name])
    return made(lang, **json.loads(start))
