"""What the kernels' benchmark runs on: paged caches with shuffled blocks, and the same tokens lying one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.kernels import PagedKV, decode_traffic


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and elements a head."""

    query: int
    kv: int
    dim: int

    @property
    def scale(self) -> float:
        return float(self.dim**-0.5)


LLAMA_8B = Heads(32, 8, 128)
GROUP_OF_8 = Heads(64, 8, 128)


@dataclass(frozen=True)
class Shape:
    """A batch: its name in the table, and how long each sequence is, in tokens."""

    name: str
    lengths: tuple[int, ...]

    @property
    def uniform(self) -> bool:
        return len(set(self.lengths)) == 1


def batch(count: int, length: int) -> Shape:
    name = f"{length // 1024}K" if length % 1024 == 0 else str(length)
    return Shape(f"B{count} {name}", (length,) * count)


def skewed(count: int, longest: int) -> Shape:
    """One long sequence, and the others shorter by a quarter each, down to 256 tokens: as a server has them."""
    lengths = tuple(max(min(longest, 256), int(longest * 0.75**rank)) for rank in range(count))
    return Shape(f"B{count} skewed to {longest // 1024}K", lengths)


@dataclass(frozen=True)
class Paged:
    """One call's tensors: ``query`` [B, Hq, D], and what it reads."""

    heads: Heads
    query: Tensor
    kv: PagedKV

    def contiguous(self) -> tuple[Tensor, Tensor]:
        """K and V [B, Hkv, S, D], sequence by sequence, padded with whatever the table's first block holds."""
        return self.gathered(self.kv.k).contiguous(), self.gathered(self.kv.v).contiguous()

    def gathered(self, cache: Tensor) -> Tensor:
        """A copy of what the tables name, as a view [B, Hkv, S, D]: the least that SDPA asks of a paged cache."""
        rows, width = self.kv.block_tables.shape
        tokens = cache.index_select(0, self.kv.block_tables.flatten()).view(
            rows, width * cache.shape[1], *cache.shape[2:]
        )
        return tokens.transpose(1, 2)


def paged(
    shape: Shape, heads: Heads, block_size: int, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Paged:
    """Random tokens on shuffled blocks."""
    generator = torch.Generator(device).manual_seed(seed)
    counts = [-(-length // block_size) for length in shape.lengths]
    total = sum(counts)
    order = torch.randperm(total, generator=generator, device=device).int()
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=device)
    taken = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[taken : taken + count]
        taken += count

    def normal(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device=device).normal_(generator=generator)

    caches = [normal(total, block_size, heads.kv, heads.dim) for _ in range(2)]
    lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=device)
    kv = PagedKV(caches[0], caches[1], tables, lengths)
    return Paged(heads, normal(len(counts), heads.query, heads.dim), kv)


def kv_bytes(lengths: Sequence[int], heads: Heads, itemsize: int = 2) -> int:
    """Bytes of K and V."""
    return 2 * sum(lengths) * heads.kv * heads.dim * itemsize


def decode_bytes(shape: Shape, heads: Heads, block_size: int, itemsize: int = 2, **more: Any) -> int:
    """The floor of one decode in bytes: ``minikv.kernels.decode_traffic``."""
    return decode_traffic(
        shape.lengths, query_heads=heads.query, kv_heads=heads.kv, dim=heads.dim, itemsize=itemsize,
        block_size=block_size, **more,
    ).num_bytes  # fmt: skip
