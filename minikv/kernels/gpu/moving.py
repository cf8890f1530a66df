"""Copying blocks, slots and sequences within and out of a paged cache in Triton. Lesson 10.

The kernels move a list of rows: blocks, slots, or the parts of slots that belong to one head. The values do not matter:
bytes are copied in words as wide as the alignment of all tensors allows. The words of a row are cut into columns, and a
program copies one column of PAIRS rows.

A source may be another pair's destination, in any order, and programs run in any order. Programs of different columns
never touch the same byte, so only the pairs of one column can conflict:

- If one program can hold all pairs, it reads them all, waits for its threads, and writes: one launch.
- If there are more, one launch copies columns to a staging area and the next one writes them back, STAGED_BYTES at a
  time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.kernels.gpu.common import Launch
from minikv.kernels.gpu.encode import as_integers

TILE = 2048  # words of a program that moves a part of the pairs
HELD = {1: 2048, 16: 256, 256: 32, 1024: 32}  # the most pairs of a program: words of its column
# A pool takes most of the memory, so little is left for staging. Fewer bytes mean more launches.
STAGED_BYTES = 64 << 20
LEAST_WORDS = 32  # of a column: with 4 bytes each, a line of the cache

# How a row is found: by its index; by a slot in a list; by its position, through a block table; in the staging area.
ROW, SLOT, TABLE, STAGED = (tl.constexpr(way) for way in range(4))
_WORDS = {1: tl.uint8, 2: tl.int16, 4: tl.int32}


@triton.jit
def row_offsets(
    pairs, live, index, of_list, stride_block, stride_token, FOUND: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Return where rows begin, int64 [PAIRS], in vectors."""
    if FOUND == SLOT:
        slot = tl.load(index + of_list + pairs, mask=live, other=0).to(tl.int64)
        return slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token
    if FOUND == TABLE:
        block = tl.load(index + pairs // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
        return block * stride_block + pairs % BLOCK_SIZE * stride_token
    return pairs * stride_block


@triton.jit(do_not_specialize=["count", "start", "first", "columns"])
def move_kernel(
    source, target, from_, to, count, start, first, columns, size_1, size_2, stride_from, stride_to,
    stride_sb, stride_st, stride_s0, stride_s1, stride_s2, stride_tb, stride_tt, stride_t0, stride_t1, stride_t2,
    FROM: tl.constexpr, TO: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, WORD: tl.constexpr,
    VECTOR: tl.constexpr, PAIRS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of pairs * columns): ``columns`` columns from ``first`` on, of ``count`` rows from ``start`` on.

    A row has size_0 * size_1 * size_2 runs of WIDTH words; each is cut into columns of WORDS words. Strides are in
    vectors of VECTOR words, so that Triton knows the alignment.
    """
    source = source.to(tl.pointer_type(WORD), bitcast=True)
    target = target.to(tl.pointer_type(WORD), bitcast=True)
    tile = (tl.program_id(0) // columns).to(tl.int64)
    column = (tl.program_id(0) % columns).to(tl.int64)
    CUTS: tl.constexpr = (WIDTH + WORDS - 1) // WORDS
    run, cut = (first + column) // CUTS, (first + column) % CUTS
    i0, i1, i2 = run // (size_1 * size_2), run // size_2 % size_1, run % size_2
    pairs = tile * PAIRS + tl.arange(0, PAIRS)
    live = pairs < count
    words = tl.arange(0, WORDS)
    in_run = cut * WORDS + words
    aside = (column * count + pairs)[:, None] * WORDS + words[None, :]
    if FROM == STAGED:
        read = aside
    else:
        rows = row_offsets(
            pairs + start, live, from_, i0 * stride_from, stride_sb, stride_st, FROM, BLOCK_SIZE
        )
        rows += i0 * stride_s0 + i1 * stride_s1 + i2 * stride_s2
        read = (rows * VECTOR)[:, None] + in_run[None, :]
    if TO == STAGED:
        written = aside
    else:
        rows = row_offsets(pairs, live, to, i0 * stride_to, stride_tb, stride_tt, TO, BLOCK_SIZE)
        rows += i0 * stride_t0 + i1 * stride_t1 + i2 * stride_t2
        written = (rows * VECTOR)[:, None] + in_run[None, :]
    kept = live[:, None] & (in_run < WIDTH)[None, :]
    moved = tl.load(source + read, mask=kept, other=0)
    tl.debug_barrier()  # no thread writes before every thread has read
    tl.store(target + written, moved, mask=kept)


@dataclass(frozen=True)
class Side:
    """The sources of rows, or their destinations. ``index`` [n], or [heads, n]: their slots, or the blocks of their
    table.

    ``strides``, in elements: of a block, of a token in it, and of each dimension of a row.
    """

    tensor: Tensor
    strides: tuple[int, ...]
    way: tl.constexpr
    index: Tensor | None = None


@dataclass(frozen=True)
class Rows:
    """The common layout of both sides' rows.

    ``runs``: their number in each of three dimensions; ``width`` words a run; ``word`` bytes a word; ``vector`` words
    are aligned together. ``strides``, in vectors: of a block, of a token and of the three dimensions, of the source and
    then of the target.
    """

    runs: tuple[int, ...]
    width: int
    word: int
    vector: int
    strides: tuple[int, ...]

    def columns(self, words: int) -> int:
        """Return how many columns of ``words`` words a row has."""
        return math.prod(self.runs) * triton.cdiv(self.width, words)


def gather_launch(cache: Tensor, table: Tensor, length: int, start: int) -> tuple[Launch, Tensor]:
    """Return the launch of one ``gather``, and the tensor that it fills."""
    count, sizes = length - start, cache.shape[2:]
    out = torch.empty((count, *sizes), dtype=cache.dtype, device=cache.device)
    source, target = (
        Side(cache, cache.stride(), TABLE, table),
        Side(out, (out.stride(0), 0, *out.stride()[1:]), ROW),
    )
    rows = common_rows(source, target, sizes)
    words = min(TILE, triton.next_power_of_2(rows.width))
    options = dict(start=start, block_size=cache.shape[1])
    return _launch(source, target, rows, count, TILE // words, words, **options), out


def copy_launches(cache: Tensor, src: Tensor, dst: Tensor, block_dim: int) -> list[Launch]:
    """Return the launches of one ``copy_blocks``: a row is a block, in all of the dimensions before ``block_dim``."""
    others = [dim for dim in range(cache.dim()) if dim != block_dim]
    strides = (cache.stride(block_dim), 0, *(cache.stride(dim) for dim in others))
    sizes = tuple(cache.shape[dim] for dim in others)
    return _within(cache, strides, sizes, src, dst, block_size=1)


def move_launches(cache: Tensor, src: Tensor, dst: Tensor) -> list[Launch]:
    """Return the launches of one ``move_slots``: a row is a slot, or, with a list for each head, one head of a slot."""
    block_size, sizes = cache.shape[1], cache.shape[2:]
    return _within(cache, cache.stride(), sizes, src, dst, block_size=block_size, per_head=src.dim() == 2)


def common_rows(source: Side, target: Side, sizes: Sequence[int], per_head: bool = False) -> Rows:
    """Merge the dimensions of a row wherever both sides allow it, and find the widest words.

    ``per_head``: the first dimension stays, since each head has a list of its own.
    Raises ``ArgumentError`` if more than three dimensions are left beside the contiguous one.
    """
    dims = list(zip(sizes, source.strides[2:], target.strides[2:], strict=True))
    outer = [dims.pop(0)] if per_head else []
    merged: list[tuple[int, int, int]] = []
    for size, of_source, of_target in dims:
        if size == 1:
            continue
        if merged and merged[-1][1:] == (size * of_source, size * of_target):
            size *= merged.pop()[0]
        merged.append((size, of_source, of_target))
    width = merged.pop()[0] if merged and merged[-1][1:] == (1, 1) else 1
    outer += merged
    if len(outer) > 3:
        raise ArgumentError("kernel_runs", stride=list(source.tensor.stride()), runs=len(outer), most=3)
    outer += [(1, 0, 0)] * (3 - len(outer))
    itemsize = source.tensor.element_size()
    from_ = [itemsize * stride for stride in (*source.strides[:2], *(stride for _, stride, _ in outer))]
    to = [itemsize * stride for stride in (*target.strides[:2], *(stride for _, _, stride in outer))]
    unit = math.gcd(16, itemsize * width, *from_, *to, source.tensor.data_ptr(), target.tensor.data_ptr())
    word = min(unit, 4)
    return Rows(
        runs=tuple(size for size, _, _ in outer),
        width=itemsize * width // word,
        word=word,
        vector=unit // word,
        strides=tuple(stride // unit for stride in (*from_, *to)),
    )


def _within(
    cache: Tensor,
    strides: tuple[int, ...],
    sizes: Sequence[int],
    src: Tensor,
    dst: Tensor,
    *,
    block_size: int,
    per_head: bool = False,
) -> list[Launch]:
    """Return the launches that move rows within one tensor: all at once, or through a staging area."""
    count = src.shape[-1]
    if not count:
        return []
    source, target = Side(cache, strides, SLOT, src), Side(cache, strides, SLOT, dst)
    rows = common_rows(source, target, sizes, per_head)
    for pairs, most in HELD.items():
        if count <= pairs:
            words = min(most, triton.next_power_of_2(rows.width))
            return [_launch(source, target, rows, count, pairs, words, block_size=block_size)]
    words = min(TILE, triton.next_power_of_2(rows.width))
    while words > LEAST_WORDS and count * words * rows.word > STAGED_BYTES:
        words //= 2
    columns, column_bytes = rows.columns(words), count * words * rows.word
    piece = max(1, min(columns, STAGED_BYTES // column_bytes))
    aside = Side(torch.empty(piece * column_bytes, dtype=torch.uint8, device=cache.device), (), STAGED)
    launches = []
    for first in range(0, columns, piece):
        options = dict(first=first, columns=min(piece, columns - first), block_size=block_size)
        for from_, to in ((source, aside), (aside, target)):
            launches.append(_launch(from_, to, rows, count, TILE // words, words, **options))
    return launches


def _launch(
    source: Side,
    target: Side,
    rows: Rows,
    count: int,
    pairs: int,
    words: int,
    *,
    block_size: int,
    start: int = 0,
    first: int = 0,
    columns: int | None = None,
) -> Launch:
    columns = rows.columns(words) if columns is None else columns
    of_lists = (
        side.index.stride(0) if side.index is not None and side.index.dim() == 2 else 0
        for side in (source, target)
    )
    arguments = (
        as_integers(source.tensor), as_integers(target.tensor), source.index, target.index, count, start, first,
        columns, *rows.runs[1:], *of_lists, *rows.strides,
    )  # fmt: skip
    constants = dict(
        FROM=source.way.value, TO=target.way.value, BLOCK_SIZE=block_size, WIDTH=rows.width, WORD=_WORDS[rows.word],
        VECTOR=rows.vector, PAIRS=pairs, WORDS=words,
    )  # fmt: skip
    grid = (triton.cdiv(count, pairs) * columns,)
    return Launch(move_kernel, grid, arguments, constants, num_warps=min(16, max(4, pairs * words // 1024)))
