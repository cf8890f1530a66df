"""``my_engine()``: nano with the learner's parts in place of ours, run and compared."""

import os
import sys
from pathlib import Path
from typing import Any

import minikv
from minikv.course.show import show
from minikv.course.your_engine.child import run_child
from minikv.course.your_engine.driven import VLLM_FOLDER, vllm_python
from minikv.course.your_engine.export import export_engine
from minikv.course.your_engine.kept import KeptPart, kept_parts
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.course.your_engine.race import run_race
from minikv.course.your_engine.report import EngineReport
from minikv.course.your_engine.source import source_of
from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.extras import require_engine
from minikv.i18n import locale_language, pick_language, text
from minikv.shown import Shown


class MyEngine:
    """The learner's engine: ``my_engine()`` assembles it, answers 48 prompts and judges each part.

    ``lang`` is the language of the last ``start(...)``; before the first, that of the shell.
    """

    def __init__(self) -> None:
        self.lang = pick_language(os.environ.get("MINIKV_LANG") or locale_language(os.environ))

    def __call__(self, *tried: Any, lang: str | None = None) -> None:
        """Run the parts that ``check`` has kept, in a process of their own, and show a table.

        ``tried`` are functions with the names of parts. They stand in for those parts this once, and are not kept.
        Takes some 20 s on two CPU cores; a part that hangs takes 20 s more. Raises ``ArgumentError`` for an unknown
        language and for a function that no part is named like, ``NotKeptError`` if its source is not enough to
        run it, ``ConfigError`` for kept parts that cannot be read, and ``MissingPackageError`` without torch.
        """
        lang = pick_language(lang or self.lang)
        _show(self.report(*tried, lang=lang).shown(lang))

    def race(self, lang: str | None = None, *, vllm: bool = False) -> None:
        """Five engines answer the same requests in turn, yours among them; show a table and a plot.

        ``vllm`` adds vLLM, from the environment that ``make bench-vllm`` makes in a checkout. Takes some 20 s on two
        CPU cores, with vLLM 40, at most 180 s. Raises as the call does, ``ConfigError`` where vLLM is asked for and not
        installed, and ``ChildError`` where the process of the race ends without an answer.
        """
        lang = pick_language(lang or self.lang)
        require_engine()
        python = vllm_python() if vllm else None
        if vllm and python is None:
            raise ConfigError("race_no_vllm", path=str(VLLM_FOLDER))
        found = run_race(self._kept(), vllm=python)
        _show(found.shown(lang))
        if _in_notebook():
            show(found.figure(lang), text("race.plot", lang))

    def export(self, path: str | Path, lang: str | None = None) -> None:
        """Write the engine as one file that needs torch and transformers, and no minikv: ``python my_engine.py``.

        Your parts are marked. Raises ``ConfigError`` where ``path`` is a file that no export wrote, cannot be written,
        or where a part uses what minikv alone has.
        """
        print(export_engine(user_path(path), self._kept(), pick_language(lang or self.lang)))

    def report(self, *tried: Any, lang: str | None = None) -> EngineReport:
        """The same as an object: ``passed``, ``findings``, ``shown(lang)``."""
        require_engine()
        kept = self._kept() | dict(_tried(fn) for fn in tried)
        return EngineReport(kept, run_child(kept, pick_language(lang or self.lang)))

    def _kept(self) -> dict[str, KeptPart]:
        return {task: part for task, part in kept_parts().parts.items() if task in PART_OF}

    def __repr__(self) -> str:
        return "<my_engine: call it>"


def _tried(fn: Any) -> tuple[str, KeptPart]:
    source = source_of(fn)
    task = next((part.task for part in PARTS if part.name == source.name), None)
    if task is None:
        raise ArgumentError("not_a_part", name=source.name, known=", ".join(part.name for part in PARTS))
    return task, KeptPart(source.name, source.text, source.needs, "", minikv.__version__)


def _show(shown: Shown) -> None:
    if _in_notebook():
        from IPython.display import display

        display(shown)
    else:
        print(shown.text())


def _in_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


my_engine = MyEngine()
