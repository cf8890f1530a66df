"""Boundaries: decode steps in which sequences only cross block boundaries, counted without the scheduler.

At a boundary a sequence takes a block in every KV cache group, and at another it gives one back in a group with a
window. Where the host keeps what is evicted, a step that reuses cached blocks transfers them first. The block manager
does all this in the order of single steps; between boundaries only the clock goes on. The outcome is that of single
steps; the tests compare both.

While no seat is left no request is admitted. One that waits for blocks although a seat is left goes on waiting: what
the sequences take was owed to them, what their windows give back is owed to them again, and as cached blocks are reused
less of its prompt is found. Only where a layer has a window may a shorter prefix need fewer free blocks: if any of the
prompt is cached there, the scheduler decides again before a cached block is reused.
"""

from array import array
from collections import defaultdict

import numpy as np

from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import Sequence
from minikv.simulate.step_time import StepSeconds, StepTime
from minikv.simulate.totals import ReplicaTotals


class Boundaries:
    """Up to ``most`` steps, the first of which begins at second ``now``; it has the methods of ``Alike``.

    ``block_bytes``: of a block of each KV cache group on one rank.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        seqs: list[Sequence],
        placed: np.ndarray,
        most: int,
        output: list[int],
        step_time: StepTime,
        totals: ReplicaTotals,
        now: float,
        block_bytes: tuple[int, ...],
    ):
        self.now = now
        self._manager, self._seqs, self._output, self._totals = scheduler.manager, seqs, output, totals
        self._step_time, self._block_bytes = step_time, block_bytes
        self._placed = placed.tolist()  # tokens in the tables when the first step began
        self._tabled = placed.tolist()  # and now
        self._begun = self._ended = 0  # steps
        self._end = now  # of the step that has begun last
        self._saves = False  # whether it transfers cached blocks
        room = len(seqs) < min(scheduler.max_num_seqs, scheduler.max_batched_tokens)
        self._blocked = room and scheduler.num_waiting > 0
        size = self._manager.block_size
        # By the number of a step modulo the block size: which sequences take a block as it begins, and which may give
        # one back as it ends.
        self._take: dict[int, list[int]] = defaultdict(list)
        self._give: dict[int, list[int]] = defaultdict(list)
        groups = self._manager.kv_cache_groups
        windows = {group.window for group in groups if group.window is not None}
        for number, count in enumerate(self._placed):
            self._take[(1 - count) % size].append(number)
            for step in {(window - 1 - count) % size for window in windows}:
                self._give[step].append(number)
        self._reuses = not (self._blocked and windows and self._finds_prefix(scheduler))
        self._wasted = int((-placed % size).sum())
        self._most = most
        self._parts = step_time.decode_series(placed, most)

    @property
    def computes(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._begun > self._ended

    @property
    def over(self) -> bool:
        """Whether all steps have ended."""
        return self._ended == self._most

    @property
    def unwritten(self) -> int:
        """Tokens that are computed and not yet written to the sequences."""
        return len(self._seqs) * self._ended

    def lasts(self, steps: int) -> bool:
        """Whether the blocks suffice for the first ``steps`` steps, whatever windows give back meanwhile."""
        return sum(len(self._taking(step)) for step in range(1, steps + 1)) <= self._usable()

    def advance(self, until: float) -> None:
        """Begin every step that begins before ``until``, and end every step that ends by then."""
        while not self.over:
            if not self.computes:
                if self.now >= until:
                    return
                self._begin()
            if self._end > until:
                return
            self._finish()

    def step(self) -> None:
        """Go on to the end of the next step."""
        if not self.computes:
            self._begin()
        self._finish()

    def stop(self) -> None:
        """Begin no further step; one that has begun still ends."""
        self._most = self._begun
        if self.over:
            self._write()

    def _begin(self) -> None:
        step = self._begun = self._begun + 1
        manager, totals = self._manager, self._totals
        taking = self._taking(step)
        for number in taking:
            self._table(number, step - 1)
            self._commit(number, step - 1)  # a full block is published
            self._table(number, step)
        moved = 0.0
        self._saves = any(pool.reclaimed for pool in manager.pools)
        if self._saves:
            pairs = zip(manager.plan_save().pairs, self._block_bytes, strict=True)
            moved = self._step_time.host_seconds(sum(len(of_group) * size for of_group, size in pairs))
        self._wasted += manager.block_size * len(taking) - len(self._seqs)
        seconds = totals.add_step(self._seconds(step), moved, 0, len(self._seqs))
        for group, pool in enumerate(manager.pools):
            totals.add_blocks(group, seconds, pool.num_used, pool.num_cached, self._wasted)
        for group, pool in enumerate(manager.host_pools):
            totals.add_host_blocks(group, seconds, pool.num_used, pool.num_cached)
        if self._blocked:
            totals.blocked_seconds += seconds
        self._end = self.now + seconds

    def _finish(self) -> None:
        step = self._ended = self._begun
        self.now = self._end
        if self._saves:
            self._manager.complete_transfers(True)
        for number in self._give.get(step % self._manager.block_size, ()):
            self._table(number, step)
            self._commit(number, step)
        if len(self._taking(step + 1)) > self._usable():
            self._most = step  # the scheduler decides which sequence waits
        if self.over:
            self._write()

    def _write(self) -> None:
        """Write all steps to sequences and manager, as if each had been scheduled and finished."""
        steps = self._ended
        for number, (seq, token) in enumerate(zip(self._seqs, self._output, strict=True)):
            self._table(number, steps)
            self._commit(number, steps)
            seq.tokens.extend([token] * steps)
            seq.num_computed = seq.num_placed = self._placed[number] + steps

    def _taking(self, step: int) -> list[int]:
        """The sequences that take a block as ``step`` begins, the oldest first."""
        return self._take.get(step % self._manager.block_size, [])

    def _usable(self) -> int:
        """Blocks that a step may take of each group."""
        return min(pool.num_free - (0 if self._reuses else pool.num_cached) for pool in self._manager.pools)

    def _finds_prefix(self, scheduler: Scheduler) -> bool:
        """Whether a cached prefix awaits the first waiting sequence. One that is swapped out looks for none."""
        seq = scheduler.sequence(scheduler.waiting[0])
        return not seq.num_computed and self._manager.match(seq.tokens, seq.salt).num_tokens > 0

    def _table(self, number: int, steps: int) -> None:
        """Put the tokens of the first ``steps`` steps of a sequence into its table."""
        more = self._placed[number] + steps - self._tabled[number]
        if more:
            self._manager.append_tokens(self._seqs[number].id, array("q", [self._output[number]]) * more)
            self._tabled[number] += more

    def _commit(self, number: int, steps: int) -> None:
        """The first ``steps`` tokens of a sequence, which are in its table, are computed."""
        self._manager.commit(self._seqs[number].id, self._placed[number] + steps)

    def _seconds(self, step: int) -> StepSeconds:
        parts = self._parts
        return StepSeconds(
            float(parts.compute[step - 1]), float(parts.bandwidth[step - 1]), parts.link, parts.overhead
        )
