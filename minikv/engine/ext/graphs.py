"""Decode steps as CUDA graphs: captured once for each batch size, then started with one call each. Lesson 13b.

A decode step is some hundred small kernels, and the host takes longer to launch one than the GPU to run it. A
CUDA graph is the list of those launches with all their arguments, which the GPU runs alone. So nothing in it
may change from step to step, neither an address nor a size, and the host cannot read a result in between.

    step of 11 decodes  ->  bucket 16: 11 rows and 5 of padding into the buffers  ->  replay  ->  11 rows of logits

Steps with a prefill are computed without graphs: they are few, large, and each has another shape. On a CPU the same
steps are recorded and replayed (``minikv.engine.ext.recorded``).
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import clear_frames
from typing import Any, Protocol

import torch
from torch import Tensor

from minikv.cache.codec import find_codec
from minikv.engine.core.runner import Compute, Runner
from minikv.engine.core.step import Step, StepArrays
from minikv.engine.ext.decode_buffers import DecodeBuffers, DecodeSizes, one_row
from minikv.engine.ext.graph_memory import GraphMemory
from minikv.engine.ext.recorded import CpuCapturer, can_record
from minikv.errors import DoesNotFitError, first_line
from minikv.i18n import text
from minikv.kernels.dispatch import part_bytes
from minikv.kernels.paged_kv import PagedKV
from minikv.memory.peak import measure_peak
from minikv.models import Adapter
from minikv.models.batch import sees
from minikv.plan.pool import kv_cache_groups
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.units import MIB

WAITED = "called a synchronizing"  # a part of torch's warning
# Assumptions until the graphs are captured and measured:
GRAPH_BYTES = 8 * MIB  # the driver's memory for one graph of some hundred kernels
POOL_SLACK = 48 * MIB  # torch's allocator takes segments of 20 MiB, and some are not full


def buckets(most: int) -> tuple[int, ...]:
    """Return the batch sizes that are captured for up to ``most`` sequences: 1, 2, 4, 8, 16, 24, ... and ``most``.

    A step is padded to the next size. Its time depends on the keys that it reads, and padding reads none; within 8 rows
    it hardly changes otherwise, since a tensor core multiplies 8 or 16 of them at once. Below 8 one row more is a large
    share, so sizes double there. Each size costs a capture and the graph's memory.
    """
    return tuple(sorted({size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most}))


class Capturer(Protocol):
    """Makes a function repeatable: ``CudaCapturer`` on a GPU, ``CpuCapturer`` on a CPU.

    ``late``: a batch size is captured when it is first needed, and not all of them at the start.
    """

    @property
    def late(self) -> bool: ...

    @property
    def pool_bytes(self) -> int: ...

    @property
    def driver_bytes(self) -> int: ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats all device work of ``run``, on the same addresses."""

    def holds(self) -> bool:
        """Return whether captures may be replayed now."""

    def renew(self) -> bool:
        """Return whether earlier captures are no longer of the model as it is."""

    def close(self) -> None:
        """Drop the captures."""


