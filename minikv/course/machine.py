"""The hardware and packages of this machine, for ``minikv doctor`` and lesson 00."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import psutil
from packaging.version import Version

from minikv.course.finding import Finding
from minikv.course.packages import installed, package_findings
from minikv.i18n import pick_language
from minikv.kernels.c_library import find_compiler
from minikv.shown import Shown
from minikv.units import format_bytes


def examine() -> list[Finding]:
    """Everything that the course depends on, in the order in which it would fail. Never raises."""
    torch, reason = _import_torch()
    packages = package_findings()
    if reason is not None:
        broken = {"name": "torch", "found": installed("torch"), "reason": reason}
        packages[0] = Finding("torch", "missing", "broken", broken)
    gpu = _gpu(torch)
    return [_python(), *packages, _memory(), gpu, *_nvml(gpu), _kernels(gpu), _widgets()]


def examined(lang: str = "en") -> Shown:
    """The same as a table: a state and a sentence a row."""
    lang = pick_language(lang)
    return Shown("", rows=[(finding.state, finding.text(lang)) for finding in examine()])


def _import_torch() -> tuple[Any, str | None]:
    """torch itself, or None and the reason why it cannot be imported (None where it is not installed)."""
    if installed("torch") is None:
        return None, None
    try:
        import torch
    except Exception as error:  # a missing libcudart is an OSError, a wrong build may raise anything
        return None, _one_line(error)
    return torch, None


def _python() -> Finding:
    """The version of Python. It is new enough: an older one cannot import minikv."""
    values = {
        "version": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
    return Finding("python", "ok", "python", values)


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


def _nvml(gpu: Finding) -> list[Finding]:
    """A line where there is a GPU, but the driver's library cannot list the processes with memory on it."""
    if gpu.state != "ok" or installed("nvidia-ml-py") is None:
        return []
    from minikv.memory.nvml import other_processes

    _, reason = other_processes(0)
    return [] if reason is None else [Finding("nvml", "note", "nvml_silent", {"reason": reason})]


def _kernels(gpu: Finding) -> Finding:
    """Whether Triton kernels would be compiled here, or the CPU's in C, or the plain-torch references run instead."""
    chosen = os.environ.get("MINIKV_KERNELS")
    if chosen:
        return Finding("kernels", "note", "kernels_chosen", {"chosen": chosen})
    if installed("triton") is None or gpu.state != "ok":
        compiler = find_compiler() if gpu.key == "no_gpu" else None
        if compiler is not None:
            return Finding("kernels", "ok", "kernels_c", {"compiler": Path(compiler[0]).name})
        return Finding("kernels", "note", "kernels_reference", {})
    capability = Version(gpu.values["capability"])
    if capability < Version("7.5"):
        return Finding("kernels", "note", "kernels_old_gpu", {})
    if capability < Version("8.0"):
        return Finding("kernels", "note", "kernels_no_bf16", {})
    return Finding("kernels", "ok", "kernels_compiled", {})


def _widgets() -> Finding:
    """The place where live widgets are drawn: Colab, JupyterLab, or another page."""
    if "google.colab" in sys.modules:
        return Finding("widgets", "ok", "widgets_colab", {})
    if installed("jupyterlab") is None:
        return Finding("widgets", "note", "widgets_elsewhere", {})
    return Finding("widgets", "ok", "widgets_lab", {})


def _one_line(error: Exception) -> str:
    """The class and the first line of an error; torch adds pages of advice."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
