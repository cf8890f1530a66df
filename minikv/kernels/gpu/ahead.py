"""Compile a launch for a GPU that need not be there, and read what became of it: what fits, and what decides its speed.

Triton's wheel carries the assembler and disassembler of CUDA, so a machine without a GPU can say whether a kernel fits
one: the tests hold it, and the benchmark prints the table.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minikv.kernels.gpu.common import Launch
from minikv.kernels.occupancy import bytes_under_way, occupancy

# KiB of shared memory that one program may use: CUDA C++ programming guide, technical specifications per compute
# capability ("maximum amount of shared memory per thread block").
SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}

_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.int8: "i8", torch.uint8: "u8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


# Bytes of an element of shared memory, by the name of its type in Triton's IR.
_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f8E4M3FN": 1, "f8E5M2": 1, "i8": 1}
_TILE = re.compile(r"local_alloc : \(\) -> !ttg\.memdesc<(\d+)x(\d+)x(\d+)x(\w+),")
_LABEL = re.compile(r"^(\.L_x_\d+):$", re.MULTILINE)
_JUMP = re.compile(r"BRA(?:\.U)? .*?`\((\.L_x_\d+)\)")
_COPY_16 = re.compile(r"\bLDGSTS\.\S*128\b")
_WGMMA = re.compile(r"\b[HIQ]GMMA\.(\d+x\d+x\d+)")


@dataclass(frozen=True)
class Compiled:
    """One kernel on one kind of GPU.

    ``registers`` of a thread, at most 255; ``stack`` bytes of a thread, 0 unless registers spill; ``spills`` the
    accesses to it within the main loop; ``shared_bytes`` of one program. ``occupancy`` says how many programs a
    multiprocessor holds at a time.

    ``wgmma``, ``mma``, ``tensor_cores``: instructions that multiply on tensor cores, by a whole warpgroup (from 9.0),
    by a warp, and of any kind. ``wgmma_shapes`` are their shapes, "64x128x16". ``async_copies``, ``copies_8``,
    ``copies_4`` bring 16, 8 and 4 bytes to shared memory in the background; ``narrow_loads`` load 2 bytes alone.
    ``conversions`` change formats of numbers, within the main loop.

    The main loop is the one that copies most in the background. ``buffers`` has a number for each tile of K, V and the
    rope part: how many of it shared memory holds at a time. ``tile_bytes`` are those of one buffer of each.
    """

    name: str
    capability: int
    num_warps: int
    num_stages: int
    registers: int
    stack: int
    shared_bytes: int
    tensor_cores: int
    async_copies: int
    narrow_loads: int
    wgmma: int
    mma: int
    wgmma_shapes: tuple[str, ...]
    copies_8: int
    copies_4: int
    spills: int
    conversions: int
    buffers: tuple[int, ...]
    tile_bytes: int
    occupancy: int

    def bytes_in_flight(self, programs: int, multiprocessors: int) -> float:
        """Return ``minikv.kernels.occupancy.bytes_under_way`` of a grid of ``programs``; 0 without a buffer."""
        if not self.buffers:
            return 0.0
        return bytes_under_way(programs, multiprocessors, self.occupancy, self.tile_bytes, min(self.buffers))


def compile_ahead(launch: Launch, capability: int) -> Compiled:
    """Compile ``launch`` for compute capability ``capability`` (90 for 9.0); seconds. Its tensors may be on "meta".

    Triton's own exceptions pass through: what cannot be compiled is what the caller wants to know.
    """
    signature, constants, attributes = _specialize(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    registers, stack = _resources(built.asm["cubin"])
    assembly = _disassemble(built.asm["cubin"])
    loop = _main_loop(assembly)
    buffers, tile_bytes = _buffers(built.asm["ttgir"])

    def count(instruction: str, within: str = assembly) -> int:
        return len(re.findall(rf"\b{instruction}", within))

    shapes = _WGMMA.findall(assembly)
    return Compiled(
        name=launch.kernel.__name__,
        capability=capability,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        registers=registers,
        stack=stack,
        shared_bytes=built.metadata.shared,
        tensor_cores=count(r"(?:HMMA|HGMMA|IMMA|IGMMA|QMMA|QGMMA|UTC\w*MMA)\b"),
        async_copies=len(_COPY_16.findall(assembly)),
        narrow_loads=count(r"LDG\.\S*U16\b"),
        wgmma=len(shapes),
        mma=count(r"(?:HMMA|IMMA|QMMA)\b"),
        wgmma_shapes=tuple(sorted(set(shapes))),
        copies_8=count(r"LDGSTS\.\S*64\b"),
        copies_4=count(r"LDGSTS\.E(?!\S*(?:64|128))"),
        spills=count(r"(?:LDL|STL)\b", loop),
        conversions=count(r"(?:F2F|F2FP|I2F|I2FP|PRMT)\b", loop),
        buffers=buffers,
        tile_bytes=tile_bytes,
        occupancy=occupancy(capability, registers, launch.num_warps, built.metadata.shared),
    )


def specialisations(launches: Iterable[Launch]) -> dict[str, int]:
    """Return how many forms of each kernel Triton compiles for ``launches``, by the kernel's name."""
    forms: dict[str, set[str]] = {}
    for launch in launches:
        form = repr((_specialize(launch), launch.options))
        forms.setdefault(launch.kernel.__name__, set()).add(form)
    return {name: len(found) for name, found in forms.items()}


