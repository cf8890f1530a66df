"""Compile a launch for a GPU that need not be there, and read what became of it: registers, spills, instructions.

Triton's wheel carries the assembler and disassembler of CUDA, so a machine without a GPU can say whether a kernel fits
one: the tests hold it, and the benchmark prints the table.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minikv.kernels.gpu.common import Launch

# KiB of shared memory that one program may use: CUDA C++ programming guide, technical specifications per compute
# capability ("maximum amount of shared memory per thread block").
SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}

_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.int8: "i8", torch.uint8: "u8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """One kernel on one kind of GPU. ``registers`` of a thread, at most 255; ``stack`` bytes of a thread, 0 unless
    registers spill; ``shared_bytes`` of one program. ``tensor_cores``, ``async_copies``, ``narrow_loads``: how many
    instructions multiply on tensor cores, copy 16 bytes to shared memory in the background, and load 2 bytes alone.
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


def compile_ahead(launch: Launch, capability: int) -> Compiled:
    """Compile ``launch`` for compute capability ``capability`` (90 for 9.0); seconds. Its tensors may be on "meta".

    Triton's own exceptions pass through: what cannot be compiled is what the caller wants to know.
    """
    signature, constants, attributes = _specialize(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(built.asm["cubin"])
    assembly = _disassemble(built.asm["cubin"])
    return Compiled(
        name=launch.kernel.__name__,
        capability=capability,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        registers=registers,
        stack=stack,
        shared_bytes=built.metadata.shared,
        tensor_cores=len(re.findall(r"\b(?:HMMA|HGMMA|IMMA|QGMMA|UTCHMMA|UTCQMMA)\b", assembly)),
        async_copies=len(re.findall(r"\bLDGSTS\.\S*128\b", assembly)),
        narrow_loads=len(re.findall(r"\bLDG\.\S*U16\b", assembly)),
    )


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
