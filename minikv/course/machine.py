"""What is on this machine, for ``minikv doctor`` and lesson 00."""

import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from minikv.i18n import text
from minikv.units import format_bytes

OLDEST_PYTHON = (3, 11)
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"text": text(f"machine.{self.key}", "en", **self.values)}


def examine() -> list[Finding]:
    """Everything that the course depends on, in the order in which it would fail."""
    return [
        _python(),
        *map(_package, NEEDED),
        *map(_optional, OPTIONAL),
        _memory(),
        _gpu(),
        _kernels(),
        _widgets(),
    ]


def _python() -> Finding:
    state = "ok" if sys.version_info >= OLDEST_PYTHON else "missing"
    values = {
        "version": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
    return Finding("python", state, "python" if state == "ok" else "python_old", values)


def _package(name: str) -> Finding:
    least = NEEDED[name]
    found = _version(name)
    if found is None:
        return Finding(name, "missing", "absent", {"name": name, "least": least})
    if _numbers(found) < _numbers(least):
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


def _gpu() -> Finding:
    """The GPU as torch sees it: name, capability, and the memory that the planner calls total."""
    if _version("torch") is None:
        return Finding("gpu", "note", "gpu_unknown", {})
    import torch

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
    return Finding("gpu", "ok", "gpu", values)


def _kernels() -> Finding:
    """Whether Triton kernels would be compiled here, or the plain-torch references run instead."""
    if _version("triton") is None or _version("torch") is None:
        return Finding("kernels", "note", "kernels_reference", {})
    import torch

    if not torch.cuda.is_available():
        return Finding("kernels", "note", "kernels_reference", {})
    if torch.cuda.get_device_capability() < (7, 5):
        return Finding("kernels", "note", "kernels_old_gpu", {})
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


def _numbers(words: str) -> tuple[int, ...]:
    """ "5.23.0+cpu" as (5, 23, 0): enough to compare releases."""
    parts = words.split("+")[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts[:3])
