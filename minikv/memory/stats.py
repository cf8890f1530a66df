"""MemoryStats: the same nine figures of a GPU's memory and of the host's, each with its meaning. Lessons 07 and 08."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.memory.nvml import other_processes
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import KIB, format_bytes, gib

FIGURES = "total free used allocated reserved peak inactive_split non_torch others".split()


@dataclass(frozen=True)
class MemoryStats:
    """One device's memory at one moment. All figures are bytes; None where the device has no such figure.

    ================  ====================================  ======================================================
    field             on CUDA                               on a CPU
    ================  ====================================  ======================================================
    total             what the driver calls the device's    the machine's memory; a container's own limit is not
                      memory (``cudaMemGetInfo``)           seen
    free              what the driver could still give      what could be had without swapping ("available")
    used              total - free, by all processes        total - free, by all processes
    allocated         torch's live tensors, rounded up to   pages of this process in memory (RSS): Python, its
                      512 B each, in this process           libraries and all tensors; torch keeps no count here
    reserved          what torch's allocator took from the  address space of this process (VMS): ``torch.empty``
                      driver: allocated, and cached         takes some, the first touch makes it resident
    peak              the most that was ever ``allocated``  the most that was ever ``allocated`` since the start
                      since the last reset                  (None where the system does not say)
    inactive_split    cached rests of segments that a live  None: torch does not cache memory of a CPU
                      tensor keeps from going back
    non_torch         used - reserved: CUDA contexts, NCCL  used - allocated: the other processes and the system;
                      and libraries, other processes        pages that both share can make it negative
    others            what NVML says other processes hold   None: it is in ``non_torch``
                      (None: unknown, and ``nvml`` why)
    ================  ====================================  ======================================================
    """

    device: str
    total: int
    free: int
    allocated: int
    reserved: int
    peak: int | None
    inactive_split: int | None
    others: int | None = None
    nvml: str | None = None

    @classmethod
    def read(cls, device: torch.device | str = "cpu") -> "MemoryStats":
        """The figures of ``device`` now. Reading a GPU makes its CUDA context, if there is none yet.

        Raises ``ArgumentError`` for a device that is neither a CPU nor a CUDA device of this machine.
        """
        found = find_memory(device)
        return _read_cpu() if found.type == "cpu" else _read_cuda(found.index)

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def non_torch(self) -> int:
        return self.used - (self.allocated if self.kind == "cpu" else self.reserved)

    @property
    def kind(self) -> str:
        """ "cuda" or "cpu"."""
        return self.device.partition(":")[0]

    def as_dict(self) -> dict[str, Any]:
        """Device and figures as plain JSON values, bytes; ``nvml`` is why ``others`` is None."""
        return {"device": self.device} | {name: getattr(self, name) for name in FIGURES} | {"nvml": self.nvml}

    def shown(self, lang: str = "en") -> Shown:
        """A row for each figure: GiB, exact bytes, meaning, and its share of the device."""
        lang = pick_language(lang)
        rows, shares = [], []
        for name in FIGURES:
            value: int | None = getattr(self, name)
            numbers = ("-", "-") if value is None else (f"{gib(value):,.3f}", f"{value:,}")
            rows.append((name, *numbers, _say(f"{name}_{self.kind}", lang)))
            # A CPU's reserved bytes are addresses, not memory.
            address_space = name == "reserved" and self.kind == "cpu"
            shares.append(0.0 if value is None or address_space else value / self.total)
        lines = [] if self.nvml is None else [_say("nvml_silent", lang, reason=self.nvml)]
        head = ("", "GiB", _say("column_bytes", lang), _say("column_meaning", lang))
        return Shown(_say("title", lang, device=self.device), head, rows, (1, 2), lines, shares=shares)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        sizes = (
            f"{name} {format_bytes(getattr(self, name))}" for name in ("used", "free", "total", "allocated")
        )
        return one_line("MemoryStats", self.device, *sizes)


def find_memory(device: Any) -> torch.device:
    """``device`` with its index, if its memory can be read here: a CPU, or a CUDA device that exists.

    Raises ``ArgumentError`` for another one. Apple's GPU has a sentence of its own: mps has no float64, in which the
    sampler draws, and torch does not say how much of its memory is free.
    """
    try:
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, TypeError, ValueError, AssertionError):
        raise ArgumentError("arena_device", device=device) from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type == "mps":  # as good a device for torch, but not for us
        raise ArgumentError("device_mps")
    if found.type != "cuda" or found.index >= torch.cuda.device_count():
        raise ArgumentError("arena_device", device=device)
    return found


def _read_cuda(index: int) -> MemoryStats:
    free, total = torch.cuda.mem_get_info(index)
    counted = torch.cuda.memory_stats(index)  # empty before the first tensor
    others, reason = other_processes(index)
    return MemoryStats(
        device=f"cuda:{index}",
        total=total,
        free=free,
        allocated=counted.get("allocated_bytes.all.current", 0),
        reserved=counted.get("reserved_bytes.all.current", 0),
        peak=counted.get("allocated_bytes.all.peak", 0),
        inactive_split=counted.get("inactive_split_bytes.all.current", 0),
        others=others,
        nvml=reason,
    )


def _read_cpu() -> MemoryStats:
    machine, process = psutil.virtual_memory(), psutil.Process().memory_info()
    return MemoryStats(
        device="cpu",
        total=machine.total,
        free=machine.available,
        allocated=process.rss,
        reserved=process.vms,
        peak=_peak_rss(process),
        inactive_split=None,
    )


def _peak_rss(process: Any, status: Path = Path("/proc/self/status")) -> int | None:
    """The most bytes of this process that were ever resident at once, as the system counted them.

    psutil has the figure on Windows alone. Linux's ``getrusage`` also counts the program that the process ran before
    Python, so VmHWM is read instead. On macOS ``ru_maxrss`` is in bytes.
    """
    if sys.platform == "win32":
        return process.peak_wset
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("VmHWM:")), None)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"memory_stats.{key}", lang, **values)
