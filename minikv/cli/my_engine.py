"""``minikv my-engine``: nano with the learner's parts, compared with ``generate()``; the race; the export."""

from typing import Annotated

import typer

from minikv.cli.options import Lang
from minikv.course.your_engine.engine import my_engine as engine
from minikv.errors import ArgumentError
from minikv.i18n import pick_language


def my_engine(
    race: Annotated[bool, typer.Option("--race")] = False,
    export: Annotated[str | None, typer.Option("--export")] = None,
    lang: Lang = "en",
) -> None:
    """Run nano with the parts that you have written."""
    lang = pick_language(lang)
    if race and export is not None:
        raise ArgumentError("my_engine_one_of")
    if export is not None:
        engine.export(export, lang)
    elif race:
        engine.race(lang)
    else:
        engine(lang=lang)