def _buffers(ir: str) -> tuple[tuple[int, ...], int]:
    """Return the buffers of each tile of the loop that keeps most of them, and the bytes of one buffer of each.

    ``ir`` is Triton's GPU IR, which allocates a loop's tiles ahead of it, buffers first: memdesc<2x64x128xbf16, ...>.
    """
    loops = [_TILE.findall(part) for part in ir.split("scf.for")[:-1]]
    tiles = [
        [(int(n), int(rows) * int(columns) * _ITEM_BYTES[kind]) for n, rows, columns, kind in loop]
        for loop in loops
    ]
    most = max(tiles, key=lambda loop: sum(n * size for n, size in loop), default=[])
    return tuple(n for n, _ in most), sum(size for _, size in most)


def _main_loop(assembly: str) -> str:
    """Return the instructions of the loop that copies most in the background; of two alike the shorter, unmasked one.

    A loop is what lies between a label and a jump back to it.
    """
    at = {found[1]: found.end() for found in _LABEL.finditer(assembly)}
    loops = [
        assembly[at[jump[1]] : jump.start()]
        for jump in _JUMP.finditer(assembly)
        if at.get(jump[1], len(assembly)) < jump.start()
    ]
    return max(loops, key=lambda loop: (len(_COPY_16.findall(loop)), -len(loop)), default="")


def _specialize(launch: Launch) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and what is known of the values, as Triton's launcher would find them."""
    signature, constants, attributes = {}, {}, {}
    names = launch.kernel.arg_names
    for index, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        varies = launch.kernel.params[index].do_not_specialize
        if isinstance(value, Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value is None or (value == 1 and not varies):
            signature[name] = "constexpr"
            constants[(index,)] = value
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not varies:
                attributes[(index,)] = [["tt.divisibility", 16]]
    for name, value in launch.constants.items():
        signature[name] = "constexpr"
        constants[(names.index(name),)] = value
    return signature, constants, attributes


def _tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(tool: str, *arguments: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [_tool(tool), *arguments, file.name], capture_output=True, text=True, check=True
        )
    return done.stdout


def _resources(cubin: bytes) -> tuple[int, int]:
    found = re.search(r"REG:(\d+) STACK:(\d+)", _run("cuobjdump", "--dump-resource-usage", cubin=cubin))
    if found is None:
        raise ValueError("cuobjdump printed no resource usage")
    return int(found[1]), int(found[2])


def _disassemble(cubin: bytes) -> str:
    # The same instructions without the analysis that annotates indirect branches, which takes a quarter of the time.
    return _run("nvdisasm", "-c", "-ndf", cubin=cubin)
