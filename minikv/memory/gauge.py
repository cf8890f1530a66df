"""Gauge: the bytes in use now, and the most since the last reset; cheap enough to be read after every step."""

import sys
from pathlib import Path
from typing import Protocol

import psutil
import torch

from minikv.memory.stats import MemoryStats, find_memory


class Gauge(Protocol):
    """A reader of memory in use. ``name`` is "torch" or "rss"; all figures are bytes."""

    name: str

    def now(self) -> int:
        """Bytes in use."""

    def peak(self) -> int | None:
        """The most since ``reset``; None where the system does not say."""

    def reset(self) -> None:
        """Restart the peak from here. Other readers of this process's peak see it restart, too."""


def gauge(device: torch.device | str) -> Gauge:
    """The gauge of a device. Raises ``ArgumentError`` for one that is neither a CPU nor a CUDA device."""
    found = find_memory(device)
    return ResidentGauge() if found.type == "cpu" else AllocatedGauge(found)


class AllocatedGauge:
    """Torch's live tensors on a GPU, as its caching allocator counts them (``allocated_bytes.all``)."""

    name = "torch"

    def __init__(self, device: torch.device):
        self._device = device

    def now(self) -> int:
        torch.cuda.synchronize(self._device)  # so that a clock read next measures the GPU, not the launch
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)


class ResidentGauge:
    """The resident set of this process (RSS): Python, libraries and all tensors, and freed ones that malloc keeps.

    The peak is the kernel's own mark (VmHWM), which Linux resets when 5 is written to ``clear_refs``
    (kernel.org, filesystems/proc). Elsewhere, and where a container forbids it, the peak is None.
    """

    name = "rss"

    def __init__(self, clear: Path = Path("/proc/self/clear_refs")):
        self._clear = clear
        self._process = psutil.Process()
        self._has_peak = sys.platform == "linux"

    def now(self) -> int:
        return self._process.memory_info().rss

    def peak(self) -> int | None:
        return MemoryStats.read("cpu").peak if self._has_peak else None

    def reset(self) -> None:
        if self._has_peak:
            try:
                self._clear.write_text("5")
            except OSError:
                self._has_peak = False