class CudaCapturer:
    """Captures CUDA graphs on ``device``. They share a pool, so they must not run at the same time.

    ``pool_bytes``: torch's memory for the graphs' intermediate results. ``driver_bytes``: the driver's memory for the
    graphs themselves.
    """

    late = False

    def __init__(self, device: torch.device):
        self.pool_bytes = self.driver_bytes = 0
        self._device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run twice, capture, replay once. Raises what ``run`` raises, and ``RuntimeError`` where it waits for the GPU.

        The first run does one-time work that a capture must not contain: it compiles kernels, loads modules, sets up
        cuBLAS. It runs on the captured stream, because cuBLAS keeps a workspace for each stream and the graphs store
        its address. So no two capturers share a stream: torch frees the workspace with the first graph that is reset
        (pytorch#193402).
        """
        # An outer stream block: torch.cuda.graph does not leave its own if the end of a capture raises.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            torch.cuda.synchronize()  # the buffers and the cache were written on another stream
            run()
            self._run_without_waiting(run)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            reserved, rest = self._taken()
            graph = torch.cuda.CUDAGraph()
            # Allocations of other threads do not end this capture.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                run()
            graph.replay()  # a graph's first start takes memory of the driver too
            torch.cuda.synchronize()
            now_reserved, now_rest = self._taken()
        self._graphs.append(graph)
        self.pool_bytes += max(0, now_reserved - reserved)
        self.driver_bytes += max(0, now_rest - rest)
        return graph.replay

    def holds(self) -> bool:
        return True

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        """Free the graphs' memory, once none of them runs any more."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # Else the pool, and what the runs left on their stream, could serve nothing else
        torch.cuda.empty_cache()

    def _run_without_waiting(self, run: Callable[[], None]) -> None:
        """Raise ``RuntimeError`` where ``run`` waits for the GPU, as far as torch notices.

        The capture would notice the rest, but a failed capture does more harm: before torch 2.12 the allocator believes
        that it still goes on (pytorch#180395). The mode holds for all threads, so it only warns.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                run()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        for each in said:
            if WAITED in str(each.message):
                raise RuntimeError(f"{WAITED} CUDA operation, {Path(each.filename).name} line {each.lineno}")

    def _taken(self) -> tuple[int, int]:
        """Return the bytes of this GPU that torch's allocator has reserved, and the other bytes taken there."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        return reserved, total - free - reserved


@dataclass(frozen=True)
class Eager:
    """Why decode steps are not replayed: ``reason`` is a word of ``engine.toml``, ``detail`` a library's message."""

    reason: str
    detail: str = ""

    def text(self, lang: str = "en") -> str:
        """Return a clause, such as "enforce_eager=True asks for it"."""
        return text(f"engine.eager_{self.reason}", lang, detail=self.detail)


class DecodeGraphs:
    """The decode steps of ``adapter`` with up to ``max_rows`` sequences of up to ``width`` blocks, captured.

    The model's parameters must stay where they are. Raises what ``capturer`` raises, and has freed everything then.
    """

    def __init__(self, adapter: Adapter, max_rows: int, width: int, capturer: Capturer):
        self.adapter, self.capturer = adapter, capturer
        self.buckets = buckets(max_rows)
        token_ids, batch = one_row(adapter.cache)
        logits = adapter.forward(token_ids, batch)
        sizes = DecodeSizes(
            max_rows, width, len(adapter.cache.kv_cache_groups), logits.shape[1], logits.dtype
        )
        self.buffers = DecodeBuffers(adapter.cache, sizes)
        self._replays: dict[int, Callable[[], None]] = {}
        self._refused: set[int] = set()
        self._holds = False  # of the last step
        try:
            # The largest first: the others use its memory.
            for rows in self.buckets[:1] if capturer.late else reversed(self.buckets):
                self._replays[rows] = capturer.capture(_Decode(self, rows))
            if capturer.late:
                self._compare(self.buckets[0])
        except BaseException as error:
            clear_frames(error.__traceback__)  # the frames hold views of the buffers and of the cache
            capturer.close()
            raise

    @property
    def memory(self) -> GraphMemory:
        """The graphs' memory on the device."""
        capturer = self.capturer
        return GraphMemory(
            len(self._replays), self.buffers.sizes.num_bytes, capturer.pool_bytes, capturer.driver_bytes
        )

    def takes(self, step: StepArrays) -> bool:
        """Return whether ``step`` can be replayed. If not, it is computed, or refused, without graphs.

        A late capturer captures its bucket now, if it has not been, which overwrites the buffers with padding.
        """
        limit = self.adapter.position_limit
        fits = self.buffers.takes(step) and (limit is None or int(step.positions.max()) < limit)
        fits = fits and not torch.is_autocast_enabled(self.buffers.cache.device.type)
        # Looked at behind a step that was computed, so at least once a prompt: it takes a tenth of a millisecond.
        if fits and not self._holds and self.capturer.renew():
            self._replays.clear()
            self._refused.clear()
        self._holds = fits and (self._holds or self.capturer.holds())
        return self._holds and self._is_captured(len(step.lengths))

    def replay(self, step: StepArrays, sampled: Tensor | None = None) -> Tensor:
        """Return the logits [sequences, vocabulary] of a captured step. The next replay overwrites them.

        ``sampled``: as in ``DecodeBuffers.fill``.
        """
        rows = len(step.lengths)
        self.buffers.fill(step, sampled)
        self._replays[self._bucket(rows)]()
        return self.buffers.logits[:rows]

    def around(self, compute: Compute) -> Compute:
        """Return ``compute`` with captured steps replaced: these are prepared and replayed, without ``on_batch``."""

        def logits(runner: Runner, step: Step, sampled: Tensor | None) -> Tensor:
            if not self.takes(step.batch):
                return compute(runner, step, sampled)
            runner.prepare(step)
            return self.replay(step.batch, sampled)

        return logits

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        self._replays.clear()
        self.capturer.close()
        self.buffers.close()

    def _compare(self, rows: int) -> None:
        """Raise ``RuntimeError`` if a replay does not give the logits of the model's code, of other tokens."""
        self.buffers.vary(rows)
        logits = self.buffers.logits[:rows]
        _Decode(self, rows)()
        expected = logits.clone()
        logits.zero_()
        self._replays[rows]()
        if not torch.allclose(logits, expected, equal_nan=True):
            raise RuntimeError("what is replayed differs from what the model computes")

    def _bucket(self, rows: int) -> int:
        return self.buckets[bisect_left(self.buckets, rows)]

    def _is_captured(self, rows: int) -> bool:
        """Return whether the bucket of ``rows`` can be replayed; a late capturer captures it now, of padding."""
        bucket = self._bucket(rows)
        if bucket not in self._replays and bucket not in self._refused:
            self.buffers.clear()
            try:
                self._replays[bucket] = self.capturer.capture(_Decode(self, bucket))
            except Exception:  # the model's own code then says what is wrong, if anything is
                self._refused.add(bucket)
        return bucket in self._replays


class _Decode:
    """The decode of ``rows`` sequences, as it is captured. An object: a kept traceback holds no cell of a closure."""

    def __init__(self, graphs: DecodeGraphs, rows: int):
        self.graphs, self.rows = graphs, rows

    @torch.no_grad()
    def __call__(self) -> None:
        buffers, rows = self.graphs.buffers, self.rows
        # A batch of its own, with nothing in it that was computed before. The logits are copied out of the pool, where
        # they would take room that the next capture could use.
        logits = self.graphs.adapter.forward(buffers.token_ids(rows), buffers.batch(rows))
        buffers.logits[:rows].copy_(logits)


def capture_decodes(
    adapter: Adapter,
    max_rows: int,
    longest: int | None,
    *,
    enforce_eager: bool = False,
    ranks: int = 1,
    evicts: bool = False,
) -> DecodeGraphs | Eager:
    """Return the graphs for up to ``max_rows`` sequences of at most ``longest`` tokens (None: no limit), or why none.

    A model may do something that no graph can hold, which the trial shows. Then there is a warning, and steps are
    computed without graphs.
    """
    device = adapter.cache.device
    on_gpu = device.type == "cuda"
    if not on_gpu and not can_record(adapter.cache):
        return Eager("cpu")
    if enforce_eager:
        return Eager("asked")
    if evicts:
        return Eager("evicts")
    if ranks > 1:
        return Eager("ranks")
    if adapter.reads == "gather":
        return Eager("gather")
    if adapter.states is not None:
        return Eager("states")
    width = table_width(adapter, longest)
    if width is None:
        return Eager("endless")
    try:
        capturer = CudaCapturer(device) if on_gpu else CpuCapturer(adapter.model)
        return DecodeGraphs(adapter, max_rows, width, capturer)
    except (DoesNotFitError, torch.OutOfMemoryError) as error:
        why = Eager("memory", first_line(error))
    except RuntimeError as error:  # torch's, for code that waits and code that cannot be captured
        why = Eager("refused", first_line(error))
    except Exception as error:
        if on_gpu:
            raise
        why = Eager("refused", first_line(error))
    if on_gpu:
        warnings.warn(text("engine.eager_warning", "en", why=why.text()), stacklevel=5)
    return why


def expected_memory(model: Any, spec: CacheSpec, max_rows: int, width: int, block_size: int) -> GraphMemory:
    """Return the expected memory of the graphs of ``model``, on a cache of ``spec``; see ``DecodeGraphs``.

    The pool is measured: a forward of ``max_rows`` single tokens without a cache needs what a decode needs, except the
    partial results of split attention, which are counted.
    """
    device = model.get_input_embeddings().weight.device
    seen: list[Tensor] = []

    @torch.no_grad()
    def decode() -> None:
        ids = torch.zeros(max_rows, 1, dtype=torch.long, device=device)
        seen.append(model(input_ids=ids, use_cache=False).logits[:1, -1])

    peak = measure_peak(decode, device)
    groups = len(kv_cache_groups(spec))
    sizes = DecodeSizes(max_rows, width, groups, seen[0].shape[-1], seen[0].dtype)
    pool = peak.extra + partial_bytes(model, spec, sizes, block_size) + POOL_SLACK
    count = len(buckets(max_rows))
    return GraphMemory(count, sizes.num_bytes, pool, count * GRAPH_BYTES)


def partial_bytes(model: Any, spec: CacheSpec, sizes: DecodeSizes, block_size: int) -> int:
    """Return the most bytes of partial results that a layer's attention leaves in a captured decode; 0 without splits.

    Each launch is made on tensors without memory. A layer's are gone before the next layer's are made. Where the config
    of a measured model has no number of heads, none are counted.
    """
    weight, found = model.get_input_embeddings().weight, [0]
    heads = getattr(model.config.get_text_config(decoder=True), "num_attention_heads", None)
    if not isinstance(heads, int):
        return 0
    codec = find_codec(spec.kv_dtype)
    stored = codec.dtype if codec.itemsize > 1 else weight.dtype
    empty = partial(torch.empty, device="meta")
    for layer in {each for each in spec.layers if each.token_bytes}:
        k, v = (empty(1, block_size, layer.kv_heads, dim, dtype=stored) for dim in (layer.k_dim, layer.v_dim))
        for rows in buckets(sizes.max_rows):
            table, lengths = (empty(shape, dtype=torch.int32) for shape in ((rows, sizes.tables[2]), (rows,)))
            query, rope = (empty(rows, heads, dim, dtype=weight.dtype) for dim in (layer.k_dim, layer.v_dim))
            options = {"q_rope": rope if layer.kind == "latent" else None, "window": sees(spec, layer)}
            kv = PagedKV(k, v, table, lengths)
            found.append(part_bytes(weight.device, query, kv, scale=1.0, **options))
    return max(found)


def table_width(adapter: Adapter, longest: int | None) -> int | None:
    """Return the most blocks in a table of this cache; None without a limit."""
    cache = adapter.cache
    whole = (
        count
        for count, group in zip(cache.num_blocks, cache.kv_cache_groups, strict=True)
        if group.layer.window is None
    )
    most = min(whole, default=None)
    if longest is None:
        return most
    need = -(-longest // cache.block_size)
    return need if most is None else min(need, most)
