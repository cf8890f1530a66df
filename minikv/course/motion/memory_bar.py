"""Lessons 02 and 08: a card's memory while its sequences get longer, until they are too much for it."""

from typing import Any

from minikv.course.motion.scene import scene_style
from minikv.course.motion.widget import Motion, widget_module
from minikv.course.widgets.parts import LOOKS
from minikv.errors import DoesNotFitError, check_count
from minikv.i18n import pick_language, text
from minikv.plan import MemoryBudget, plan_memory
from minikv.units import exact_bytes, format_bytes, gib


class MemoryBarMotion(Motion):
    """Shows ``batch`` sequences of ``model`` on ``gpu`` as they grow to ``context`` tokens in ``steps`` equal steps.

    Every state is a ``plan_memory``; ``options`` are its others. ``lang`` is "en" or "zh"; ``step`` is the state on
    display at first. Raises what ``plan_memory`` does
    but ``DoesNotFitError``, and ``ArgumentError`` for counts below 1.
    """

    _name = "memory_bar"
    _esm = widget_module("memory_bar")
    _css = scene_style("memory_bar")

    def __init__(
        self,
        lang: str,
        model: Any,
        gpu: str,
        *,
        context: int,
        batch: int = 1,
        steps: int = 24,
        step: int = 0,
        **options: Any,
    ):
        lang = pick_language(lang)
        for what, value in (("context", context), ("steps", steps)):
            check_count(what, value)
        lengths = sorted({max(1, context * place // steps) for place in range(steps + 1)})
        self.budgets = [
            _planned(model, gpu=gpu, context=length, batch=batch, **options) for length in lengths
        ]
        first = self.budgets[0]
        most = max(sum(budget.wanted().values()) for budget in self.budgets)
        form = {
            "title": _say("title", lang),
            "size": _say("size", lang, model=first.spec.name, gpu=gpu, batch=batch),
            "parts": [[key, LOOKS[key], text(f"widgets.{key}", lang)] for key in first.wanted()],
            "total": first.total_bytes,
            "total_text": _say("total", lang, total=format_bytes(first.total_bytes)),
            "limit": first.limit_bytes,
            "limit_text": _say("limit", lang, limit=format_bytes(first.limit_bytes), share=first.utilization),
            "most": max(most, first.total_bytes),
        }
        super().__init__(lang, form, [_view(budget, lang) for budget in self.budgets], step)

    def _figures(self, step: int, state: dict[str, Any]) -> list[str]:
        pairs = zip(self.form["parts"], state["sizes"], strict=True)
        return [
            _say("line", self._lang, label=label, exact=exact_bytes(size))
            for (key, _, label), size in pairs
            if step == 0 or key == "kv_used"
        ]


def _planned(model: Any, **settings: Any) -> MemoryBudget:
    """Return the budget, also where the weights alone are too much for the card."""
    try:
        return plan_memory(model, **settings)
    except DoesNotFitError as refusal:
        return refusal.budget


def _view(budget: MemoryBudget, lang: str) -> dict[str, Any]:
    sizes = list(budget.wanted().values())
    over = max(0, sum(sizes) - budget.limit_bytes)
    values = dict(
        context=budget.context, batch=budget.batch, kv=format_bytes(budget.needed_bytes),
        taken=format_bytes(sum(sizes)), limit=format_bytes(budget.limit_bytes),
    )  # fmt: skip
    over_text = _say("over", lang, gib=gib(over)) if over else ""
    return {
        "status": _say("too_much" if over else "fits", lang, **values, over=over_text),
        "sizes": sizes,
        "texts": [f"{gib(size):,.2f} GiB" for size in sizes],
        "over": over,
        "over_text": over_text,
    }


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"widgets_memory_bar.{key}", lang, **values)
