"""Replica: the engine's scheduler and block manager on a simulated clock. They decide; no model runs.

    replica.advance(until=3.2)     steps begin and end up to second 3.2
    replica.enqueue(arrival)       a request that has just arrived
    replica.advance()              until no request is left

A step begins when the one before it has ended, or, after a pause, when a request arrives. It sees all requests that
have arrived by then. A step that ends at the moment of an arrival ends before it.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from minikv.blocks import BlockManager
from minikv.engine.core.extension import Extension
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import Sequence
from minikv.engine.core.step import Step
from minikv.engine.ext.events import Emit, Events
from minikv.engine.ext.offload import Offload
from minikv.engine.sampling_params import SamplingParams
from minikv.plan.preemption import TransferRates
from minikv.simulate.alike import Alike, steps_alike
from minikv.simulate.arrival import Arrival
from minikv.simulate.boundaries import Boundaries
from minikv.simulate.step_time import StepTime
from minikv.simulate.totals import ReplicaTotals


@dataclass(frozen=True)
class Unreached:
    """A replica before its first request, as a router sees it: no load and no cache, and no scheduler made yet."""

    totals: ReplicaTotals
    load: int = 0

    def cached_tokens(self, prompt: Arrival) -> int:
        return 0


class Replica:
    """One engine. ``block_bytes``: of a block of each group on one rank; ``rates``: as for ``Scheduler``.

    ``on_end`` is called with each sequence that has ended. Decode steps in which every sequence gets one token and
    nothing else happens are counted together (``alike``) unless ``emit`` is given: the decisions are the same.
    """

    def __init__(
        self,
        step_time: StepTime,
        manager: BlockManager,
        block_bytes: tuple[int, ...],
        *,
        max_num_seqs: int = 256,
        max_batched_tokens: int = 8192,
        max_model_len: int | None = None,
        rates: TransferRates | None = None,
        emit: Emit | None = None,
        on_end: Callable[[Sequence], object] = lambda seq: None,
        jumps: bool = True,
    ):
        self.now = 0.0  # the begin of the running step, or the end of the last one
        self.step_time, self.manager, self.block_bytes = step_time, manager, block_bytes
        self.totals = ReplicaTotals(len(manager.pools))
        extensions: list[Extension] = []
        if manager.host_pools or rates is not None:
            extensions.append(Offload(block_bytes, rates))
        if emit is not None:
            extensions.append(Events(emit, block_bytes))
        self.scheduler = Scheduler(
            manager,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            clock=lambda: self._clock,
            extensions=extensions,
            packs=False,
        )
        self._clock = 0.0
        self._on_end, self._listens, self._jumps = on_end, emit is not None, jumps and emit is None
        # Waits behind the scheduler's requests, with prompts not made yet, so that a long queue takes little memory.
        self._backlog: deque[Arrival] = deque()
        self._arrivals: dict[str | int, Arrival] = {}  # the scheduler's requests
        self._output: dict[str | int, int] = {}  # the token that each of them generates
        self._params: dict[int, SamplingParams] = {}
        self._work = 0  # tokens of the requests that have arrived and not ended
        self._in_system, self._counted = 0, 0.0
        self._step: Step | None = None
        self._alike: Alike | Boundaries | None = None
        self._refused = False  # the last step admitted no request, and nothing has changed since
        self._ends = math.inf  # the end of ``_step``

    @property
    def load(self) -> int:
        """Tokens that the requests here still have to compute; copies in host memory are not subtracted."""
        scheduler = self.scheduler
        done = sum(scheduler.sequence(seq_id).num_computed for seq_id in scheduler.running)
        return self._work - done - (self._alike.unwritten if self._alike is not None else 0)

    @property
    def computes(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._step is not None or (self._alike is not None and self._alike.computes)

    def cached_tokens(self, prompt: Arrival) -> int:
        """Tokens of ``prompt`` that the cache holds now."""
        if isinstance(self._alike, Alike) and self._alike.evicts:
            self._alike.write()
        return prompt.cached_tokens(self.manager)

    def enqueue(self, arrival: Arrival) -> None:
        """Queue a request that arrives. Call ``advance`` up to its time first."""
        if not self.computes:
            self.now = max(self.now, arrival.time)
        self._count(arrival.time, 1)
        self._work += arrival.work
        self._backlog.append(arrival)
        arrival.forget()  # it may wait long: its tokens are made again when it is fed
        if self._alike is not None:
            self._alike.stop()  # the next step may admit the request
            self._follow()
        if self._listens:
            self._clock = arrival.time
            self._feed(math.inf)

    def advance(self, until: float = math.inf) -> None:
        """Begin every step that begins before ``until``, and end every step that ends by then."""
        while True:
            if self._step is None and self._alike is None and (self.now >= until or not self._begin()):
                return
            if self._alike is not None:
                self._alike.advance(until)
                self._follow()
                if self._alike is not None:
                    return
            elif self._ends > until:
                return
            else:
                self._finish()

    def step(self) -> bool:
        """Run one step to its end; False if no request is left."""
        if self._step is None and self._alike is None and not self._begin():
            return False
        if self._alike is not None:
            self._alike.step()
            self._follow()
        else:
            self._finish()
        return True

    @property
    def _is_full(self) -> bool:
        """Whether no step admits a request before a sequence ends."""
        scheduler = self.scheduler
        return scheduler.num_running >= min(scheduler.max_num_seqs, scheduler.max_batched_tokens)

    def _feed(self, most: float) -> None:
        """Give the scheduler up to ``most`` waiting requests. It admits in order, so later ones change nothing."""
        scheduler = self.scheduler
        while self._backlog and scheduler.num_waiting < most:
            arrival = self._backlog.popleft()
            count = arrival.output_tokens
            params = self._params.get(count)
            if params is None:
                params = self._params[count] = SamplingParams(max_tokens=count)
            self._output[arrival.index] = arrival.output_token
            self._arrivals[arrival.index] = arrival
            scheduler.add(arrival.index, arrival.tokens(), params)
            self._refused = False

    def _begin(self) -> bool:
        """Begin the next step now, or several that are alike; False if there is no request to compute."""
        self._clock = self.now
        self._feed(self.scheduler.max_num_seqs + 1)
        if not self.scheduler.has_work:
            return False
        if self._jumps and (self._refused or self._is_full or not self.scheduler.num_waiting):
            clock = self.step_time, self.totals, self.now
            self._alike = steps_alike(self.scheduler, self._output, *clock, self.block_bytes)
            if self._alike is not None:
                return True
        self._step = self.scheduler.schedule()
        self._ends = self.now + self._measure(self._step)
        return True

    def _finish(self) -> None:
        """End the step that has begun."""
        self.now, step, self._step = self._ends, self._step, None
        assert step is not None
        self._clock, output = self.now, self._output
        over = self.scheduler.finish(step, [output[seq_id.request] for seq_id in step.sampled])
        # Of what a step copies to the host nothing is found until it has ended: more may be admitted then.
        settled = not over and not step.preempted and not step.work
        self._refused = settled and all(item.decode for item in step.items)
        for seq in over:
            self._work -= self._arrivals.pop(seq.id.request).work
            del output[seq.id.request]
            self._count(self.now, -1)
            self._on_end(seq)

    def _follow(self) -> None:
        """Set the clock by the steps that are alike, and drop them once they are over."""
        assert self._alike is not None
        self.now = self._alike.now
        if self._alike.over:
            self._alike = None

    def _count(self, time: float, change: int) -> None:
        """Change the number of requests in the system by ``change`` from ``time`` on."""
        self.totals.in_system += self._in_system * (time - self._counted)
        self._in_system, self._counted = self._in_system + change, time

    def _measure(self, step: Step) -> float:
        """Add ``step``, which has just been scheduled, to the totals; returns its seconds."""
        size, scheduler, totals = self.manager.block_size, self.scheduler, self.totals
        prefill, decode, wasted, tokens = [], [], 0, 0
        for item in step.items:
            end = item.start + len(item.tokens)
            wasted += -end % size
            if item.decode:
                decode.append(end)
            else:
                prefill.append((item.start, end))
                tokens += end - item.start
        if len(step.items) < scheduler.num_running:  # one lacks a block, or budget
            placed = [scheduler.sequence(seq_id).num_placed for seq_id in scheduler.running]
            wasted = sum(-count % size for count in placed)
        moved = sum(
            self.step_time.host_seconds(self._bytes(step.work.get(way, ())))
            for way in ("swap_out", "swap_in")
        )
        parts = self.step_time.parts(self.step_time.cost.work(prefill, decode))
        seconds = totals.add_step(parts, moved, tokens, len(decode))
        totals.preemptions += len(step.preempted)
        totals.swaps += sum(scheduler.sequence(seq_id).num_computed > 0 for seq_id in step.preempted)
        for group, pool in enumerate(self.manager.pools):
            totals.add_blocks(group, seconds, pool.num_used, pool.num_cached, wasted)
        for group, pool in enumerate(self.manager.host_pools):
            totals.add_host_blocks(group, seconds, pool.num_used, pool.num_cached)
        seat = scheduler.num_running < scheduler.max_num_seqs
        if scheduler.num_waiting and seat and tokens + len(decode) < scheduler.max_batched_tokens:
            totals.blocked_seconds += seconds  # seats and budget are left: a request waits for blocks
        return seconds

    def _bytes(self, pairs: tuple[tuple[tuple[int, int], ...], ...]) -> int:
        """Bytes of the blocks that move, on one rank."""
        return sum(len(of_group) * size for of_group, size in zip(pairs, self.block_bytes, strict=False))
