"""What is on this machine, for ``minikv doctor`` and lesson 00."""

import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil
from packaging.version import InvalidVersion, Version

from minikv.i18n import text
from minikv.units import format_bytes

NEEDED = {"torch": "2.8", "transformers": "5.15", "ipywidgets": "7.7", "anywidget": "0.9.21", "plotly": "6"}
OPTIONAL = ("jupyterlab", "triton", "accelerate")


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``state``: "ok", "note" (something will be slower or absent) or "missing"."""

    topic: str
    state: str
    key: str
    values: dict[str, Any]

    def line(self, lang: str) -> str:
        mark = {"ok": "ok  ", "note": "note", "missing": "MISS"}[self.state]
        return f"[{mark}] {text(f'machine.{self.key}', lang, **self.values)}"

    def as_dict(self, lang: str) -> dict[str, Any]:
        return asdict(self) | {"text": text(f"machine.{self.key}", lang, **self.values)}


def examine() -> list[Finding]:
    """Everything that the course depends on, in the order in which it would fail. Never raises."""
    torch, reason = _import_torch()
    packages = [_package(name) for name in NEEDED]
    if reason is not None:
        broken = {"name": "torch", "found": _version("torch"), "reason": reason}
        packages[0] = Finding("torch", "missing", "broken", broken)
    gpu = _gpu(torch)
    return [
        _python(),
        *packages,
        *map(_optional, OPTIONAL),
        _memory(),
        gpu,
        _kernels(gpu),
        _widgets(),
    ]


def _import_torch() -> tuple[Any, str | None]:
    """torch itself, or None and the reason why it cannot be imported (None where it is not installed)."""
    if _version("torch") is None:
        return None, None
    try:
        import torch
    except Exception as error:  # a missing libcudart is an OSError, a wrong build may raise anything
        return None, _one_line(error)
    return torch, None


def _python() -> Finding:
    """Only a Python that is new enough comes so far: an older one cannot import minikv."""
    values = {
        "version": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
    return Finding("python", "ok", "python", values)


def _package(name: str) -> Finding:
    least = NEEDED[name]
    found = _version(name)
    if found is None:
        return Finding(name, "missing", "absent", {"name": name, "least": least})
    if _is_older(found, least):
        return Finding(name, "missing", "too_old", {"name": name, "found": found, "least": least})
    return Finding(name, "ok", "present", {"name": name, "found": found})


def _optional(name: str) -> Finding:
    found = _version(name)
    if found is None:
        return Finding(name, "note", f"without_{name}", {})
    return Finding(name, "ok", "present", {"name": name, "found": found})


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=True)
    values = {"cores": cores, "total": format_bytes(memory.total), "free": format_bytes(memory.available)}
    return Finding("memory", "ok", "memory", values)


def _gpu(torch: Any) -> Finding:
    """The GPU as torch sees it: name, capability, and the memory that the planner calls total."""
    if torch is None:
        return Finding("gpu", "note", "gpu_unknown", {})
    try:
        if not torch.cuda.is_available():
            return Finding("gpu", "note", "no_gpu", {})
        free, total = torch.cuda.mem_get_info()
        major, minor = torch.cuda.get_device_capability()
        values = {
            "name": torch.cuda.get_device_name(),
            "count": torch.cuda.device_count(),
            "capability": f"{major}.{minor}",
            "total": format_bytes(total),
            "total_bytes": total,
            "free": format_bytes(free),
        }
    except Exception as error:  # "devices are busy or unavailable" and its like, of several classes
        return Finding("gpu", "note", "gpu_fails", {"reason": _one_line(error)})
    return Finding("gpu", "ok", "gpu", values)


def _kernels(gpu: Finding) -> Finding:
    """Whether Triton kernels would be compiled here, or the plain-torch references run instead."""
    if _version("triton") is None or gpu.state != "ok":
        return Finding("kernels", "note", "kernels_reference", {})
    capability = Version(gpu.values["capability"])
    if capability < Version("7.5"):
        return Finding("kernels", "note", "kernels_old_gpu", {})
    if capability < Version("8.0"):
        return Finding("kernels", "note", "kernels_no_bf16", {})
    return Finding("kernels", "ok", "kernels_compiled", {})


def _widgets() -> Finding:
    """Where the live widgets will be drawn."""
    if "google.colab" in sys.modules:
        return Finding("widgets", "ok", "widgets_colab", {})
    if _version("jupyterlab") is None:
        return Finding("widgets", "note", "widgets_elsewhere", {})
    return Finding("widgets", "ok", "widgets_lab", {})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_older(found: str, least: str) -> bool:
    """As pip compares: 2.8.0rc1 is older than 2.8, 2.8.0+cpu is not. A version of no known form passes."""
    try:
        return Version(found) < Version(least)
    except InvalidVersion:
        return False


def _one_line(error: Exception) -> str:
    """The first line of what an error says, after its class; torch adds pages of advice."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
