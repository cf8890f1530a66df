"""Compile the kernel of a prefill's sums for GPUs that are not there: rows for ``tests.kernels.compiling``."""

from collections.abc import Iterator
from typing import Any

import torch

from minikv.kernels import PagedKV
from minikv.kernels.gpu.common import Device, Launch
from minikv.kernels.gpu.sums import sums_launch
from tests.kernels.compiling import empty, rows_of_cases

# capability, then what differs from a prefill of Llama-8B's heads in bfloat16 (float16 on Turing, which lacks it).
EVERY_TIME = [
    *[(capability, {}) for capability in (75, 80, 90, 120)],
    *[(capability, {"latent": True}) for capability in (80, 90)],
    (89, {"stored": torch.float8_e4m3fn, "scaled": True}),
]
ON_REQUEST = [
    *[(capability, {}) for capability in (86, 87, 89, 100)],
    *[(capability, {"latent": True}) for capability in (75, 89, 100, 120)],
    *[(capability, {"dims": dims}) for capability in (75, 80, 90, 120) for dims in (64, 80, 256)],
    *[(capability, {"dtype": torch.float32}) for capability in (80, 90)],
    *[(capability, {"stored": torch.int8, "scaled": True}) for capability in (80, 90)],
    *[(capability, {"softcap": 30.0, "last": 16}) for capability in (75, 90)],
    *[(capability, {"block_size": size}) for capability in (80, 90) for size in (8, 7, 256)],
]


def launch_of(
    capability: int,
    *,
    dims: int = 128,
    dtype: torch.dtype | None = None,
    stored: torch.dtype | None = None,
    block_size: int = 16,
    latent: bool = False,
    scaled: bool = False,
    **options,
) -> Launch:
    """The launch for 8 sequences of 512 new tokens on up to 4,096, on tensors without data."""
    dtype = dtype or (torch.float16 if capability < 80 else torch.bfloat16)

    tokens, query_heads, kv_heads = 8 * 512, 32, 8
    if latent:
        dims, query_heads = 512, 128
        whole = empty(1000, block_size, 1, 576, dtype=dtype)
        k, v = whole[..., :512], whole[..., 512:]
        options["q_rope"] = empty(tokens, query_heads, 64, dtype=dtype)
    else:
        k = v = empty(1000, block_size, kv_heads, dims, dtype=stored or dtype)
    scale = empty(1000, block_size, kv_heads, dtype=torch.float32) if scaled else None
    tables, lengths = empty(8, 4096 // block_size + 1, dtype=torch.int32), empty(8, dtype=torch.int32)
    query, starts = empty(tokens, query_heads, dims, dtype=dtype), empty(9, dtype=torch.int32)
    lse = empty(tokens, query_heads, dtype=torch.float32)
    kv = PagedKV(k, v, tables, lengths, scale, scale)
    launch, _ = sums_launch(Device(capability, 132), query, kv, starts, lse, scale=0.1, **options)
    return launch


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    return rows_of_cases(launch_of, [*EVERY_TIME, *(ON_REQUEST if everything else ())])
