"""Fleet: replicas of an engine on GPUs that are not there, and the simulation that sends a trace to them.

    >>> fleet = Fleet.plan("Llama-3.1-70B", "H200", tp=8, replicas=2, router="prefix")
    >>> fleet.gpus, fleet.blocks[0] > 100_000
    (16, True)

The replicas share nothing but the router. Nothing here is random: the same trace and fleet give the same outcome.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.blocks.pool import BLOCK_BOOK_BYTES
from minikv.engine.core.rules import peak_blocks
from minikv.engine.ext.events import AnyEvent
from minikv.errors import ArgumentError, DoesNotFitError, RequestTooLargeError, check_count
from minikv.plan import pool
from minikv.plan.budget import plan_memory
from minikv.plan.measured import size_for_bytes
from minikv.plan.preemption import TransferRates
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.shown import one_line
from minikv.simulate.arrival import Arrival
from minikv.simulate.assumptions import Assumptions
from minikv.simulate.outcome import Outcome, OutcomeRecord, Progress
from minikv.simulate.replica import Replica, Unreached
from minikv.simulate.router import Router, RouterName, find_router
from minikv.simulate.step_time import StepTime
from minikv.simulate.totals import ReplicaTotals
from minikv.simulate.trace import Trace
from minikv.units import GIB, KIB, format_bytes

FleetEmit = Callable[[int, AnyEvent], object]

# This machine's memory for the bookkeeping of a whole fleet, and of one replica without its blocks.
MOST_BOOK_BYTES = 16 * GIB
REPLICA_BOOK_BYTES = 24 * KIB


@dataclass(frozen=True)
class Fleet:
    """``replicas`` engines, each on ``step_time.cost.tp`` GPUs with a clock of its own.

    ``num_blocks`` is one number a replica, or one for each KV cache group, with ``windows`` (None: no window).
    ``block_bytes`` are those of a block of each group on one rank (None: what ``step_time``'s model takes).
    ``host_blocks`` of each group and replica lie in host memory. They take evicted prefixes and preempted sequences
    where a transfer costs less than a prefill. ``router`` is a name of ``ROUTERS``, or an object with its method; an
    object keeps its state from one simulation to the next. ``max_model_len`` bounds prompt and output of a request
    together (None: only the pool does).

    Raises ``ArgumentError`` for impossible values. Also where the bookkeeping of all replicas, ``book_bytes`` each,
    could take more than 16 GiB of this machine's memory.
    """

    step_time: StepTime
    num_blocks: int | tuple[int, ...]
    block_size: int = 16
    replicas: int = 1
    router: RouterName | Router = "least-loaded"
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    host_blocks: int = 0
    windows: tuple[int | None, ...] = (None,)
    block_bytes: tuple[int, ...] = ()
    max_model_len: int | None = None

    def __repr__(self) -> str:
        blocks = " + ".join(f"{count:,}" for count in self.blocks)
        router = self.router if isinstance(self.router, str) else type(self.router).__name__
        each = f"{blocks} blocks of {self.block_size:,} tokens each"
        where = f"{self.gpus:,} x {self.step_time.roof.name}"
        return one_line(
            "Fleet", where, f"{self.replicas:,} replicas at tp={self.tp}", each, f"router {router}"
        )

    @classmethod
    def plan(
        cls,
        config: Any,
        gpu: str,
        *,
        tp: int = 1,
        replicas: int = 1,
        router: RouterName | Router = "least-loaded",
        kv_dtype: str | None = None,
        utilization: float = 0.9,
        block_size: int = 16,
        host_kv_bytes: int = 0,
        max_num_seqs: int = 256,
        max_batched_tokens: int = 8192,
        gpu_bytes: int | None = None,
        weight_bytes: int | None = None,
        assumptions: Assumptions | None = None,
    ) -> "Fleet":
        """The fleet with the blocks that ``plan_memory`` leaves for the cache of each GPU.

        ``config``: as for ``CacheSpec.from_config``; ``gpu``: a catalogue name. ``host_kv_bytes``: host memory of one
        replica, all its ranks together. ``weight_bytes``: of one rank, kept and read. Windowed layers get a window for
        each sequence and a step's tokens, so that they never run out first. Raises what ``plan_memory`` and
        ``step_cost`` raise; ``DoesNotFitError`` says what to change.
        """
        check_count("host_kv_bytes", host_kv_bytes, least=0)
        check_count("max_num_seqs", max_num_seqs)
        clock = StepTime.of_model(
            config, gpu, tp=tp, kv_dtype=kv_dtype, weight_bytes=weight_bytes, assumptions=assumptions
        )
        budget = plan_memory(
            config,
            gpu=gpu,
            gpu_bytes=gpu_bytes,
            tp=tp,
            kv_dtype=kv_dtype,
            utilization=utilization,
            block_size=block_size,
            chunk=max_batched_tokens,
            weight_bytes=weight_bytes,
        )
        groups = pool.kv_cache_groups(budget.spec)
        context, batch = _window_room(budget.spec, block_size, max_num_seqs, max_batched_tokens)
        size = size_for_bytes(
            budget.spec,
            budget.kv_bytes - max_num_seqs * budget.spec.constant_state_bytes,
            block_size=block_size,
            context=context or budget.context,
            batch=batch,
        )
        block_bytes = tuple(group.block_bytes(block_size) for group in groups)
        host_blocks = host_kv_bytes // (sum(block_bytes) * tp)
        if host_kv_bytes and not host_blocks:
            least = format_bytes(sum(block_bytes) * tp)
            raise DoesNotFitError("fleet_host_small", given=format_bytes(host_kv_bytes), least=least)
        return cls(
            clock,
            size.blocks,
            block_size,
            replicas,
            router,
            max_num_seqs,
            max_batched_tokens,
            host_blocks,
            tuple(group.layer.window for group in groups),
            block_bytes,
            budget.spec.max_positions,
        )

    def __post_init__(self) -> None:
        if not isinstance(self.step_time, StepTime):
            given = type(self.step_time).__name__
            raise ArgumentError("simulate_type", what="step_time", kind="StepTime", value=given)
        for what in ("block_size", "replicas", "max_num_seqs", "max_batched_tokens"):
            check_count(what, getattr(self, what))
        check_count("host_blocks", self.host_blocks, least=0)
        for count in self.blocks:
            check_count("num_blocks", count)
        find_router(self.router)
        if not self.block_bytes:
            object.__setattr__(self, "block_bytes", self._block_bytes())
        for num_bytes in self.block_bytes:
            check_count("block_bytes", num_bytes)
        counts = {"blocks": len(self.blocks), "windows": len(self.windows), "sizes": len(self.block_bytes)}
        if len(set(counts.values())) > 1:
            raise ArgumentError("fleet_groups", **counts)
        if self.max_batched_tokens < self.max_num_seqs:
            raise ArgumentError("scheduler_budget", tokens=self.max_batched_tokens, seqs=self.max_num_seqs)
        if self.replicas * self.book_bytes > MOST_BOOK_BYTES:
            raise ArgumentError(
                "fleet_books",
                replicas=self.replicas,
                needed=format_bytes(self.replicas * self.book_bytes),
                each=format_bytes(self.book_bytes),
                limit=format_bytes(MOST_BOOK_BYTES),
            )

    @property
    def book_bytes(self) -> int:
        """Bytes of this machine's memory for one replica: its scheduler, and pools before anything is cached."""
        blocks = sum(self.blocks) + self.host_blocks * len(self.blocks)
        return REPLICA_BOOK_BYTES + blocks * BLOCK_BOOK_BYTES

    @property
    def blocks(self) -> tuple[int, ...]:
        """``num_blocks`` of each KV cache group, of one replica."""
        return (self.num_blocks,) if isinstance(self.num_blocks, int) else tuple(self.num_blocks)

    @property
    def tp(self) -> int:
        """GPUs of a replica."""
        return self.step_time.cost.tp

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tp * self.replicas

    def manager(self) -> BlockManager:
        """A new block manager of one replica."""
        groups = [KVCacheGroup(*pair) for pair in zip(self.blocks, self.windows, strict=True)]
        host = HostBlocks(self.host_blocks, self.block_size, len(groups))
        return BlockManager(groups, self.block_size, host_blocks=host)

    def rates(self) -> TransferRates | None:
        """The rates that decide between swap and recompute: this GPU's link, and prefills of a whole step."""
        if not self.host_blocks:
            return None
        link = self.step_time.assumptions.host_gb_s * 1e9
        return TransferRates(link, link, self.step_time.prefill_rate(self.max_batched_tokens))

    def replica(
        self,
        *,
        emit: Callable[[AnyEvent], object] | None = None,
        on_end: Callable = lambda seq: None,
        **more: Any,
    ) -> Replica:
        """A new replica; see ``Replica``."""
        return Replica(
            self.step_time,
            self.manager(),
            self.block_bytes,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=self.max_batched_tokens,
            max_model_len=self.max_model_len,
            rates=self.rates(),
            emit=emit,
            on_end=on_end,
            **more,
        )

    def check(self, trace: Trace) -> None:
        """Raise ``RequestTooLargeError`` for the first request that could never run here, with its line or its number.

        Raise ``ArgumentError`` where the steps are too short for times as late as the trace's.
        """
        self.step_time.check_clock(trace.requests[-1].arrival)
        for index, request in enumerate(trace.requests):
            stored = request.prompt_tokens + request.output_tokens - 1  # the last token is not stored
            values = {"prompt": request.prompt_tokens, "output": request.output_tokens}
            most = self.max_model_len
            if most is not None and stored >= most:
                raise trace.at(index, RequestTooLargeError("fleet_beyond_model", **values, most=most))
            for total, window in zip(self.blocks, self.windows, strict=True):
                asked = peak_blocks(stored, window, self.block_size)
                if asked > total:
                    values |= {"asked": asked, "total": total, "block_size": self.block_size}
                    raise trace.at(index, RequestTooLargeError("fleet_too_large", **values))

    def _block_bytes(self) -> tuple[int, ...]:
        """Bytes of a block of each group, from the bytes of a cached token in the layers with its window."""
        costs = self.step_time.cost.attention
        if self.windows == (None,):
            return (self.block_size * sum(each.token_bytes for each in costs),)
        return tuple(
            self.block_size * sum(each.token_bytes for each in costs if each.window == window)
            for window in self.windows
        )


def simulate(
    trace: Trace,
    fleet: Fleet,
    *,
    emit: FleetEmit | None = None,
    progress: Progress | None = None,
    stepwise: bool = False,
) -> Outcome:
    """Send every request of ``trace`` to a replica of ``fleet`` when it arrives, and go on until all have ended.

    ``emit`` is called with the number of a replica and each event of its scheduler; request ids are numbers in the
    trace. ``progress`` is called with the number of ended requests each time that one ends. ``stepwise`` schedules
    every step on its own: slower, with the same outcome. A replica's scheduler and block pools are made when the first
    request reaches it. Raises ``RequestTooLargeError`` before anything runs.
    """
    fleet.check(trace)
    router, record = find_router(fleet.router), OutcomeRecord(trace, fleet, progress)
    replicas: list[Replica | Unreached] = [Unreached(ReplicaTotals(len(fleet.blocks)))] * fleet.replicas
    reached: list[Replica] = []
    for index in range(len(trace)):
        arrival = Arrival(trace, index, fleet.block_size)
        for replica in reached:
            replica.advance(arrival.time)
        chosen = router.choose(arrival, replicas)
        if type(chosen) is not int or not 0 <= chosen < len(replicas):
            raise ArgumentError("fleet_no_replica", value=chosen, last=len(replicas) - 1)
        record.replica[index] = chosen
        target = replicas[chosen]
        if isinstance(target, Unreached):
            listen = None if emit is None else partial(emit, chosen)
            target = fleet.replica(emit=listen, on_end=record.end, jumps=not stepwise)
            replicas[chosen] = target
            reached.append(target)
        target.enqueue(arrival)
    for replica in reached:
        replica.advance()
    return record.outcome([replica.totals for replica in replicas])


def _window_room(
    spec: CacheSpec, block_size: int, max_num_seqs: int, max_batched_tokens: int
) -> tuple[int | None, int | None]:
    """(context, batch) that windowed layers get blocks for, as an engine sizes them; (None, None) without windows."""
    widest = max((layer.window or 0 for layer in spec.layers), default=0)
    if not widest:
        return None, None
    bounds = (widest + 1 + block_size, spec.max_positions)
    context = min(bound for bound in bounds if bound is not None)
    blocks = -(-context // block_size)
    return context, max_num_seqs + -(-max_batched_tokens // (blocks * block_size))
