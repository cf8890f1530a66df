"""Compile the storage kernels for GPUs that are not there: rows for ``tests.kernels.compiling``."""

import re
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minikv.kernels.gpu import ahead
from minikv.kernels.gpu.common import Launch
from minikv.kernels.gpu.moving import copy_launches, gather_launch, move_launches
from minikv.kernels.gpu.storage import store_launch

CAPABILITIES = (75, 80, 89, 90, 100)
EVERY_TIME = {  # of 70; with those of the attention kernels at most 24
    ("store float8_e4m3fn", 75), ("store float8_e4m3fn", 89), ("store int8", 80), ("store latent", 90),
    ("copy 1024", 80), ("move heads aside", 90), ("gather", 100),
}  # fmt: skip
BLOCKS = 2**31 // (16 * 8 * 128) + 1  # more than 2**31 elements
STORED = (torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn, torch.int8)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def stores() -> dict[str, Launch]:
    """Keys and values that are views of one product, in the shapes of Llama-8B, and the latent of DeepSeek."""
    slots, fused, found = meta(4096, dtype=torch.int32), meta(4096, 6144), {}
    key, value = (fused[:, at : at + 1024].unflatten(1, (8, 128)) for at in (4096, 5120))
    for dtype in STORED:
        scaled = dtype in (torch.float8_e4m3fn, torch.int8)
        scales = [meta(BLOCKS, 16, 8, dtype=torch.float32) if scaled else None for _ in range(2)]
        caches = [meta(BLOCKS, 16, 8, 128, dtype=dtype) for _ in range(2)]
        found[f"store {str(dtype)[6:]}"] = store_launch(key, value, *caches, slots, *scales)
    latent = meta(BLOCKS, 16, 1, 576)
    new = meta(4096, 1, 512), meta(4096, 1, 64)
    found["store latent"] = store_launch(*new, latent[..., :512], latent[..., 512:], slots)
    return found


def moves() -> dict[str, Launch]:
    pool, found = meta(2, 32, BLOCKS, 16, 8, 128), {}
    for count in (1, 16, 256, 1024):  # what a program holds
        blocks = meta(count, dtype=torch.int64)
        (found[f"copy {count}"],) = copy_launches(pool, blocks, blocks, 2)
    for name, lists in (
        ("move", meta(4096, dtype=torch.int64)),
        ("move heads", meta(8, 4096, dtype=torch.int64)),
    ):
        found[f"{name} aside"], found[f"{name} back"] = move_launches(pool[0, 0], lists, lists)
    found["gather"], _ = gather_launch(pool[0, 0], meta(400, dtype=torch.int32), 6000, 100)
    return found


def compiled(name: str, launch: Launch, capability: int) -> dict[str, Any]:
    signature, constants, attributes = ahead._specialize(launch)
    built = triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )
    registers, stack = ahead._resources(built.asm["cubin"])
    # The accesses as they follow each other: LDG.E.128 loads 16 bytes a thread, STG.E stores 4.
    accesses = []
    for kind, rest in re.findall(r"\b(LDG|STG|BAR)\.(\S*)", ahead._disassemble(built.asm["cubin"])):
        bits = re.search(r"\b[US]?(8|16|64|128)\b", rest)
        accesses.append((kind, int(bits[1]) if bits else 32))
    return dict(name=name, capability=capability, registers=registers, stack=stack, accesses=accesses)


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    for name, launch in (stores() | moves()).items():
        for capability in CAPABILITIES:
            if everything or (name, capability) in EVERY_TIME:
                yield compiled(name, launch, capability)
