"""Host: the host memory of an LLM. It carries out a step's transfers and measures their cost. Lesson 12."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from minikv.blocks import BlockManager
from minikv.cache.offload import HostPool
from minikv.cache.paged import PagedKVCache
from minikv.cache.pages import Pages
from minikv.engine.core.step import Step
from minikv.engine.ext.offload import Offload, PrefillSpeed, Transfers
from minikv.engine.serve.prefix_files import PrefixFile
from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.memory.stats import MemoryStats
from minikv.models.sharding import ranks_wanted
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups
from minikv.plan.preemption import TransferRates
from minikv.units import exact_bytes

BLOCKS, ROUNDS = 16, 5  # moved at a time, and how often, to measure the rates of a transfer


@dataclass(frozen=True)
class OffloadConfig:
    """The requested host memory of an LLM; see ``LLM``. Raises ``ArgumentError`` for an impossible request."""

    cpu_kv_bytes: int | None
    cpu_block_size: int | None
    swap_rates: TransferRates | None
    prefix_dir: str | Path | None
    block_size: int
    cache: str
    tp: int | str

    def __post_init__(self) -> None:
        if self.cpu_kv_bytes is None:
            for what in ("cpu_block_size", "swap_rates", "prefix_dir"):
                if getattr(self, what) is not None:
                    raise ArgumentError("offload_needs_host", what=what)
            return
        check_count("cpu_kv_bytes", self.cpu_kv_bytes)
        if self.cache == "linear":
            raise ArgumentError("offload_linear")
        if ranks_wanted(self.tp) > 1:
            raise ArgumentError("offload_ranks", tp=self.tp)
        if self.swap_rates is not None and not isinstance(self.swap_rates, TransferRates):
            raise ArgumentError("offload_rates", value=type(self.swap_rates).__name__)
        if self.cpu_block_size is not None:
            check_count("cpu_block_size", self.cpu_block_size)
            whole, rest = divmod(self.cpu_block_size, self.block_size)
            if rest:
                below, above = max(1, whole) * self.block_size, (whole + 1) * self.block_size
                sizes = {"cpu_block_size": self.cpu_block_size, "block_size": self.block_size}
                raise ArgumentError("offload_block_size", below=below, above=above, **sizes)
        if self.prefix_dir is not None:
            if not isinstance(self.prefix_dir, str | Path):
                raise ArgumentError("disk_path", kind=type(self.prefix_dir).__name__)
            try:
                is_file = Path(self.prefix_dir).exists() and not Path(self.prefix_dir).is_dir()
            except OSError as error:  # a name that is too long, or a folder without access
                reason = error.strerror or error
                raise ArgumentError("prefix_dir_unusable", path=self.prefix_dir, reason=reason) from error
            if is_file:
                raise ArgumentError("prefix_dir_no_folder", path=self.prefix_dir)

    def num_blocks(self, spec: CacheSpec) -> int:
        """Return the blocks of ``block_size`` tokens for each KV cache group; host memory is taken in whole CPU
        blocks.
        """
        if self.cpu_kv_bytes is None:
            return 0
        tokens = self.cpu_block_size or self.block_size
        need = sum(group.block_bytes(tokens) for group in kv_cache_groups(spec))
        count = self.cpu_kv_bytes // need
        if not count:
            values = {"cpu_kv_bytes": self.cpu_kv_bytes, "tokens": tokens, "need": need}
            raise ArgumentError("offload_too_small", name=spec.name, **values)
        free = MemoryStats.read("cpu").free  # Linux promises more than it has, and then ends the process
        if count * need > free:
            raise DoesNotFitError("offload_no_room", need=exact_bytes(count * need), free=exact_bytes(free))
        return count * (tokens // self.block_size)

    def open(self, model: torch.nn.Module, cache: Pages, offload: Offload) -> "Host":
        """Return the host's pool beside ``cache``, filled with the prefixes of earlier runs, for ``offload``."""
        manager = offload.scheduler.manager
        assert isinstance(cache, PagedKVCache), "__post_init__ refuses the other one"
        blocks = [each.num_blocks for each in manager.host_pools]
        need = sum(
            group.block_bytes(cache.block_size) * count
            for group, count in zip(cache.kv_cache_groups, blocks, strict=True)
        )
        free = MemoryStats.read("cpu").free  # again, since the cache may have taken the same memory
        if need > free:
            raise DoesNotFitError("offload_no_room", need=exact_bytes(need), free=exact_bytes(free))
        pool = HostPool(cache, blocks)
        try:
            host = Host(pool, self.swap_rates)
            if self.prefix_dir is not None:
                host.prefixes = PrefixFile(self.prefix_dir, model, pool)
                host.prefixes.load(manager)
        except BaseException:
            pool.close()  # a notebook keeps the traceback, and that keeps the pool
            raise
        offload.host, offload.rates = host, self.swap_rates
        return host


