"""EngineView: who runs and who waits, and which blocks each of them holds, at one moment. What a live view draws."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from minikv.blocks.pool import PoolStats
from minikv.engine.scheduler import Scheduler
from minikv.engine.sequence import Sequence, SequenceId, State
from minikv.errors import ArgumentError


@dataclass(frozen=True)
class SequenceView:
    """A sequence that has not ended. Counts are tokens; ``tables`` has its blocks for each kind of layer (-1: a window
    gave the block back), and is empty while the sequence waits. ``swapped``: it waits, and what is computed is in host
    memory. Of the ``num_computed`` tokens the layers without a window hold ``num_resident``: fewer where eviction has
    taken some, or is about to in the step that is being computed.
    """

    id: SequenceId
    state: State
    num_prompt: int
    num_cached: int
    num_computed: int
    num_output: int
    num_preemptions: int
    tables: tuple[tuple[int, ...], ...]
    swapped: bool = False
    num_resident: int = 0


@dataclass(frozen=True)
class EngineView:
    """``running`` and ``waiting`` are in the order of arrival; ``pools`` count the blocks of each kind of layer.
    ``host_pools`` count those of the host, none where there is no host memory: "used" are blocks of swapped sequences,
    "cached" those of prefixes that no sequence holds.

    ``steps`` have been computed, ``generated`` tokens made and ``finished`` requests ended since the engine was built.
    """

    steps: int
    generated: int
    finished: int
    running: tuple[SequenceView, ...]
    waiting: tuple[SequenceView, ...]
    pools: tuple[PoolStats, ...]
    block_size: int
    host_pools: tuple[PoolStats, ...] = ()


def view_of(scheduler: Scheduler, steps: int, generated: int, finished: int) -> EngineView:
    """The scheduler's state now; nothing of it is shared."""
    manager = scheduler.manager
    kinds = range(len(manager.pools))

    def see(seq: Sequence) -> SequenceView:
        held = seq.state is State.RUNNING
        lost = scheduler.evicting.lost(seq) if held or seq.swapped else 0
        return SequenceView(
            seq.id,
            seq.state,
            seq.num_prompt,
            seq.num_cached or 0,
            seq.num_computed,
            seq.num_output,
            seq.num_preemptions,
            tuple(tuple(manager.block_table(seq.id, kind)) for kind in kinds) if held else (),
            seq.swapped,
            seq.num_computed - lost,
        )

    return EngineView(
        steps,
        generated,
        finished,
        tuple(see(seq) for seq in _not_ended(scheduler, scheduler.running)),
        tuple(see(seq) for seq in _not_ended(scheduler, scheduler.waiting)),
        tuple(pool.stats() for pool in manager.pools),
        manager.block_size,
        tuple(pool.stats() for pool in manager.host_pools),
    )


def _not_ended(scheduler: Scheduler, seq_ids: Iterable[SequenceId]) -> Iterator[Sequence]:
    """Without what was aborted in the step that is being computed: it holds its blocks until that step has ended."""
    for seq_id in seq_ids:
        with suppress(ArgumentError):
            yield scheduler.sequence(seq_id)
