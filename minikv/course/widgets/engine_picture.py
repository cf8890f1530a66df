"""The engine at one moment, as the engine widget draws it: the sequences of a run, and the blocks with their owners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from minikv.blocks import NULL_BLOCK, BlockPool
from minikv.blocks.pool import PoolStats
from minikv.course.widgets.engine_rows import DECODE, PREFILL, WAITING, SequenceRow
from minikv.engine.core.sequence import SequenceId
from minikv.engine.serve.view import EngineView

MAX_CELLS = 256  # blocks drawn, for all KV cache groups together; each pool draws its first blocks
STRANGER = ("?", 0)  # a sequence that other code asked the same LLM for

Progress = Literal["fresh", "running", "paused", "ended", "stopped", "failed"]
Owner = tuple[str, int]  # a sequence's name, and the number of its request


@dataclass(frozen=True)
class Cell:
    """A block: "own" and "shared" ones have owners, the oldest first; "cached" and "empty" ones are free."""

    kind: Literal["own", "shared", "cached", "empty"]
    owners: tuple[str, ...] = ()
    number: int = 0  # the request of the oldest owner


@dataclass(frozen=True)
class PoolPicture:
    """The blocks of one KV cache group; ``shared`` used ones have several owners; ``cells`` are the first ones."""

    total: int
    used: int
    shared: int
    cached: int
    cells: tuple[Cell, ...]

    @property
    def empty(self) -> int:
        return self.total - self.used - self.cached


@dataclass(frozen=True)
class Picture:
    """A run after ``steps`` steps, which took ``seconds``; ``to_come`` of its ``requests`` have not arrived.

    ``hits``: prompt tokens found in the prefix cache. ``error``: the first error of a step or a request; ``failed``
    requests ended with an error.
    """

    progress: Progress
    requests: int
    to_come: int
    steps: int
    seconds: float
    rows: tuple[SequenceRow, ...]
    pools: tuple[PoolPicture, ...]
    hits: int
    preemptions: int
    failed: int
    error: BaseException | None

    @property
    def generated(self) -> int:
        return sum(row.generated for row in self.rows)

    def count(self, state: str) -> int:
        return sum(row.state == state for row in self.rows)

    @property
    def running(self) -> int:
        return self.count(PREFILL) + self.count(DECODE)

    @property
    def ended(self) -> int:
        return len(self.rows) - self.running - self.count(WAITING)


def pool_pictures(
    view: EngineView, pools: Sequence[BlockPool], owners: Mapping[SequenceId, Owner]
) -> tuple[PoolPicture, ...]:
    """Return each group's blocks as ``view`` saw them; ``owners`` are the sequences that have a name."""
    drawn = max(1, MAX_CELLS // len(pools))
    return tuple(
        _pool_picture(view, group, pool, view.pools[group], owners, drawn) for group, pool in enumerate(pools)
    )


def _pool_picture(
    view: EngineView,
    group: int,
    pool: BlockPool,
    stats: PoolStats,
    owners: Mapping[SequenceId, Owner],
    drawn: int,
) -> PoolPicture:
    holders: dict[int, list[Owner]] = {}
    for seq in view.running:
        for block in seq.tables[group]:
            if block != NULL_BLOCK:
                holders.setdefault(block, []).append(owners.get(seq.id, STRANGER))

    def cell(block: int) -> Cell:
        held = holders.get(block)
        if held:
            names = tuple(name for name, _ in held)
            return Cell("shared" if len(held) > 1 else "own", names, held[0][1])
        return Cell("cached" if pool.is_published(block) else "empty")

    return PoolPicture(
        total=stats.total,
        used=stats.used,
        shared=sum(len(held) > 1 for held in holders.values()),
        cached=stats.cached,
        cells=tuple(cell(block) for block in range(min(drawn, stats.total))),
    )