class Host:
    """``pool`` holds the host blocks of the engine's block manager; ``prefixes`` outlive the process.

    Without ``rates`` the transfers are measured now, and the prefill from the first steps: before them nothing can be
    preempted or evicted.
    """

    def __init__(self, pool: HostPool, rates: TransferRates | None = None):
        self.pool = pool
        self.prefixes: PrefixFile | None = None
        self._speed = None if rates is not None else PrefillSpeed()
        if rates is None:
            self.to_host, self.to_device = transfer_speeds(pool)
        else:
            self.to_host, self.to_device = rates.to_host, rates.to_device

    def swap_out(self, pairs: Transfers) -> None:
        """Read these device blocks. On a GPU the copies run on a stream of their own.

        In a step that swaps nothing in they run beside the forward.
        """
        for piece in self.pool.pieces(pairs):
            self.pool.swap_out(piece)

    def swap_in(self, pairs: Transfers) -> None:
        """Write these device blocks, after the blocks going out; they may take their places. The forward waits."""
        for piece in self.pool.pieces(pairs):
            self.pool.swap_in(piece).wait()

    def rates_after(self, step: Step, seconds: float) -> TransferRates | None:
        """Return the rates after ``step``, computed in ``seconds``: a prefill shows the speed of a recompute."""
        prefill = None if self._speed is None else self._speed.after(step, seconds)
        return None if prefill is None else TransferRates(self.to_host, self.to_device, prefill)

    def save(self, manager: BlockManager) -> None:
        """Keep the prefixes for the next run, if that was asked for. No sequence may be left."""
        if self.prefixes is not None:
            self.prefixes.save(manager)

    def close(self) -> None:
        """Free the memory, before the cache does. A second call does nothing."""
        self.pool.close()


def transfer_speeds(pool: HostPool) -> tuple[float, float]:
    """Return (to the host, to the device) in bytes a second: the median of some rounds with the first blocks.

    The cache is not changed. The pool's blocks are overwritten: measure while they are empty.
    """
    cache = pool.cache
    counts = [min(BLOCKS, *blocks) for blocks in zip(cache.num_blocks, pool.num_blocks, strict=True)]
    pairs = [[(block, block) for block in range(count)] for count in counts]
    sizes = [group.block_bytes(cache.block_size) for group in cache.kv_cache_groups]
    num_bytes = sum(count * size for count, size in zip(counts, sizes, strict=True))
    out, back = [], []
    for _ in range(1 + ROUNDS):  # the first one warms up
        if cache.device.type == "cuda":
            torch.cuda.synchronize(cache.device)
        began = perf_counter()
        pool.swap_out(pairs).synchronize()
        there = perf_counter()
        pool.swap_in(pairs).synchronize()
        out.append(there - began)
        back.append(perf_counter() - there)
    return num_bytes / median(out[1:]), num_bytes / median(back[1:])
