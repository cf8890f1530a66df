"""Calibrate: fit a clock's assumptions to measured steps.

    with LLM(model, emit=log) as llm: ...                        # a run on this machine, log = EventLog()
    clock = StepTime.of_model(config, roof)                      # its roof, measured or from a data sheet
    fitted = calibrate(clock, measured_steps(log.events, clock.cost))
    fitted.step_time.assumptions, fitted.error                   # the clock to plan with, and its error

A step of F FLOPs and B bytes takes max(a F, b B) + c, and the all-reduce on top. The roof bounds a and b from below; c
is at least 0. Once it is fixed which term is the longer in each step, this is a linear least-squares problem of three
unknowns. Its errors are relative, so that short steps count as much as long ones. The fit alternates: compare the
terms, solve, until no comparison changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from minikv.engine.ext.events import AnyEvent, StepEvent
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.plan.step_work import StepCost, StepWork
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.simulate.step_time import StepTime

ROUNDS = 50  # of comparing and solving, at most; a handful is usual


@dataclass(frozen=True)
class MeasuredStep:
    """A step's work and the seconds that it took."""

    work: StepWork
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """``step_time`` has the assumptions that fit ``count`` steps best.

    ``error`` is the median of |said - measured| / measured, ``worst`` the largest, ``before`` the median of the clock
    that was given. ``bound`` steps are bound by compute, the others by bandwidth. An efficiency that bounds no step
    keeps the value that was given.
    """

    step_time: StepTime
    count: int
    error: float
    worst: float
    before: float
    bound: int

    def shown(self, lang: str = "en") -> Shown:
        """The errors of the fitted clock, and its assumptions."""
        lang = pick_language(lang)
        errors = {"error": self.error, "worst": self.worst, "before": self.before}
        title = text("fleet.calibration", lang, count=self.count, **errors)
        bound = text("fleet.calibration_bound", lang, compute=self.bound, bandwidth=self.count - self.bound)
        return Shown(title, lines=(bound, *self.step_time.assumptions.explain(lang)))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        errors = f"median error {self.error:.1%}", f"worst {self.worst:.1%}", f"before {self.before:.1%}"
        return one_line("Calibration", "", f"{self.count:,} steps", *errors)


def measured_steps(events: Sequence[AnyEvent], cost: StepCost) -> list[MeasuredStep]:
    """The steps of a run with work that follows from its events: decodes alone, and prefills of one sequence alone.

    A step's event counts tokens and blocks, not contexts. The contexts of a step of decodes add up to the filled
    slots, if no two sequences share a block. The chunk of a sequence that runs alone ends with its last slot. The
    model must have no windows. Steps with drafts, failures, or transfers in front of them are left out.
    """
    if len(cost.attention) > 1 or cost.attention[0].window is not None:
        raise ArgumentError("calibrate_windows", name=cost.name)
    steps, moved = [], False
    for event in events:
        if not isinstance(event, StepEvent):
            moved = moved or event.kind in ("swap_out", "swap_in", "host_hit", "preempt")
            continue
        tokens = event.prefill_tokens + event.decode_tokens
        held = event.used[0] * event.block_size - event.wasted_slots[0]
        alone = event.decode_tokens == event.running or (event.running == 1 and held >= tokens)
        if alone and tokens and event.seconds > 0 and not (moved or event.failed or event.drafted):
            if event.prefill_tokens:
                work = cost.work(prefill=[(held - tokens, held)])
            else:
                work = cost.counted(tokens, event.running, (held,), (held,))
            steps.append(MeasuredStep(work, event.seconds))
        moved = False
    return steps


def calibrate(step_time: StepTime, steps: Sequence[MeasuredStep]) -> Calibration:
    """The efficiencies and the overhead that fit ``steps`` best. Raises ``ArgumentError`` for fewer than three."""
    if len(steps) < 3:
        raise ArgumentError("calibrate_few", count=len(steps))
    measured = np.array([step.seconds for step in steps])
    link = np.array([step_time.link_seconds(step.work.reduced_bytes) for step in steps])
    # The least time of each term: at the full rates of the roof.
    compute = np.array([step.work.flops for step in steps]) / (step_time.roof.tflops * 1e12)
    moving = np.array([step.work.num_bytes for step in steps]) / (step_time.roof.bandwidth_gb_s * 1e9)
    given = step_time.assumptions
    a, b, c = 1 / given.compute_efficiency, 1 / given.bandwidth_efficiency, given.overhead_seconds

    def said() -> np.ndarray:
        return np.maximum(a * compute, b * moving) + c + link

    before = np.abs(said() - measured) / measured
    best, best_error = (a, b, c), np.inf
    longer = None
    for _ in range(ROUNDS):
        now = a * compute > b * moving
        if longer is not None and (now == longer).all():
            break
        longer = now
        columns = np.stack([np.where(now, compute, 0), np.where(now, 0, moving), np.ones(len(steps))], axis=1)
        fitted = _bounded(columns / measured[:, None], (measured - link) / measured)
        a, b = (fitted[0] if now.any() else a), (b if now.all() else fitted[1])
        c = fitted[2]
        error = float((((said() - measured) / measured) ** 2).sum())
        if error < best_error:
            best, best_error = (a, b, c), error
    a, b, c = best
    errors = np.abs(said() - measured) / measured
    assumed = replace(given, compute_efficiency=1 / a, bandwidth_efficiency=1 / b, overhead_seconds=c)
    bound = int((a * compute > b * moving).sum())
    return Calibration(
        step_time.with_assumptions(assumed),
        len(steps),
        float(np.median(errors)),
        float(errors.max()),
        float(np.median(before)),
        bound,
    )


def _bounded(columns: np.ndarray, due: np.ndarray) -> tuple[float, float, float]:
    """(a, b, c) with the least squared error, a and b at least 1, c at least 0. Tries every set of active bounds."""
    bounds = np.array([1.0, 1.0, 0.0])
    best, best_error = bounds, np.inf
    for free in product((False, True), repeat=3):
        chosen = np.array(free)
        values = bounds.copy()
        if chosen.any():
            rest = due - columns[:, ~chosen] @ bounds[~chosen]
            values[chosen] = np.linalg.lstsq(columns[:, chosen], rest, rcond=None)[0]
        error = float(((columns @ values - due) ** 2).sum())
        if (values >= bounds).all() and error < best_error:
            best, best_error = values, error
    a, b, c = best.tolist()
    return a, b, c
