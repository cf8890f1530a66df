"""MemoryTimeline: a device's memory over time, with names at the moments that matter. Lesson 08.

>>> with MemoryTimeline("cpu") as timeline:
...     _ = timeline.mark("load")
>>> [sample.name for sample in timeline.samples if sample.name]
['start', 'load', 'stop']
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.memory.stats import MemoryStats, find_memory
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes

MAX_HZ = 5  # a sample asks the driver and NVML; more of them would disturb the measurement


@dataclass(frozen=True)
class Sample:
    """``stats`` at ``seconds`` after the start; ``name`` is the mark, or None for one of the regular samples."""

    seconds: float
    name: str | None
    stats: MemoryStats


class Clock(Protocol):
    """The time in seconds, and a wait that ends early, with True, once ``stop`` is set."""

    def now(self) -> float: ...

    def wait(self, stop: threading.Event, seconds: float) -> bool: ...


class _RealClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)


class MemoryTimeline:
    """Samples ``device`` ``hz`` times a second (more than 0, at most 5) inside a ``with`` block, once.

    A thread of its own takes the regular samples; ``start``, ``mark(name)`` and ``stop`` are read in the caller's
    thread, at that very moment. Samples miss what rises and falls between them, but ``stats.peak`` has it. The thread
    ends with the block, also when the block raises. An error of reading ends the sampling: it is kept as ``error``, and
    is raised at the end of the block unless the block raises one.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        hz: float = MAX_HZ,
        *,
        read: Callable[[torch.device], MemoryStats] = MemoryStats.read,
        clock: Clock | None = None,
    ):
        self.device = find_memory(device)
        if isinstance(hz, bool) or not isinstance(hz, int | float) or not 0 < hz <= MAX_HZ:
            raise ArgumentError("out_of_range", what="hz", value=hz, low=0, high=MAX_HZ)
        self.hz = hz
        self.error: Exception | None = None
        self._read, self._clock = read, clock or _RealClock()
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._began: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Everything sampled so far, in order of time."""
        with self._lock:
            return tuple(self._samples)

    def shown(self, lang: str = "en") -> Shown:
        """A row for each named moment: seconds, and the bytes used and allocated then."""
        lang, samples = pick_language(lang), self.samples
        names = ("seconds", "used", "used_bytes", "allocated", "allocated_bytes")
        head = ("", *(_say(f"column_{name}", lang) for name in names))
        rows = []
        for sample in samples:
            if sample.name is not None:
                sizes = (sample.stats.used, sample.stats.allocated)
                figures = [figure for size in sizes for figure in (format_bytes(size), f"{size:,}")]
                rows.append((sample.name, f"{sample.seconds:,.3f}", *figures))
        title = _say("title", lang, device=str(self.device), count=len(samples), hz=self.hz)
        return Shown(title, head, rows, range(1, len(head)))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        samples = self.samples
        named = [sample.name for sample in samples if sample.name is not None]
        seconds = samples[-1].seconds if samples else 0.0
        told = f"{len(samples):,} samples in {seconds:,.3f} s"
        return one_line("MemoryTimeline", str(self.device), told, f"{len(named)} named", *named[:4])

    def mark(self, name: str) -> Sample:
        """Sample now and name the moment ``name``. Only inside the ``with`` block."""
        if not isinstance(name, str) or not name:
            raise ArgumentError("timeline_name", name=name)
        if self._thread is None:
            raise ArgumentError("timeline_not_running", name=name)
        return self._sample(name)

    def __enter__(self) -> "MemoryTimeline":
        if self._began is not None:
            raise ArgumentError("timeline_used")
        self._sample("start")
        thread = threading.Thread(target=self._run, name="minikv memory timeline", daemon=True)
        thread.start()
        self._thread = thread
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None and self.error is None:
                self._sample("stop")
        finally:
            self._stop.set()
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.join()
        if error is None and self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._clock.wait(self._stop, 1 / self.hz):
                self._sample(None)
        except Exception as error:  # any error of the driver goes to the caller's thread, not to stderr
            self.error = error

    def _sample(self, name: str | None) -> Sample:
        """Read under the lock, so that samples are in order of time."""
        with self._lock:
            now = self._clock.now()
            sample = Sample(0.0 if self._began is None else now - self._began, name, self._read(self.device))
            if self._began is None:
                self._began = now
            self._samples.append(sample)
        return sample


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"memory_stats.timeline_{key}", lang, **values)
