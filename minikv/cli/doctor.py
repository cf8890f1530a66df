"""``minikv doctor``: the hardware and packages of this machine, and the parts of the course that fail here.

``--model`` holds a decoder against its own ``generate()`` instead: ``minikv/engine/model_check.py``.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from minikv.cli.options import Json, Lang
from minikv.errors import ArgumentError
from minikv.extras import require_engine
from minikv.i18n import pick_language, text

if TYPE_CHECKING:
    from minikv.memory import MemoryStats


def doctor(
    memory: Annotated[bool, typer.Option("--memory")] = False,
    smoke: Annotated[
        bool,
        typer.Option("--smoke"),
    ] = False,
    model: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Say Python, torch, GPU, Triton, widgets and versions, and what would not work."""
    lang = pick_language(lang)
    if smoke + memory + (model is not None) > 1:
        raise ArgumentError("doctor_two")
    if model is None and (dtype, device) != ("auto", "auto"):
        raise ArgumentError("doctor_device")
    if smoke:
        _smoke(as_json, lang)
        return
    if model is not None:
        _model(model, dtype, device, as_json, lang)
        return
    from minikv.course.machine import examine

    findings = examine()
    torch_works = not any(finding.topic == "torch" and finding.state == "missing" for finding in findings)
    gpu_works = any(finding.topic == "gpu" and finding.state == "ok" for finding in findings)
    # A torch that fails is a finding already, and memory cannot be read without it.
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


def _smoke(as_json: bool, lang: str) -> None:
    """Print a line a check, as soon as it is made, and the seconds of all; exit code 1 if one has failed.

    The imports are timed apart: torch alone takes longer than all checks.
    """
    require_engine()
    began = time.perf_counter()
    try:
        import torch  # noqa: F401
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ArgumentError("doctor_torch", reason=reason) from error
    from minikv.eviction.study.smoke import smoke

    ready = time.perf_counter()
    checks = []
    for check in smoke():
        checks.append(check)
        if not as_json:
            print(check.line(lang), flush=True)
    times = {"import_seconds": ready - began, "seconds": time.perf_counter() - ready}
    failed = sum(not check.passed for check in checks)
    if as_json:
        told = {"checks": [check.as_dict(lang) for check in checks], "failed": failed, **times}
        print(json.dumps(told, indent=2))
    else:
        print(text("eviction.smoke_end", lang, count=len(checks), failed=failed, **times))
    if failed:
        raise typer.Exit(1)


def _model(name: str, dtype: str, device: str, as_json: bool, lang: str) -> None:
    """Print a line a check, as soon as it is made; exit code 1 if one has failed, 2 if the model is refused."""
    require_engine()
    began = time.perf_counter()
    from minikv.engine.model_check import check_model
    from minikv.models import load

    loaded = load(name, dtype=dtype, device=device)
    ready = time.perf_counter()
    checks = []
    for check in check_model(loaded):
        checks.append(check)
        if not as_json:
            print(check.line(lang), flush=True)
    failed = sum(check.state == "failed" for check in checks)
    times = {"load_seconds": ready - began, "seconds": time.perf_counter() - ready}
    if as_json:
        told = {"model": name, "checks": [check.as_dict(lang) for check in checks], "failed": failed, **times}
        print(json.dumps(told, indent=2))
    else:
        print(text("models.held_end", lang, name=name, count=len(checks), failed=failed, **times))
    note = loaded.note(lang)
    if note is not None:
        print(note, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _memory(gpu_works: bool) -> list["MemoryStats"]:
    """The memory of the host and of every GPU."""
    import torch

    from minikv.memory import MemoryStats

    gpus = torch.cuda.device_count() if gpu_works else 0
    return [MemoryStats.read(device) for device in ("cpu", *(f"cuda:{index}" for index in range(gpus)))]
