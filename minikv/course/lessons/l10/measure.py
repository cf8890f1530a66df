"""The measurements of lesson 10: paged against contiguous attention; on a GPU, also the steps against a copy."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minikv.course.lessons.l10.bytes_moved import Shape, floor
from minikv.course.lessons.l10.launch import Paged, paged, run_splits
from minikv.kernels import gather, merge_splits, paged_decode
from minikv.memory.bandwidth import cache_sizes, seconds_of

FLUSHED = 4  # times the largest cache: what was read before it is not there any more
ROUNDS = 3  # measured in turn, so that a busy moment does not hit one way only
# Block size in tokens; whether the blocks are shuffled
BLOCKS = ((16, False), (16, True), (64, True), (256, True), (1, True))


def measure(shape: Shape, dtype: torch.dtype, device: str) -> dict[tuple[str, int], float]:
    """Return the seconds of one decode of ``shape``'s lengths (all equal), by way and block size.

    "contiguous" is torch's attention over K and V without blocks. "gathered" first copies them out of blocks of 16.
    "in_order" and "shuffled" are ``paged_decode``.
    """
    ways = {key: repeated(way, device) for key, way in _ways(shape, dtype, device).items()}
    rounds = [
        {key: seconds_of(way, torch.device(device)) for key, way in ways.items()} for _ in range(ROUNDS)
    ]
    return {key: min(one[key] for one in rounds) for key in ways}


def _ways(shape: Shape, dtype: torch.dtype, device: str) -> dict[tuple[str, int], Callable[[], Tensor]]:
    def case(block_size: int, shuffled: bool) -> Paged:
        return _case(shape, block_size, shuffled, dtype, device)

    def copied() -> list[Tensor]:
        """Copy K and V [B, S, Hkv, D] out of their blocks."""
        return [
            torch.stack([gather(cache, table, shape.lengths[0]) for table in blocks.block_tables])
            for cache in (blocks.k_cache, blocks.v_cache)
        ]

    def dense(keys: Tensor, values: Tensor) -> Tensor:
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        out = scaled_dot_product_attention(blocks.query.unsqueeze(2), keys, values, enable_gqa=True)
        return out.squeeze(2)

    def decoded(one: Paged) -> Callable[[], Tensor]:
        return lambda: paged_decode(one.query, one.kv, scale=one.scale).out

    blocks = case(16, True)
    kept = copied()
    ways: dict[tuple[str, int], Callable[[], Tensor]] = {
        ("contiguous", 0): lambda: dense(*kept),
        ("gathered", 16): lambda: dense(*copied()),
    }
    for block_size, shuffled in BLOCKS:
        ways["shuffled" if shuffled else "in_order", block_size] = decoded(case(block_size, shuffled))
    return ways


def steps_gb_s(
    tokens: Sequence[int], dtype: torch.dtype, device: str, cache_bytes: int | None = None
) -> dict[str, list[float]]:
    """Return the GB/s of the lesson's steps and the package's kernel for one sequence, by the floor's bytes.

    Sequences are read in turn, as many as hold ``FLUSHED`` times ``cache_bytes`` (None: the device's largest cache), so
    that none of them is still in a cache when its turn comes again.
    """
    steps: dict[str, Callable[[Paged], Any]] = {
        "packed": lambda one: merge_splits(*run_splits(one, 1)),
        "split": lambda one: merge_splits(*run_splits(one, 32)),
        "package": lambda one: paged_decode(one.query, one.kv, scale=one.scale),
    }
    if cache_bytes is None:
        cache_bytes = max((cache.size for cache in cache_sizes(device)), default=0)
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for length in tokens:
        shape = Shape((length,), itemsize=dtype.itemsize)
        turns = max(1, -(-FLUSHED * cache_bytes // floor(shape).num_bytes))
        cases = [_case(shape, shape.block_size, True, dtype, device) for _ in range(turns)]
        for name, step in steps.items():

            def run(step: Callable[[Paged], Any] = step, cases: list[Paged] = cases) -> None:
                for one in cases:
                    step(one)

            seconds = seconds_of(repeated(run, device), torch.device(device)) / turns
            rates[name].append(floor(shape).num_bytes / seconds / 1e9)
    return rates


def first_call_seconds(dtype: torch.dtype, device: str) -> tuple[float, float]:
    """Return the seconds of the first call of the package's decode at a shape of its own, and of the second.

    A GPU compiles the kernel in the first one, unless Triton's cache on the disk has it.
    """
    one = _case(Shape((64,), dim=32, itemsize=dtype.itemsize), 16, True, dtype, device)
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        paged_decode(one.query, one.kv, scale=one.scale)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds[0], seconds[1]


def repeated(fn: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Return ``fn`` as a CUDA graph on a GPU, which costs the CPU almost nothing to launch; elsewhere ``fn`` itself."""
    if device == "cpu":
        return fn
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def _case(shape: Shape, block_size: int, shuffled: bool, dtype: torch.dtype, device: str) -> Paged:
    return paged(
        list(shape.lengths),
        kv_heads=shape.kv_heads,
        group=shape.group,
        dim=shape.dim,
        block_size=block_size,
        shuffled=shuffled,
        dtype=dtype,
        device=device,
    )
