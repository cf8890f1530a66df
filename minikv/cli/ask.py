"""``minikv ask``: from an identifier or a question to the lesson that answers it."""

import json
from typing import Annotated

import typer

from minikv.cli.options import Json, Lang
from minikv.i18n import pick_language


def ask(
    words: Annotated[list[str], typer.Argument()],
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Find the lesson and the call for an identifier, an error message or a question."""
    from minikv.course.ask import ask as find
    from minikv.course.ask import titled

    lang = pick_language(lang)
    answers = find(" ".join(words))
    if as_json:
        print(json.dumps(answers.as_dict(lang), indent=2, ensure_ascii=False))
    elif not answers.found:
        print(answers.shown(lang).text())
    else:
        # A table of three columns is wider than a terminal.
        for entry in answers.found:
            print(
                entry.asked[lang],
                *(part for part in (titled(entry.lesson, lang), entry.call) if part),
                sep="\n    ",
            )
    if not answers.found:
        raise typer.Exit(1)
