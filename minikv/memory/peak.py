"""measure_peak: the most memory alive at once while a function ran, beyond what was alive before. Lesson 08."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import profiler

from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.memory.stats import find_memory
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class PeakReport:
    """Bytes of live tensors on ``device``: ``before`` a function ran, at the ``peak``, and ``after`` it.

    On CUDA these are the caching allocator's own absolute counts (``allocated_bytes.all``). On a CPU torch keeps no
    count, so the figures start at the measurement: ``before`` is 0, ``peak`` equals ``extra``.
    ``extra`` means the same on both.
    """

    device: str
    before: int
    peak: int
    after: int

    @property
    def extra(self) -> int:
        """The most bytes alive at once beyond ``before``: the need of the function."""
        return self.peak - self.before

    @property
    def kept(self) -> int:
        """Bytes still alive afterwards, beyond ``before``. Negative where the function freed more than it kept."""
        return self.after - self.before

    def shown(self, lang: str = "en") -> Shown:
        """Two lines: the figures, and how they were measured."""
        lang = pick_language(lang)
        kind = self.device.partition(":")[0]
        values = {"extra": exact_bytes(self.extra), "kept": exact_bytes(self.kept)}
        values |= {"before": f"{self.before:,}", "peak": f"{self.peak:,}", "after": f"{self.after:,}"}
        title = text("memory_stats.peak", lang, device=self.device, **values)
        return Shown(title, lines=(text(f"memory_stats.peak_how_{kind}", lang),))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        sizes = (
            f"{name} {format_bytes(getattr(self, name))}" for name in ("extra", "kept", "before", "peak")
        )
        return one_line("PeakReport", self.device, *sizes)


def measure_peak(fn: Callable[[], Any], device: torch.device | str | None = None) -> PeakReport:
    """Call ``fn()``, drop its result, and report how much more memory than before was alive at the highest point.

    ``device`` None is the current GPU, or the CPU where there is none. On CUDA the measurement waits for queued work,
    empties the cache before and after, and resets the peak, so the program's own peak is lost. On a CPU torch's
    profiler counts every allocation of the calling thread, temporaries inside an operation included. It does not see
    other threads, numpy, or memory from before that ``fn`` frees: the peak is too high by as much.

    Errors of ``fn`` reach the caller. Raises ``ArgumentError`` for a device without figures, and on a CPU inside
    another torch profile, which would be spoilt.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = find_memory(device)
    if not callable(fn):
        raise ArgumentError("peak_not_callable", kind=type(fn).__name__)
    return _measure_cpu(fn) if found.type == "cpu" else _measure_cuda(fn, found)


def _measure_cuda(fn: Callable[[], Any], device: torch.device) -> PeakReport:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        fn()
        torch.cuda.synchronize(device)
        peak, after = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    finally:
        torch.cuda.empty_cache()
    return PeakReport(str(device), before, peak, after)


def _measure_cpu(fn: Callable[[], Any]) -> PeakReport:
    if torch.autograd._profiler_enabled():
        raise ArgumentError("peak_profiler_on")
    with profiler.profile(use_kineto=True, profile_memory=True) as profile:
        fn()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return PeakReport("cpu", 0, peak, live)
