"""``my_engine()``: nano with the learner's parts in place of ours, run and compared."""

import os
import sys
from typing import Any

from minikv.course.your_engine.child import run_child
from minikv.course.your_engine.kept import kept_parts
from minikv.course.your_engine.parts import PART_OF
from minikv.course.your_engine.report import EngineReport
from minikv.extras import require_engine
from minikv.i18n import locale_language, pick_language
from minikv.shown import Shown


class MyEngine:
    """The learner's engine: ``my_engine()`` assembles it, answers 48 prompts and says what became of each part.

    ``lang`` is the language of the last ``start(...)``; before the first, that of the shell.
    """

    def __init__(self) -> None:
        self.lang = pick_language(os.environ.get("MINIKV_LANG") or locale_language(os.environ))

    def __call__(self, lang: str | None = None) -> None:
        """Run the parts that ``check`` has kept, in a process of their own, and show a table.

        Takes some 20 s on two CPU cores; a part that hangs takes 20 s more. Raises ``ArgumentError`` for an unknown
        language, ``ConfigError`` for kept parts that cannot be read, and ``MissingPackageError`` without torch.
        """
        lang = pick_language(lang or self.lang)
        _show(self.report(lang).shown(lang))

    def report(self, lang: str | None = None) -> EngineReport:
        """The same as an object: ``passed``, ``findings``, ``shown(lang)``."""
        require_engine()
        kept = {task: part for task, part in kept_parts().parts.items() if task in PART_OF}
        return EngineReport(kept, run_child(kept, pick_language(lang or self.lang)))

    def __repr__(self) -> str:
        return "<my_engine: call it>"


def _show(shown: Shown) -> None:
    ipython: Any = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display

        display(shown)
    else:
        print(shown.text())


my_engine = MyEngine()
