"""Alike: decode steps in which every running sequence gets one token and nothing else happens, counted together.

The scheduler decides the same in every step while all running sequences decode, none of them ends, and the free blocks
suffice for their growth. It admits no further request meanwhile: seats and budget stay, and free blocks less owed ones
never become more as sequences grow. So only the clock goes on step by step, each step with the time that it takes.
Sequences and manager are updated once. The outcome is that of single steps; the tests compare both.

Layers with windows give blocks back, and an eviction may copy blocks to the host, which takes time of its step: such
steps are ``Boundaries``.
"""

from array import array
from bisect import bisect_right

import numpy as np

from minikv.blocks import BlockManager
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import Sequence
from minikv.simulate.boundaries import Boundaries
from minikv.simulate.step_time import StepTime
from minikv.simulate.totals import ReplicaTotals, running_sums

MOST = 512  # steps at once: bounds the arrays with an entry for each step and sequence
FEWEST = 4  # steps: counting fewer together saves no time


def steps_alike(
    scheduler: Scheduler,
    output: dict[str | int, int],
    step_time: StepTime,
    totals: ReplicaTotals,
    now: float,
    block_bytes: tuple[int, ...],
) -> "Alike | Boundaries | None":
    """The steps from second ``now`` on that need no scheduler, or None: the next step has to be scheduled.

    ``output``: the token that each request generates. ``block_bytes``: of a block of each KV cache group on one rank.
    """
    seqs, most = [], MOST
    for seq_id in scheduler.running:
        seq = scheduler.sequence(seq_id)
        most = min(most, seq.params.max_tokens - seq.num_output - 1)  # not the step that ends it
        if most < FEWEST or not seq.decoding:
            return None
        seqs.append(seq)
    if not seqs:
        return None
    placed = np.array([seq.num_computed for seq in seqs], np.int64)
    given = scheduler, seqs, placed
    tokens = [output[seq.id.request] for seq in seqs]
    last = _steps_of_one_pool(scheduler.manager, placed, most)
    if last >= FEWEST:
        return Alike(*given, last, tokens, step_time, totals, now)
    steps = Boundaries(*given, most, tokens, step_time, totals, now, block_bytes)
    return steps if steps.lasts(FEWEST) else None


def _steps_of_one_pool(manager: BlockManager, placed: np.ndarray, most: int) -> int:
    """Steps, at most ``most``, in which blocks are only taken, and none is copied to the host; 0 with windows."""
    if len(manager.pools) > 1 or manager.kv_cache_groups[0].window is not None:
        return 0
    (pool,) = manager.pools
    free = pool.num_free - (0 if pool.reclaimed is None else pool.num_cached)
    size = manager.block_size
    return bisect_right(range(most + 1), free, key=lambda steps: _taken(placed, steps, size)) - 1


def _taken(placed: np.ndarray, steps: int, size: int) -> int:
    """Blocks that sequences of ``placed`` tokens take in ``steps`` steps."""
    return int((-(-(placed + steps) // size) + -placed // size).sum())


class Alike:
    """Up to ``most`` steps, the first of which begins at second ``now``. The arrays have one entry a step."""

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
    ):
        self._manager, self._seqs, self._output, self._totals = scheduler.manager, seqs, output, totals
        self._placed = placed  # tokens in the tables when the first step began
        self._parts = step_time.decode_series(placed, most)
        self._seconds = self._parts.total
        self._ends = running_sums(now, self._seconds)
        self._most = most
        self._begun = self._ended = 0  # steps
        self._tabled = self._written = 0  # of those begun, in the manager's tables; of those ended, committed
        room = len(seqs) < min(scheduler.max_num_seqs, scheduler.max_batched_tokens)
        self._blocked = room and scheduler.num_waiting > 0

    @property
    def now(self) -> float:
        """Second at which the last ended step ended; the begin of the first step before any has ended."""
        return float(self._ends[self._ended])

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
        return len(self._seqs) * (self._ended - self._written)

    @property
    def evicts(self) -> bool:
        """Whether steps that are not tabled reuse blocks with a cached prefix, which a router could still find."""
        (pool,) = self._manager.pools
        return self._taken(self._begun) > pool.num_free - pool.num_cached

    def advance(self, until: float) -> None:
        """Begin every step that begins before ``until``, and end every step that ends by then."""
        ended = int(np.searchsorted(self._ends[1 : self._most + 1], until, side="right"))
        self._ended = ended
        self._begun = min(self._most, ended + (self._ends[ended] < until))
        if self.over:
            self.write()

    def step(self) -> None:
        """Go on to the end of the next step."""
        self.advance(float(self._ends[self._ended + 1]))

    def stop(self) -> None:
        """Begin no further step; one that has begun still ends."""
        self._most = self._begun
        if self.over:
            self.write()

    def write(self) -> None:
        """Write all steps so far to sequences and manager, as if each had been scheduled and finished."""
        if self._begun > self._tabled:
            self._count()
        begun, ended = self._begun, self._ended
        more, done = begun - self._tabled, ended - self._written
        for seq, token, start in zip(self._seqs, self._output, self._placed.tolist(), strict=True):
            if more:
                self._manager.append_tokens(seq.id, array("q", [token]) * more)
            if done:
                self._manager.commit(seq.id, start + ended)
                seq.tokens.extend([token] * done)
            seq.num_computed, seq.num_placed = start + ended, start + begun
        self._tabled, self._written = begun, ended

    def _count(self) -> None:
        """Add the steps that are not tabled yet to the totals."""
        steps, totals, size = slice(self._tabled, self._begun), self._totals, self._manager.block_size
        seconds, (pool,) = self._seconds[steps], self._manager.pools
        totals.add_decodes(self._parts, steps, len(self._seqs), self._blocked)
        tokens = self._placed + np.arange(self._tabled + 1, self._begun + 1)[:, None]
        blocks = -(-tokens // size)
        taken = (blocks - -(-(self._placed + self._tabled) // size)).sum(axis=1)
        empty = pool.num_free - pool.num_cached
        cached = pool.num_cached - np.maximum(0, taken - empty)
        wasted = (blocks * size - tokens).sum(axis=1)
        totals.add_blocks_of_steps(0, seconds, pool.num_used + taken, cached, wasted)
        for group, host in enumerate(self._manager.host_pools):
            totals.add_host_blocks_of_steps(group, seconds, host.num_used, host.num_cached)

    def _taken(self, steps: int) -> int:
        """Blocks that the first ``steps`` steps take beyond the tabled ones."""
        return _taken(self._placed + self._tabled, steps - self._tabled, self._manager.block_size)
