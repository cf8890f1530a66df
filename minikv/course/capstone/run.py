"""Run: the result of a plan. Lesson 18."""

from dataclasses import dataclass
from functools import cached_property

from minikv.course.capstone.clock import TimedStep
from minikv.course.capstone.plan import Plan
from minikv.engine.outputs import RequestOutput
from minikv.engine.serve.metrics import Metrics
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes


@dataclass(frozen=True, eq=False)
class Run:
    """A task served by ``plan``. All seconds are those of the task's clock, except ``wall_s``.

    - ``right`` of the ``asked`` answer tokens are right; ``bar`` is the share that the task requires.
    - ``held_bytes`` of the cache and eviction's records, of ``kv_bytes``; ``num_blocks`` of the KV cache group without
      a window.
    - ``timed``: each step; ``outputs`` and ``arrivals`` of the requests, in the order of the task.
    - ``metrics``: the sums of the engine's events (``minikv.engine.summary``).
    """

    task_id: str
    model: str
    device: str
    plan: Plan
    num_blocks: int
    held_bytes: int
    kv_bytes: int
    bar: float
    right: int
    asked: int
    floor_seconds: float
    wall_s: float
    timed: tuple[TimedStep, ...]
    outputs: tuple[RequestOutput, ...]
    arrivals: tuple[float, ...]
    metrics: Metrics

    @property
    def seconds(self) -> float:
        """From the task's zero to the end of the last step."""
        return self.timed[-1].ends

    @property
    def steps(self) -> int:
        return len(self.timed)

    @property
    def quality(self) -> float:
        """Of 1; 1 where nothing was asked."""
        return self.right / self.asked if self.asked else 1.0

    @property
    def passed(self) -> bool:
        """Whether the run reaches the bar and keeps the budget."""
        return self.quality >= self.bar and self.held_bytes <= self.kv_bytes

    @property
    def score(self) -> float:
        """0 to 100: the share of ``seconds`` that no plan can save; 0 for a run that has not passed."""
        return 100 * self.floor_seconds / self.seconds if self.passed else 0.0

    @property
    def preemptions(self) -> int:
        return self.metrics.preemptions

    @property
    def hit_rate(self) -> float:
        """The share of the prefill's tokens that the prefix cache had, of 1."""
        return self.metrics.hit_rate

    @property
    def evicted_tokens(self) -> int:
        return self.metrics.evicted_tokens

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through a forward, recomputed ones and rejected drafts included."""
        return self.metrics.computed_tokens

    @cached_property
    def ttft(self) -> tuple[float, ...]:
        """Seconds from arrival to first token, of each request in order."""
        return tuple(output.timing.ttft or 0.0 for output in self.outputs)

    @cached_property
    def finish(self) -> tuple[float, ...]:
        """The second of the last token, of each request in order."""
        pairs = zip(self.arrivals, self.outputs, strict=True)
        return tuple(arrival + output.timing.total for arrival, output in pairs)

    @cached_property
    def where(self) -> dict[str, float]:
        """The seconds by cause: "compute" (steps bound by FLOPs), "bandwidth" (steps bound by bytes), "overhead",
        "moved" (copies, evictions, transfers), "idle" (no request). They add up to ``seconds``, up to rounding.
        """
        where = dict.fromkeys(("compute", "bandwidth", "overhead", "moved"), 0.0)
        for step in self.timed:
            longer = "compute" if step.parts.compute > step.parts.bandwidth else "bandwidth"
            where[longer] += max(step.parts.compute, step.parts.bandwidth)
            where["overhead"] += step.parts.overhead + step.parts.link
            where["moved"] += step.moved
        return where | {"idle": max(0.0, self.seconds - sum(where.values()))}

    def shown(self, lang: str = "en") -> Shown:
        """The score and its parts."""
        from minikv.course.capstone.words import explain_run  # the sentences are needed only here

        title, *lines = explain_run(self, lang).splitlines()
        return Shown(title, lines=lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        answers = f"{self.right:,} of {self.asked:,} tokens right"
        held = f"{format_bytes(self.held_bytes)} of {format_bytes(self.kv_bytes)}"
        return one_line(
            "Run", self.task_id, f"score {self.score:.1f}", f"{self.seconds:.3f} s", answers, held
        )
