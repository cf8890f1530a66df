"""Reporter: turns what the scheduler does into events, and delivers them once the scheduler's state is in order."""

from collections.abc import Sequence as Seq
from math import inf
from typing import Any

from minikv.blocks import NULL_BLOCK, Allocation, BlockManager
from minikv.engine.events import AnyEvent, Emit, Event, Happened, StepEvent
from minikv.engine.offload import Cost
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId
from minikv.engine.step import Step
from minikv.errors import ArgumentError, check_count

_ENDS: dict[FinishReason, Happened] = {
    FinishReason.STOP: "finish",
    FinishReason.LENGTH: "finish",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "fail",
}


Begun = dict[str, Any]  # of a StepEvent


class Reporter:
    """Without ``emit`` it does nothing, and costs nothing.

    ``emit`` is the caller's and may raise, so nothing is delivered while a step is being put together.
    """

    def __init__(self, manager: BlockManager, emit: Emit | None, block_bytes: Seq[int] | None):
        if emit is not None and not callable(emit):
            raise ArgumentError("scheduler_callable", what="emit", value=type(emit).__name__)
        if block_bytes is not None:
            if not isinstance(block_bytes, (list, tuple)):
                raise ArgumentError("not_a_list", what="block_bytes", value=type(block_bytes).__name__)
            for num_bytes in block_bytes:
                check_count("block_bytes", num_bytes)
            if len(block_bytes) != len(manager.pools):
                given, kinds = len(block_bytes), len(manager.pools)
                raise ArgumentError("scheduler_block_bytes", given=given, kinds=kinds)
        self._manager, self._emit = manager, emit
        self._block_bytes = block_bytes
        windows = [kind.window for kind in manager.kinds]
        self._whole = windows.index(None) if None in windows else 0  # a kind that keeps what eviction leaves
        self._queue: list[AnyEvent] = []
        self._evicted = [pool.stats().evictions for pool in manager.pools]
        self._ended = -inf  # when the last step did

    @property
    def listens(self) -> bool:
        """Whether anybody hears of what happens."""
        return self._emit is not None

    def deliver(self) -> None:
        """Everything that has happened, in order. An event whose ``emit`` raised is not delivered again."""
        while self._queue:
            event = self._queue.pop(0)
            if self._emit is not None:
                self._emit(event)

    def free_blocks(self) -> tuple[int, ...]:
        """What ``allocate``, ``free`` compare with: take it before the operation."""
        return () if self._emit is None else tuple(pool.num_free for pool in self._manager.pools)

    def arrive(self, now: float, request: Request) -> None:
        if self._emit is not None:
            for seq in request.sequences:
                self._put("arrive", now, seq.id, seq.num_prompt)

    def hit(self, now: float, seq: Sequence, taken: Allocation) -> None:
        """``taken.num_cached`` tokens of ``seq`` need not be computed; its blocks have been taken."""
        if self._emit is None or not taken.num_cached:
            return
        places = taken.num_cached // self._manager.block_size
        kinds = range(len(self._manager.pools))
        tables = [self._manager.block_table(seq.id, kind)[:places] for kind in kinds]
        loaded = tuple(len(pairs) for pairs in taken.loads) or (0,) * len(tables)
        shared = tuple(
            len(table) - table.count(NULL_BLOCK) - count for table, count in zip(tables, loaded, strict=True)
        )
        if taken.num_cached > taken.num_loaded or any(shared):
            self._put("hit", now, seq.id, taken.num_cached - taken.num_loaded, shared)
        if taken.num_loaded:
            self._put("host_hit", now, seq.id, taken.num_loaded, loaded)

    def allocate(self, now: float, seq: Sequence, num_tokens: int, blocks: tuple[int, ...]) -> None:
        """``blocks`` were taken for ``num_tokens`` tokens; nothing is said where none were."""
        if self._emit is not None and any(blocks):
            self._put("allocate", now, seq.id, num_tokens, blocks)

    def grow(self, now: float, seq: Sequence, num_tokens: int, before: tuple[int, ...]) -> None:
        """The same, for blocks that are missing from what was free ``before``."""
        if self._emit is not None:
            after = self.free_blocks()
            if after != before:
                taken = tuple(b - a for b, a in zip(before, after, strict=True))
                self.allocate(now, seq, num_tokens, taken)

    def preempt(self, now: float, seq: Sequence, cost: Cost | None, moved: tuple[int, ...] | None) -> None:
        """``moved`` blocks go to the host; None: none do, and the tokens are computed again."""
        if self._emit is None:
            return
        if cost is None:
            self._put("preempt", now, seq.id, seq.num_computed)
            return
        self._put(
            "preempt",
            now,
            seq.id,
            seq.num_computed,
            how="recompute" if moved is None else "swap",
            swap_seconds=cost.swap_seconds,
            recompute_seconds=cost.recompute_seconds,
        )
        if moved is not None:
            self._put("swap_out", now, seq.id, seq.num_computed, moved)

    def swap_in(self, now: float, seq: Sequence, blocks: tuple[int, ...]) -> None:
        if self._emit is not None:
            self._put("swap_in", now, seq.id, seq.num_computed, blocks)

    def save(self, now: float, blocks: tuple[int, ...]) -> None:
        """Evicted prefix ``blocks`` go to the host."""
        if self._emit is not None and any(blocks):
            self._put("swap_out", now, None, 0, blocks)

    def rollback(self, now: float, seq: Sequence, num_tokens: int, before: tuple[int, ...]) -> None:
        """``num_tokens`` drafts of ``seq`` were refused; what was free ``before`` has grown by their blocks."""
        if self._emit is not None:
            freed = tuple(a - b for b, a in zip(before, self.free_blocks(), strict=True))
            self._put("rollback", now, seq.id, num_tokens, freed)

    def forget(self, now: float, seq: Sequence, num_tokens: int, before: tuple[int, ...]) -> None:
        """``num_tokens`` tokens of ``seq`` are evicted; what was free ``before`` has changed by their blocks."""
        if self._emit is not None:
            freed = tuple(a - b for b, a in zip(before, self.free_blocks(), strict=True))
            self._put("forget", now, seq.id, num_tokens, freed)

    def free(self, now: float, seq: Sequence, before: tuple[int, ...]) -> None:
        if self._emit is not None:
            freed = tuple(a - b for b, a in zip(before, self.free_blocks(), strict=True))
            self._put("free", now, seq.id, seq.num_computed, freed)

    def first(self, now: float, seq: Sequence) -> None:
        if self._emit is not None:
            self._put("first", now, seq.id, 1)

    def end(self, now: float, seq: Sequence, reason: FinishReason) -> None:
        if self._emit is not None:
            self._put(_ENDS[reason], now, seq.id, seq.num_output)

    def mark(self) -> int:
        """Where ``take_back`` shall end."""
        return len(self._queue)

    def take_back(self, mark: int) -> None:
        """What was noted since that ``mark`` did not come to pass. Nothing may have been delivered meanwhile."""
        del self._queue[mark:]

    def begin_step(self, now: float, running: Seq[Sequence], waiting: int) -> Begun:
        """What the pool looks like while the step is computed; ``end_step`` wants it."""
        if self._emit is None:
            return {}
        stats = [pool.stats() for pool in self._manager.pools]
        evicted = [pool.evictions for pool in stats]
        new = tuple(after - before for after, before in zip(evicted, self._evicted, strict=True))
        self._evicted = evicted
        if any(new):
            self._put("evict", now, None, 0, new)
        return {
            "running": len(running),
            "waiting": waiting,
            "used": tuple(pool.used for pool in stats),
            "cached": tuple(pool.cached for pool in stats),
            "total": tuple(pool.num_blocks for pool in self._manager.pools),
            "wasted_slots": tuple(self._wasted(running, kind) for kind in range(len(stats))),
            "block_size": self._manager.block_size,
            "tokens": sum(self._manager.num_tokens(seq.id) for seq in running),
            "resident": sum(self._manager.length(seq.id, self._whole) for seq in running),
        }

    def end_step(self, now: float, step: Step, begun: Begun, failed: bool, accepted: int = 0) -> None:
        if self._emit is not None:
            decode = step.num_decode
            event = StepEvent(
                time=now,
                step=step.number,
                seconds=now - max(step.time, self._ended),
                prefill_tokens=step.num_tokens - decode,
                decode_tokens=decode,
                failed=failed,
                drafted=step.num_drafts,
                accepted=accepted,
                **begun,
            )
            self._queue.append(event)
            self._ended = now

    def _wasted(self, running: Seq[Sequence], kind: int) -> int:
        """Slots without a token. Only a sequence's last block has any, and one that several share counts once."""
        size = self._manager.block_size
        slots = self._manager.decode_slots([seq.id for seq in running], kind).tolist()
        filled: dict[int, int] = {}
        for slot in slots:
            if slot >= 0:
                filled[slot // size] = max(filled.get(slot // size, 0), slot % size + 1)
        return sum(size - count for count in filled.values())

    def _put(
        self,
        kind: Happened,
        now: float,
        seq_id: SequenceId | None,
        tokens: int,
        blocks: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        num_bytes = None
        if self._block_bytes is not None:
            of_kinds = zip(blocks, self._block_bytes, strict=False)  # an event without blocks has no bytes
            num_bytes = sum(count * size for count, size in of_kinds)
        request, sample = seq_id if seq_id is not None else (None, 0)
        self._queue.append(Event(kind, now, request, sample, tokens, blocks, num_bytes, **more))
