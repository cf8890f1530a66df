"""Profiler: the bytes and milliseconds of each phase of a run, from the first import to the last decode.

import      the libraries, except torch, which is needed to measure
load        the weights come from disk, and to the device; with the code of the model's own class
warmup      a forward without a cache; the first one also makes what libraries make once
allocate    the LLM: its cache is made, after the allocator's own measurement where a GPU's size is measured
prefill     the steps that computed tokens of prompts, with the decodes that ran beside them
decode      the other steps
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from minikv.engine.ext.events import AnyEvent, StepEvent
from minikv.i18n import pick_language, text
from minikv.memory.gauge import gauge
from minikv.memory.stats import find_memory
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes


@dataclass(frozen=True)
class Phase:
    """One phase: its ``seconds``, and the bytes measured ``before`` it, ``after`` it, and at its ``peak``.

    ``peak`` is None where the system does not report one. ``tokens`` were computed in it, None where they do not
    measure it. ``steps`` are the engine's, 0 before it exists.
    """

    name: str
    seconds: float
    before: int
    after: int
    peak: int | None
    tokens: int | None = None
    steps: int = 0


@dataclass(frozen=True)
class Profile:
    """The phases of a run in order. ``instrument`` is "torch" (its live tensors on a GPU) or "rss" (this process)."""

    device: str
    instrument: str
    phases: tuple[Phase, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; bytes are integers, and each phase has its seconds as ``ms``, too."""
        phases = [asdict(phase) | {"ms": 1000 * phase.seconds} for phase in self.phases]
        return {"device": self.device, "instrument": self.instrument, "phases": phases}

    def shown(self, lang: str = "en") -> Shown:
        """Return a row for each phase, and how it was measured."""
        lang = pick_language(lang)
        heads = ("ms", "steps", "tokens", "before", "after", "peak")
        rows = []
        for phase in self.phases:
            rows.append(
                (
                    _say(f"phase_{phase.name}", lang),
                    f"{1000 * phase.seconds:,.1f}",
                    f"{phase.steps:,}" if phase.steps else "-",
                    "-" if phase.tokens is None else f"{phase.tokens:,}",
                    format_bytes(phase.before),
                    format_bytes(phase.after),
                    "-" if phase.peak is None else format_bytes(phase.peak),
                )
            )
        lines = [_say(f"how_{self.instrument}", lang)]
        if any(phase.peak is None for phase in self.phases):
            lines.append(_say("no_peak", lang))
        names = ("", *(_say(f"column_{head}", lang) for head in heads))
        return Shown(_say("title", lang, device=self.device), names, rows, range(1, len(names)), lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        told = (f"{phase.name} {1000 * phase.seconds:,.0f} ms" for phase in self.phases)
        return one_line("Profile", self.device, *told)


class Profiler:
    """Measures phases one after the other; between them it takes the steps' events: ``LLM(..., emit=profiler)``.

    The peak is reset before each phase and after each step, so this process's own peak is lost. A step's seconds are
    those between ``schedule`` and ``finish``, without the measurements.

    Raises ``ArgumentError`` for a device that is neither a CPU nor a CUDA device of this machine.
    """

    def __init__(self, device: torch.device | str):
        self._gauge = gauge(device)
        self._device = str(find_memory(device))
        self._phases: dict[str, Phase] = {}
        self._gauge.reset()
        self._last = self._gauge.now()

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[None]:
        """Measure a ``with`` block as the phase ``name``, "import" to "allocate". Nothing is kept if it raises."""
        self._gauge.reset()
        before, began = self._gauge.now(), perf_counter()
        yield
        after = self._gauge.now()
        seconds = perf_counter() - began
        self._phases[name] = Phase(name, seconds, before, after, self._gauge.peak(), tokens)
        self._gauge.reset()
        self._last = after

    def __call__(self, event: AnyEvent) -> None:
        """Count a step as "prefill" or "decode"; ignore other events."""
        if not isinstance(event, StepEvent):
            return
        name = "prefill" if event.prefill_tokens else "decode"
        after, peak = self._gauge.now(), self._gauge.peak()
        so_far = self._phases.get(name, Phase(name, 0.0, self._last, 0, peak, tokens=0))
        self._phases[name] = Phase(
            name,
            so_far.seconds + event.seconds,
            so_far.before,
            after,
            None if peak is None or so_far.peak is None else max(peak, so_far.peak),
            (so_far.tokens or 0) + event.prefill_tokens + event.decode_tokens,
            so_far.steps + 1,
        )
        self._gauge.reset()
        self._last = after

    def profile(self) -> Profile:
        """Return the measurements so far."""
        return Profile(self._device, self._gauge.name, tuple(self._phases.values()))


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"engine.profile_{key}", lang, **values)
