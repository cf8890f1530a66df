"""``minikv doctor``: what is on this machine, and what of the course would not work here."""

import json

import typer

from minikv.cli.options import Json, Lang
from minikv.course.machine import examine
from minikv.i18n import pick_language


def doctor(as_json: Json = False, lang: Lang = "en") -> None:
    """Say Python, torch, GPU, Triton, widgets and versions, and what would not work."""
    lang = pick_language(lang)
    findings = examine()
    if as_json:
        print(json.dumps([finding.as_dict(lang) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(finding.line(lang))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
