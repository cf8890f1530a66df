"""OpenSteps: the steps that are being computed, and the one that is prepared while a GPU computes another.

    schedule ------ launch N ----------------------- read N -- finish N ----------------------- read N + 1 -- ...
                               schedule_ahead -- launch N + 1                schedule_ahead ...

The host knows who decodes in step N + 1 before it knows a single token of step N: whoever gets one there and is not at
``max_tokens``. So it prepares that step meanwhile, and the tokens go from one forward into the next without it. Some of
them end a text, which the host sees too late: their rows of step N + 1 are computed for nobody, and are dropped.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from minikv.blocks import BlockManager
from minikv.engine.evicting import Keeping
from minikv.engine.offload import Offload
from minikv.engine.planner import Planner
from minikv.engine.reporter import Begun, Reporter
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId, State
from minikv.engine.step import Batch, Step, Transfers, pack
from minikv.engine.step_plan import Plan
from minikv.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class OpenStep:
    """A step that is being computed, with the sequences that are in it, or begin in it as forks of another."""

    step: Step
    seqs: dict[SequenceId, Sequence]
    begun: Begun

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for what it computes."""
        return any(not seq.ended for seq in self.seqs.values())

    def has(self, seq: Sequence) -> bool:
        return self.seqs.get(seq.id) is seq  # a request's id may be used again


class OpenSteps(Planner):
    """At most two, and the second is ahead. They end in the order in which they began.

    While a step has a sequence it has its blocks, whatever becomes of the sequence: the forward writes into them.
    """

    def __init__(
        self,
        manager: BlockManager,
        max_num_seqs: int,
        max_batched_tokens: int,
        report: Reporter,
        offload: Offload,
        prompt_lookup: int,
        clock: Callable[[], float],
        evicting: Keeping | None = None,
    ):
        super().__init__(manager, max_num_seqs, max_batched_tokens, report, offload, prompt_lookup, evicting)
        self._clock = clock
        self._requests: dict[str | int, Request] = {}  # those that have not ended
        self._opened: list[OpenStep] = []
        self._steps = 0

    @property
    def open_step(self) -> Step | None:
        """The step that is being computed; of two the one that ``finish`` or ``fail`` is due for."""
        return self._opened[0].step if self._opened else None

    @property
    def num_open(self) -> int:
        """Steps that are being computed: 0, 1 or 2."""
        return len(self._opened)

    @property
    def open_step_is_wanted(self) -> bool:
        """Whether anybody waits for a token of ``open_step``. If not, end it soon: it holds blocks."""
        return bool(self._opened) and self._opened[0].is_wanted

    def schedule_ahead(self) -> Step | None:
        """The step behind the open one, before its tokens are known: a decode of everybody who goes on.

        None where that may not be the next step: where not exactly one step is open, where somebody waits or has more
        of a prompt to compute, where a block is missing, has to be copied, or would have to be saved to the host
        first; and with ``prompt_lookup``, since drafts follow from tokens. Its ``sources`` say where its tokens come
        from. ``emit`` hears of it when the open step ends. If it raises anything, the open step is as it was.
        """
        sources = self._who_goes_on()
        seqs = [self._opened[0].seqs[self._opened[0].step.items[row].id] for row in sources]
        if not seqs or not self.manager.can_reserve_slots([seq.id for seq in seqs]):
            return None
        now, mark = self._clock(), self._report.mark()
        plan, starts = Plan(self.max_batched_tokens), [seq.num_placed for seq in seqs]
        try:
            for seq in seqs:
                before = self._report.free_blocks()
                self.manager.reserve_slot(seq.id)
                plan.put_ahead(seq)
                self._report.grow(now, seq, 1, before)
            batch = pack(self.manager, plan.items, sources, evicts=self.evicting.evicts)
            return self._open(plan, batch, now, {seq.id: seq for seq in seqs})
        except BaseException:
            self._report.take_back(mark)
            for seq, start in zip(seqs, starts, strict=True):
                if self.manager.num_tokens(seq.id) > start:
                    self.manager.truncate(seq.id, start)
                seq.num_placed = start
            raise

    def _who_goes_on(self) -> Seq[int]:
        """The items of the open step whose sequences decode next, whatever it samples; none where that is not sure."""
        if len(self._opened) != 1 or self._waiting or self.prompt_lookup:
            return ()
        (opened,) = self._opened
        items = opened.step.items
        if len(items) != len(self._running) or any(len(item.samples) != 1 for item in items):
            return ()  # somebody waits for a block; a prompt goes on, or several begin with it
        if any(map(self.evicting.is_full, self._running)):
            return ()  # who evicts, evicts what is committed
        rows = []
        for row, item in enumerate(items):
            seq = opened.seqs[item.id]
            if not seq.ended and seq.num_output + 1 < seq.params.max_tokens:
                rows.append(row)
        return rows

    def _open(self, plan: Plan, batch: Batch, now: float, seqs: dict[SequenceId, Sequence]) -> Step:
        """``plan`` is a step from now on."""
        begun = self._report.begin_step(now, self._running, len(self._waiting))
        preempted = tuple(seq.id for seq in plan.preempted)
        moves: tuple[Transfers, Transfers] = ((), ())
        if batch.sources is None:
            moves = self._offload.transfers()
        evictions = self.evicting.take()
        step = Step(
            self._steps, now, tuple(plan.items), tuple(plan.copies), preempted, batch, *moves, evictions
        )
        self._steps += 1
        self._opened.append(OpenStep(step, seqs, begun))
        return step

    def _check_open(self, step: Step) -> OpenStep:
        if not self._opened or step is not self._opened[0].step:
            raise ArgumentError("step_not_open")
        return self._opened[0]

    def _fork(self, seq: Sequence) -> None:
        """The prompt of ``seq`` is computed: the other sequences of its request begin with the same blocks."""
        for other in seq.pending:
            self.manager.fork(seq.id, other.id)
            self.evicting.note("fork", seq.id, other.id)
            other.num_computed = other.num_placed = seq.num_computed
            other.num_cached, other.admitted_at = seq.num_cached, seq.admitted_at
            self._start(other)
        seq.pending = []

    def _end(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """A sequence ends once; while a step is being computed that has it, it keeps its blocks."""
        if seq.ended:
            return
        held = seq.state is State.RUNNING
        waits = not held and seq in self._waiting  # one that will be forked is in no queue
        seq.state = State.ABORTED if reason is FinishReason.ABORT else State.FINISHED
        seq.finish_reason, seq.finished_at = reason, now
        if waits:
            self._waiting.remove(seq)
            self._offload.drop(seq)
            if seq.num_preemptions:
                self.evicting.note("remove", seq.id)  # its record may lie on the host too
        self._report.end(now, seq, reason)
        if held and not self._is_in_a_step(seq):
            self._release(seq, now)

    def _close(self, closed: OpenStep, now: float) -> None:
        """After a step: who ended in it gives its blocks back, and requests that have ended are forgotten."""
        over = [seq for seq in closed.seqs.values() if seq.ended]
        for seq in [seq for seq in self._running if seq.ended] if over else ():
            if not self._is_in_a_step(seq):
                self._release(seq, now)
        for name in {seq.id.request for seq in over}:
            if name in self._requests and self._requests[name].ended:
                del self._requests[name]
        self._report.deliver()

    def _is_in_a_step(self, seq: Sequence) -> bool:
        return any(opened.has(seq) for opened in self._opened)
