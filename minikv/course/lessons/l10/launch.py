"""Helpers for the cells of lesson 10: preparing Triton, small paged caches, and launches of the lesson's kernels."""

import importlib.util
import os
import random
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.kernels import PagedKV, reference
from minikv.nano.runner import Batch, make_batch
from minikv.nano.sequence import SamplingParams, Sequence


def prepare() -> str:
    """Prepare Triton before its first import. Returns "gpu", "interpreter", or "none" without Triton.

    Triton decides when a kernel is defined whether it will be compiled or interpreted, and it defines its own functions
    on import. So on a machine without a GPU the environment variable must be set first. Raises ``ArgumentError`` if
    Triton has been imported too early: then the notebook's kernel must be restarted.
    """
    if importlib.util.find_spec("triton") is None:
        return "none"
    if torch.cuda.is_available():
        return "gpu"
    if os.environ.get("TRITON_INTERPRET") != "1" and "triton" in sys.modules:
        raise ArgumentError("triton_too_early")
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # later versions warn where it is unset
    return "interpreter"


@dataclass(frozen=True)
class Paged:
    """B sequences on shuffled blocks.

    ``query`` [B, Hq, D]; ``k_cache``, ``v_cache`` [N, block_size, Hkv, D], NaN in slots without a token;
    ``block_tables`` [B, W] int32, -1 past the length; ``lengths`` [B] int32.
    """

    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    lengths: Tensor

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5

    @property
    def kv(self) -> PagedKV:
        """Return the cache as the package's operations take it."""
        return PagedKV(self.k_cache, self.v_cache, self.block_tables, self.lengths)

    def batch(self, new: list[int] | None = None) -> Batch:
        """Return nano's batch of a step that computes the last ``new`` tokens of each sequence, by default one each."""
        lengths = self.lengths.tolist()
        tables = [[block for block in table if block >= 0] for table in self.block_tables.tolist()]
        return batch_of(tables, lengths, new or [1] * len(lengths), self.k_cache.shape[1], self.query.device)

    def close(self, out: Tensor) -> bool:
        """Return whether ``out`` equals the result of the plain-torch reference for these tensors, up to rounding."""
        right = reference.paged_decode(self.query, self.kv, scale=self.scale).out
        return torch.allclose(out.to(right.dtype), right, atol=1e-5 if right.dtype == torch.float32 else 2e-3)

    def contiguous(self, row: int) -> tuple[Tensor, Tensor]:
        """Copy K and V [length, Hkv, D] of one sequence, in the order of its tokens."""
        length, size = int(self.lengths[row]), self.k_cache.shape[1]
        blocks = self.block_tables[row, : -(-length // size)].long()
        return self.k_cache[blocks].flatten(0, 1)[:length], self.v_cache[blocks].flatten(0, 1)[:length]


def paged(
    lengths: list[int],
    *,
    kv_heads: int = 2,
    group: int = 4,
    dim: int = 16,
    block_size: int = 8,
    spare: int = 2,
    seed: int = 0,
    shuffled: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Paged:
    """Draw random sequences of these lengths (tokens). The pool has ``spare`` blocks more than they need.

    One of the spare blocks is the last block, so an index of -1 finds NaN. The numbers are drawn on the CPU, so that
    they are the same everywhere; those of a large cache are drawn on its own device.
    """
    place = device if sum(lengths) * kv_heads * dim > 2**24 else "cpu"
    generator = torch.Generator(place).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=place, dtype=dtype).to(device)

    needed = [-(-length // block_size) for length in lengths]
    total = sum(needed) + spare
    order = torch.arange(total - 1)
    if shuffled:
        order = torch.tensor(random.Random(seed).sample(range(total - 1), total - 1))
    query = normal(len(lengths), kv_heads * group, dim)
    k_cache, v_cache = (
        torch.full((total, block_size, kv_heads, dim), torch.nan, dtype=dtype, device=device) for _ in "kv"
    )
    tables = torch.full((len(lengths), max(needed)), -1, dtype=torch.int32)
    taken = 0
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        tables[row, :count] = blocks.int()
        slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:length].to(device)
        for cache in (k_cache, v_cache):
            cache.view(-1, kv_heads, dim)[slots] = normal(length, kv_heads, dim)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Paged(query, k_cache, v_cache, tables.to(device), counts)


def batch_of(
    tables: list[list[int]], lengths: list[int], new: list[int], block_size: int, device: torch.device | str
) -> Batch:
    """Return nano's batch of a step over the last ``new`` tokens of sequences with these block tables and lengths."""
    step = []
    for row, (table, length, count) in enumerate(zip(tables, lengths, new, strict=True)):
        sequence = Sequence(row, [0] * length, length, SamplingParams(), table)
        step.append((sequence, length - count, length))
    return make_batch(step, block_size, torch.device(device))


@dataclass(frozen=True)
class Launch:
    """What nano's decode kernel is launched with. ``tables`` have an entry for each block of a sequence, no padding.

    ``group`` query heads share a KV head; the matrix of a program has ``rows`` rows, a tile ``tile`` positions.
    """

    grid: tuple[int, int]
    lengths: list[int]
    tables: list[list[int]]
    num_blocks: int
    block_size: int
    group: int
    rows: int
    tile: int


class _Recorder:
    """Stands for a kernel: keeps the grid and the arguments of its last launch, and runs nothing."""

    def __getitem__(self, grid: tuple[int, int]) -> "_Recorder":
        self.grid = grid
        return self

    def __call__(self, *tensors: object, **sizes: int) -> None:
        self.sizes = sizes


def launch_of(case: Paged) -> Launch:
    """Return how nano's ``decode_on_gpu`` launches its kernel for ``case``. Call ``prepare`` before."""
    from minikv.nano import attention

    recorder, batch = _Recorder(), case.batch()
    with (
        patch.object(attention, "paged_decode_kernel", recorder, create=True),
        patch.object(
            attention, "triton", SimpleNamespace(next_power_of_2=lambda n: 1 << (n - 1).bit_length())
        ),
    ):
        attention.decode_on_gpu(case.query, case.k_cache, case.v_cache, batch, case.scale)
    num_blocks, block_size, heads, _ = case.k_cache.shape
    tables = [[block for block in table if block >= 0] for table in case.block_tables.tolist()]
    sizes, group = recorder.sizes, case.query.shape[1] // heads
    return Launch(
        recorder.grid,
        case.lengths.tolist(),
        tables,
        num_blocks,
        block_size,
        group,
        sizes["GROUP"],
        sizes["TILE"],
    )


def run_store(key: Tensor, k_cache: Tensor, slots: Tensor) -> None:
    """Store ``key`` [T, Hkv, D] in ``k_cache`` [N, block_size, Hkv, D] with the lesson's kernel."""
    from minikv.course.lessons.l10.kernels import store_kernel

    _, block, heads, dim = k_cache.shape
    store_kernel[(len(slots),)](key.contiguous(), k_cache, slots, BLOCK=block, ROW=heads * dim)


def run_splits(case: Paged, splits: int) -> tuple[Tensor, Tensor]:
    """Run step 5, a program a sequence, KV head and split: parts [splits, B, Hq, D] and lse [splits, B, Hq]."""
    from minikv.course.lessons.l10.kernels import split_kernel

    batch, heads, dim = case.query.shape
    parts, lse = (
        torch.full((splits, batch, heads, *rest), torch.nan, device=case.query.device) for rest in ([dim], [])
    )
    grid = (batch, case.k_cache.shape[2], splits)
    tensors = case.query, case.k_cache, case.v_cache, case.block_tables, case.lengths, parts, lse
    width = case.block_tables.shape[1]
    split_kernel[grid](*tensors, case.scale, width, SPLITS=splits, **_sizes(case))
    return parts, lse


def package_splits(batch: int, tokens: int, multiprocessors: int = 132) -> int:
    """Return how many splits the package's decode gives each of ``batch`` sequences of ``tokens`` tokens on a Hopper.

    32 query heads, 8 KV heads of 128 elements in bfloat16, blocks of 16. Read from the launch, of tensors without data.
    """
    from minikv.kernels.gpu.common import Device
    from minikv.kernels.gpu.launches import attention_launches
    from minikv.kernels.occupancy import split_tiles

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    cache, query = (empty(*shape, dtype=torch.bfloat16) for shape in ((1, 16, 8, 128), (batch, 32, 128)))
    kv = PagedKV(cache, cache, empty(batch, -(-tokens // 16)), empty(batch))
    [launch, *_], _ = attention_launches(Device(90, multiprocessors), query, kv, scale=query.shape[2] ** -0.5)
    most, least, _, wave = launch.arguments[-4:]
    tiles = -(-tokens // launch.constants["BLOCK_N"])
    return -(-tiles // split_tiles(batch * tiles, tiles, most, wave, least))


def _sizes(case: Paged) -> dict[str, int]:
    _, block, kv_heads, dim = case.k_cache.shape
    return {"KV_HEADS": kv_heads, "GROUP": case.query.shape[1] // kv_heads, "BLOCK": block, "DIM": dim}
