"""Runs in the reader's browser: what widgets with controls and the pool answer. Everything crosses as JSON."""

import json
from functools import cache
from importlib import import_module
from typing import Any

# File and class of each: their Python needs the standard library alone.
LIVE = {
    "allocation": "AllocationWidget",
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


def pressed(asked: str) -> str:
    """``{"lang", "start", "presses": [[button, sequence]]}`` to the steps of the pool, and the sequences to choose."""
    wanted = json.loads(asked)
    pool = import_module("minikv.course.widgets.pool").PoolWidget(wanted["lang"], **wanted["start"])
    for press in wanted["presses"]:
        pool.act(*press)
    return json.dumps({"frames": pool.frames, "targets": pool.targets}, ensure_ascii=False)


@cache
def _made(name: str, lang: str, start: str) -> Any:
    made = getattr(import_module(f"minikv.course.widgets.{name}"), LIVE[name])
    return made(lang, **json.loads(start))
