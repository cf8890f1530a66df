"""The allocation formula with measured terms, and the blocks of every group for its bytes. Lesson 08.

    available = int(total * utilization) - used - peak + current

``used`` is all memory in use on the GPU, as the driver sees it: weights, CUDA contexts, libraries, other processes.
``peak - current`` are the activations of the largest step. Without ``+ current`` the weights would be counted twice,
in ``used`` and in ``peak``.
"""

from dataclasses import dataclass, replace

from minikv.errors import ArgumentError, check_count
from minikv.plan import pool
from minikv.plan.spec.cache_spec import CacheSpec


@dataclass(frozen=True)
class MeasuredTerms:
    """The terms of the formula, bytes of one GPU.

    The driver counts ``total`` and ``used``. Torch's allocator counts ``peak``, the most since the reset before the
    warm-up, and ``current``. Raises ``ArgumentError`` for an impossible term.
    """

    total: int
    utilization: float
    used: int
    peak: int
    current: int

    def __post_init__(self) -> None:
        check_count("total", self.total)
        check_utilization(self.utilization)
        for what in ("used", "peak", "current"):
            check_count(what, getattr(self, what), least=0)

    @property
    def limit(self) -> int:
        """What the engine may use of the GPU: int(total * utilization)."""
        return int(self.total * self.utilization)

    @property
    def available(self) -> int:
        """What is left for the KV cache. Negative where the model itself does not fit."""
        return self.limit - self.used - self.peak + self.current

    @property
    def short_form(self) -> int:
        """int(total * utilization) - peak: right only where ``used`` equals ``current``, too large otherwise."""
        return self.limit - self.peak

    def as_dict(self) -> dict[str, int]:
        """limit, used, peak, current and available, in the order of the formula."""
        return {
            "limit": self.limit,
            "used": self.used,
            "peak": self.peak,
            "current": self.current,
            "available": self.available,
        }


@dataclass(frozen=True)
class PoolSize:
    """The number of blocks of each group, in the order of ``pool.kv_cache_groups``.

    ``num_blocks`` counts the blocks of a group without a window (of every group, where all layers slide). Windowed
    groups get the blocks that ``batch`` sequences of ``context`` tokens need at once.
    """

    num_blocks: int
    blocks: tuple[int, ...]
    batch: int
    context: int


def size_for_bytes(
    spec: CacheSpec, pool_bytes: int, *, block_size: int, context: int, batch: int | None = None
) -> PoolSize:
    """The blocks that fit into ``pool_bytes`` (negative counts as 0); 0 blocks where not one token fits.

    States are not in a pool of blocks: the bytes of recurrent layers' slots are to be taken off ``pool_bytes`` before.
    ``batch`` None, or more than fit, means as many sequences of ``context`` tokens as fit. Where not one fits, it is
    one sequence as long as fits. Raises ``ArgumentError`` for counts that are none.
    """
    _check(block_size, context, batch)
    spec = replace(spec, layers=tuple(replace(layer, state_bytes=0) for layer in spec.layers))
    room = max(0, pool_bytes)
    most = pool.max_sequences(spec, room, context, block_size)
    if not most:
        longest = pool.max_length(spec, room, 1, block_size)
        if not longest:
            return PoolSize(0, (0,) * len(pool.kv_cache_groups(spec)), 0, 0)
        context, most = int(min(context, longest)), 1
    batch = most if batch is None else min(batch, most)
    counted = pool.num_blocks(spec, room, context, batch, block_size)
    return PoolSize(counted, _of_each(spec, counted, context, batch, block_size), batch, context)


def size_for_blocks(
    spec: CacheSpec, num_blocks: int, *, block_size: int, context: int, batch: int | None = None
) -> PoolSize:
    """The blocks of every group where ``num_blocks`` is given.

    ``context`` is cut to the tokens that the blocks hold; ``batch`` None means as many such sequences as they hold.
    Raises ``ArgumentError`` for counts that are none.
    """
    check_count("num_blocks", num_blocks)
    _check(block_size, context, batch)
    context = min(context, num_blocks * block_size)
    if batch is None:
        batch = num_blocks // -(-context // block_size)
    return PoolSize(num_blocks, _of_each(spec, num_blocks, context, batch, block_size), batch, context)


def check_utilization(utilization: object) -> None:
    """Raise ``ArgumentError`` unless ``utilization`` is a number above 0 and at most 1."""
    if isinstance(utilization, bool) or not isinstance(utilization, int | float) or not 0 < utilization <= 1:
        raise ArgumentError("out_of_range", what="utilization", value=utilization, low=0, high=1)


def _check(block_size: int, context: int, batch: int | None) -> None:
    check_count("block_size", block_size)
    check_count("context", context)
    if batch is not None:
        check_count("batch", batch)


def _of_each(spec: CacheSpec, counted: int, context: int, batch: int, block_size: int) -> tuple[int, ...]:
    groups = pool.counted_groups(spec)
    return tuple(
        counted if group in groups else batch * group.layer.blocks_for(context, block_size)
        for group in pool.kv_cache_groups(spec)
    )
