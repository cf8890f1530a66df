"""``minikv doctor``: what is on this machine, and what of the course would not work here."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from minikv.cli.options import Json, Lang
from minikv.course.machine import examine
from minikv.i18n import pick_language

if TYPE_CHECKING:
    from minikv.memory import MemoryStats


def doctor(
    memory: Annotated[
        bool, typer.Option("--memory", help="Also where every byte of the host and of each GPU is now.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Say Python, torch, GPU, Triton, widgets and versions, and what would not work."""
    lang = pick_language(lang)
    findings = examine()
    torch_works = not any(finding.topic == "torch" and finding.state == "missing" for finding in findings)
    gpu_works = any(finding.topic == "gpu" and finding.state == "ok" for finding in findings)
    # A torch that fails is a finding already; then there is nobody to ask.
    stats = _memory(gpu_works) if memory and torch_works else []
    if as_json:
        told: object = [finding.as_dict(lang) for finding in findings]
        if memory:
            told = {"findings": told, "memory": [one.as_dict() for one in stats]}
        print(json.dumps(told, indent=2))
    else:
        for finding in findings:
            print(finding.line(lang))
        for one in stats:
            print("\n" + one.text(lang))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _memory(gpu_works: bool) -> list["MemoryStats"]:
    """The host's memory, and that of every GPU."""
    import torch

    from minikv.memory import MemoryStats

    gpus = torch.cuda.device_count() if gpu_works else 0
    return [MemoryStats.read(device) for device in ("cpu", *(f"cuda:{index}" for index in range(gpus)))]
