"""The memory-budget widget: where every GiB of one GPU goes, with the reader's settings.

The controls write ``state``; ``plan_memory`` computes the budget; ``view`` is the budget in words and numbers of the
widget's language, for the script. Settings that cannot work are part of the lesson: the readout shows the sentence of
the ``MiniKVError``, and the widget goes on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.budget_view import budget_form, budget_of, budget_view
from minikv.course.widgets.form import FormWidget
from minikv.errors import MiniKVError
from minikv.i18n import text
from minikv.plan import MemoryBudget, find_gpu, model_names
from minikv.plan.spec.config import read_config


class BudgetWidget(FormWidget):
    """Controls, a stacked bar of one GPU's memory, and the figures; everything is per GPU and in bytes.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``model`` is anything that
    ``CacheSpec.from_config`` takes, ``gpu`` a catalogue name, ``tp`` the tensor-parallel size, ``context`` tokens a
    sequence, ``batch`` sequences, ``kv_dtype`` None (the model's own) or a name that ``plan_memory`` takes,
    ``utilization`` the share of the GPU's memory that may be used. ``configs`` offers more models: a name, and again
    anything that ``from_config`` takes. A ``model`` that is a config is offered too, under its own name.

    Raises ``UnknownNameError`` for a model or GPU that is not in the catalogue, ``ConfigError`` for a config
    that cannot be read, ``ArgumentError`` for an unknown language and for a model that is no config. Later, a choice
    that cannot work raises nothing: the widget shows its error.
    """

    _table = "widgets"
    _esm = script("bar.js", "form.js", "parts.js", "budget.js")
    _css = style("budget.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        model: Any = "Llama-3.1-8B",
        gpu: str = "H200",
        tp: int = 1,
        context: int = 4096,
        batch: int = 1,
        kv_dtype: str | None = None,
        utilization: float = 0.9,
        configs: Mapping[str, Any] | None = None,
    ):
        self._configs = dict(configs or {})
        start: dict[str, Any] = {
            "model": self._offer(model),
            "gpu": find_gpu(gpu).name,
            "tp": tp,
            "context": context,
            "batch": batch,
            "kv_dtype": kv_dtype,
            "utilization": utilization,
        }
        super().__init__(lang, start)

    @property
    def budget(self) -> MemoryBudget | None:
        """The budget on the screen, or None where the settings do not work together."""
        try:
            return budget_of(self.state, self._configs)
        except MiniKVError:
            return None

    def text(self) -> str:
        """Return the budget as plain lines, in the widget's language, for a reader without the picture."""
        with self._turn:
            state, view = self.state, self.view
        lines = [_heading(state, self._lang)]
        lines += [f"  {row['label']}: {row['text']} GiB ({row['exact']} B)" for row in view["rows"]]
        lines += [f"  {figure['label']}: {figure['value']}" for figure in view["figures"]]
        return "\n".join([*lines, view["status"]])

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        return budget_view(state, self._configs, lang)

    def _offer(self, model: Any) -> str:
        """Return the option's name for ``model``. A config is added to the options under a free name."""
        if isinstance(model, str) and model in self._configs:
            return model
        own = name = read_config(model).name
        if isinstance(model, str) and not Path(model).exists():
            return name  # a name of the catalogue
        number = 1
        while name in self._configs or name in model_names():
            number += 1
            name = f"{own} ({number})"
        self._configs[name] = model
        return name

    def _form(self, lang: str) -> dict[str, Any]:
        """Return the controls: their labels, their options, and the settings of Reset."""
        return budget_form(self._start, self._configs, lang)


def _heading(state: dict[str, Any], lang: str) -> str:
    values = {**state, "kv_dtype": state["kv_dtype"] or text("widgets.kv_dtype_own", lang)}
    return text("widgets.summary", lang, **values)
