"""The task's clock: a step takes the roofline's time for the tokens that it really computes. Lesson 18.

Nothing is timed, so a score is the same on every machine. The clock counts the weights, the cache that is read (after
an eviction only the resident tokens), the FLOPs and the overhead, as ``StepTime`` does. It counts tokens and blocks
moved on the device, as a read and a write, and transfers to and from host memory, for which the step waits. It leaves
out the scores of an eviction policy, and the few bytes that a step writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minikv.engine.core.step import Scheduled, Step
from minikv.eviction.paged.plan import groups_without_window
from minikv.plan.step_work import AttentionCost, StepCost, StepWork
from minikv.simulate.step_time import StepSeconds, StepTime

if TYPE_CHECKING:
    from minikv.engine.llm import LLM


@dataclass(frozen=True)
class TimedStep:
    """The parts of the time of a step that began at second ``began`` of the task's clock.

    ``moved``: seconds of its moves on the device and to or from the host. ``tokens`` were computed, ``decodes`` of them
    in decodes, drafts included.
    """

    began: float
    parts: StepSeconds
    moved: float
    tokens: int
    decodes: int

    @property
    def seconds(self) -> float:
        return self.parts.total + self.moved

    @property
    def ends(self) -> float:
        return self.began + self.seconds


class TaskClock:
    """``LLM(clock=...)``: reads ``now`` between two steps, and within a step the second at which that step ends.

    ``steps`` are the computed steps. ``attach`` gives it the LLM before the first request.
    """

    def __init__(self, step_time: StepTime):
        self.now = 0.0
        self.steps: list[TimedStep] = []
        self._step_time = step_time
        self._llm: LLM | None = None

    def __call__(self) -> float:
        llm = self._llm
        step = None if llm is None else llm.scheduler.open_step
        if llm is None or step is None:
            return self.now
        if step.number == len(self.steps):
            self.steps.append(self._measure(step, llm))
        return self.steps[step.number].ends

    def attach(self, llm: "LLM") -> None:
        """Take the steps of ``llm``. None is prepared ahead: it would miss the requests that arrive meanwhile."""
        llm.overlaps = False
        self._llm = llm

    def _measure(self, step: Step, llm: "LLM") -> TimedStep:
        clock, manager = self._step_time, llm.manager
        absent = step.batch.absent
        gone = [0] * len(step.items)
        if absent is not None:
            gone = absent[groups_without_window(manager)[0]].tolist()
        parts = clock.parts(work_of(clock.cost, step.items, gone))
        block_bytes = [group.block_bytes(manager.block_size) for group in llm.cache.kv_cache_groups]
        host = sum(
            clock.host_seconds(_bytes(step.work.get(way, ()), block_bytes)) for way in ("swap_out", "swap_in")
        )
        moved = moved_bytes(step, block_bytes, manager.block_size)
        device = clock.parts(StepWork(0, 0, 0, moved, 0, 0, 0)).bandwidth
        return TimedStep(step.time, parts, host + device, step.num_tokens, step.num_decode)


def work_of(cost: StepCost, items: Iterable[Scheduled], gone: Iterable[int]) -> StepWork:
    """The bytes and FLOPs of a step; ``gone`` tokens of each item were evicted in the layers without a window.

    As ``StepCost.work``, but an item may have drafts, with a row of logits each, and may hold fewer tokens than it has.
    """
    tokens, rows, saved = 0, 0, 0
    pairs, read = [0] * len(cost.attention), [0] * len(cost.attention)
    for item, lost in zip(items, gone, strict=True):
        tokens, rows = tokens + item.end - item.start, rows + item.unconfirmed + 1
        for place, each in enumerate(cost.attention):
            start, end = _held(each, item, lost)
            pairs[place] += each.pairs(start, end)
            read[place] += each.read(start, end)
            saved += 0 if item.decode else each.saved(start, end)
    work = cost.counted(tokens, rows, pairs, read)
    return replace(work, attention_flops=work.attention_flops - saved) if saved else work


def moved_bytes(step: Step, block_bytes: list[int], block_size: int) -> int:
    """Bytes that a step reads and writes on the device before its forward: blocks copied, tokens moved together.

    An eviction counts all kept tokens as moved: only the device knows how many of them lie in place already.
    """
    copied = sum(block_bytes[copy.kv_cache_group] for copy in step.copies)
    for plan in step.work.get("evictions", ()):
        for group, compaction in plan.compactions.items():
            copied += sum(block_bytes[copy.kv_cache_group] for copy in compaction.copies)
            copied += compaction.num_tokens * block_bytes[group] // block_size
    return 2 * copied


def _held(cost: AttentionCost, item: Scheduled, lost: int) -> tuple[int, int]:
    gone = lost if cost.window is None else 0  # a window is never evicted from
    return item.start - gone, item.end - gone


def _bytes(pairs: tuple, block_bytes: list[int]) -> int:
    return sum(len(of_group) * size for of_group, size in zip(pairs, block_bytes, strict=False))
