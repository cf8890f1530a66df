"""Tile sizes and splits, chosen from a fixed table: looking up an autotuned one costs tens of microseconds a launch.

The table's tiles compile without spilling registers and within the shared memory of each kind of GPU, with two buffers
of each tile and on the tensor cores of a warpgroup where there are such (``tests/kernels/test_compiled.py`` asserts
that); ``benchmarks/kernels.py`` measures them where there is a GPU.
"""

from dataclasses import dataclass

import triton

MOST_SPLITS = 64  # of a sequence


@dataclass(frozen=True)
class Config:
    """One program: ``block_m`` rows (a query and a query head each), ``block_n`` keys a tile, and Triton's layout.

    ``per_sm`` programs are wanted on each multiprocessor: as many as keep 32 KB under way to it, at most as many as it
    holds at a time.

    ``registers`` are the most of a thread. Without a number the assembler takes fewer where one more program finds room
    among the registers, and keeps a few values on the stack for it, although shared memory may have no room for that
    program. The numbers are those of as many programs as shared memory holds, or as are of use.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    per_sm: int = 1
    registers: int | None = None


def attention_config(
    capability: int,
    dim: int,
    value_dim: int,
    itemsize: int,
    queries: int,
    group: int,
    *,
    latent: bool = False,
) -> Config:
    """Return the tile for heads of ``dim`` and ``value_dim`` elements of ``itemsize`` bytes.

    ``capability`` is that of the GPU, 90 for 9.0; ``queries`` are those of the longest sequence, each of ``group``
    rows; a ``latent`` of ``dim`` elements is key and value at once. Decode has a few rows and waits for memory: small
    tiles, many programs. Prefill multiplies: as many rows as fit.
    """
    widest, rows = max(dim, value_dim), max(1, queries * group)
    if capability < 80:
        # Triton compiles no tensor-core product for Turing, so its rows are not padded to 16; and nothing is copied in
        # the background, so that only other programs work while one waits.
        if latent:
            return Config(4, 16, 8, 1)
        if widest > 128:
            return Config(min(4, triton.next_power_of_2(rows)), 16, 4, 1, per_sm=2, registers=176)
        block_m = min(8, triton.next_power_of_2(rows))
        if widest > 64:
            return Config(block_m, 16, 4, 1, per_sm=4 if block_m <= 4 else 3)
        return Config(block_m, 32, 4, 1, per_sm=3)
    hopper = capability >= 90
    small = capability in (86, 89, 120)  # 99 KiB of shared memory, which one program's buffers fill
    pair = 1 if small else 2
    if itemsize == 4:  # float32 does not use tensor cores here, and has twice the bytes
        if widest > 128:
            return Config(8, 16, 8, 1 if hopper or small or latent or widest > 256 else 3)
        if widest > 64 and capability >= 100:
            return Config(16, 16, 8, 4)
        return Config(16, 16 if capability < 89 else 32, 8, 3, registers=80 if widest <= 64 else None)
    if latent:
        if capability == 90 and rows > 16:
            return Config(64, 64, 8, 2)
        # An A100 holds two programs with a buffer each, or one with two.
        if hopper or small:
            return Config(16, 32, 4, 3, per_sm=pair)
        return Config(16, 32, 4, 2, per_sm=pair, registers=255)
    if widest > 512:
        return Config(16, 16, 8, 2, registers=255) if small else Config(16, 16, 4 if hopper else 8, 3)
    if rows <= 32:
        block_m = 16 if rows <= 16 else 32
        if widest <= 128:
            if hopper and not small and block_m == 16:
                return Config(block_m, 64, 4, 3, per_sm=pair)  # bound to the 168 of three programs it spills
            registers = 128 if widest <= 64 and not small else 255
            return Config(block_m, 64, 4, 3, per_sm=pair, registers=registers)
        if widest <= 256:
            if block_m == 16 and not small:
                return Config(block_m, 32, 8, 3, per_sm=pair, registers=128)
            # The registers of 32 rows leave no room for a second program.
            if hopper and block_m == 32:
                return Config(block_m, 32, 4, 3)
            return Config(block_m, 32, 8, 3, registers=255)
        if small:
            return Config(16, 16, 8, 3, registers=255)
        if hopper and block_m == 16:
            return Config(block_m, 32, 4, 3)
        return Config(block_m, 32, 8, 3, registers=255)
    if widest > 256:
        return Config(32, 32, 8, 1)
    if widest <= 64:
        return Config(128, 64, 4, 2) if hopper and not small else Config(128, 64, 8, 3)
    if widest <= 128:
        return Config(128, 64, 8, 3) if hopper and not small else Config(128, 32, 8, 3)
    if capability == 90:
        return Config(64, 64, 8, 2)
    return Config(64, 32, 8, 2, registers=255) if small else Config(64, 32, 8, 3)


def choose_splits(programs: int, tiles: int, slots: int, least_tiles: int = 1) -> int:
    """Return the number of splits of each sequence that gives work to all the GPU's slots.

    ``slots`` are the programs that the multiprocessors are to hold at a time, ``Config.per_sm`` each. ``programs`` run
    without a split, over at most ``tiles`` tiles of keys; a split has at least ``least_tiles`` of them, and there are
    at most ``MOST_SPLITS``. There is no split if they fill 80 % of the slots; otherwise it is the smallest number with
    a last wave 85 % full, or, if none is, the fullest. It depends on the table's width and not on the lengths, so it is
    the same for every step of a captured CUDA graph: the most that a sequence has. How many each of them has the kernel
    finds from the lengths (``minikv.kernels.occupancy.splits_of``).
    """
    most = min(tiles // least_tiles, MOST_SPLITS)
    if programs >= 0.8 * slots or most <= 1 or not programs:
        return 1
    best, best_share = 1, 0.0
    for splits in range(1, most + 1):
        waves = programs * splits / slots
        share = waves / triton.cdiv(programs * splits, slots)
        if share >= 0.85:
            return splits
        if share > best_share:
            best, best_share = splits, share
    return best
