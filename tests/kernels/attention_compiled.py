"""Compile the attention kernels for GPUs that are not there: rows for ``tests.kernels.compiling``."""

from collections.abc import Iterator
from typing import Any

import torch

from minikv.kernels import PagedKV
from minikv.kernels.gpu.common import Device, Launch
from minikv.kernels.gpu.configs import Config, attention_config
from minikv.kernels.gpu.launches import attention_launches
from tests.kernels.compiling import empty, rows_of_cases

# capability, then what differs from a decode of Llama-8B's heads in bfloat16 (float16 on Turing, which lacks it).
EVERY_TIME = [
    *[(capability, {}) for capability in (75, 80, 89, 90, 100)],
    *[(capability, {"queries": 512}) for capability in (75, 80, 89, 90, 100)],
    *[(capability, {"latent": True}) for capability in (75, 90)],
    (80, {"dims": (256, 256)}),
    (90, {"stored": torch.float8_e4m3fn}),
    (80, {"stored": torch.int8}),
    (90, {"dims": (192, 128), "block_size": 64, "softcap": 30.0, "return_scores": True, "window": 1000}),
    (90, {"latent": True, "queries": 512}),
    (90, {"dims": (192, 128), "heads": 128, "queries": 2048}),  # MLA, expanded
]
ON_REQUEST = [
    *[(87, options) for options in ({}, {"queries": 512}, {"latent": True}, {"dims": (64, 64)})],
    *[
        (capability, {"dims": dims, "queries": queries})
        for capability in (75, 80, 89, 90, 100)
        for dims in ((64, 64), (80, 80), (96, 96), (192, 128), (256, 256))
        for queries in (1, 4, 512)
    ],
    *[(capability, {"dims": (192, 128), "heads": 16, "queries": 512}) for capability in (75, 80, 89, 100)],
    *[
        (capability, {"dims": dims, "queries": 8})
        for capability in (80, 89, 90, 100)
        for dims in ((64, 64), (128, 128), (256, 256))
    ],
    *[
        (capability, {"latent": True, "queries": queries})
        for capability in (80, 89, 90, 100)
        for queries in (1, 4)
    ],
    (80, {"dtype": torch.float32}),
    *[
        (capability, {"dtype": torch.float32, "queries": queries, "dims": dims})
        for capability in (80, 89, 90, 100)
        for queries in (1, 64)
        for dims in ((64, 64), (128, 128), (256, 256))
    ],
    *[
        (capability, {"dims": (512, 512), "queries": queries})
        for capability in (80, 89, 90, 100)
        for queries in (1, 8, 512)
    ],
    *[
        (capability, {"dims": (576, 512), "queries": queries})
        for capability in (80, 89, 90, 100)
        for queries in (1, 64)
    ],
    *[(120, {"queries": queries}) for queries in (1, 512)],
    *[(capability, {"latent": True, "dtype": torch.float32}) for capability in (80, 90)],
    (89, {"stored": torch.float8_e4m3fn}),
    (89, {"stored": torch.int8, "dtype": torch.float16}),
    *[(capability, {"block_size": block_size}) for capability in (80, 90) for block_size in (8, 7, 32, 256)],
]


def launch_of(
    capability: int,
    *,
    dims: tuple[int, int] = (128, 128),
    dtype: torch.dtype | None = None,
    stored: torch.dtype | None = None,
    block_size: int = 16,
    queries: int = 1,
    latent: bool = False,
    heads: int | None = None,
    **options,
) -> Launch:
    """The attention launch of 8 sequences of up to 4,096 tokens, on tensors without data.

    ``heads``: one query head for each of as many KV heads, as of latents that are expanded: V is a view.
    """
    dtype = dtype or (torch.float16 if capability < 80 else torch.bfloat16)

    tokens, query_heads, kv_heads = 8 * queries, 32, 8
    if latent:
        dims, query_heads, kv_heads = (512, 64), 128, 1
        whole = empty(1000, block_size, 1, 576, dtype=dtype)
        k, v = whole[..., :512], whole[..., 512:]
        options["q_rope"] = empty(tokens, query_heads, 64, dtype=dtype)
    elif heads:
        query_heads = heads
        k = empty(1000, block_size, heads, dims[0], dtype=dtype)
        v = empty(1000, block_size, heads, 2 * dims[1], dtype=dtype)[..., dims[1] :]
    else:
        k, v = (empty(1000, block_size, kv_heads, dim, dtype=stored or dtype) for dim in dims)
    scales = [None, None]
    if stored == torch.int8:
        scales = [empty(1000, block_size, kv_heads, dtype=torch.float32) for _ in dims]
    if queries > 1:
        options.update(query_starts=empty(9, dtype=torch.int32), max_queries=queries)
    tables, lengths = empty(8, 4096 // block_size + 1, dtype=torch.int32), empty(8, dtype=torch.int32)
    query = empty(tokens, query_heads, dims[0], dtype=dtype)
    kv = PagedKV(k, v, tables, lengths, *scales)
    launches, _ = attention_launches(Device(capability, 132), query, kv, scale=0.1, **options)
    return launches[0]


def config_of(
    capability: int,
    *,
    dims: tuple[int, int] = (128, 128),
    dtype: torch.dtype = torch.bfloat16,
    queries: int = 1,
    latent: bool = False,
    heads: int | None = None,
    **options,
) -> Config:
    """What the table has for ``launch_of`` with the same arguments."""
    dims, group = ((512, 64), 128) if latent else (dims, 1 if heads else 4)
    return attention_config(capability, *dims, dtype.itemsize, queries, group, latent=latent)


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    cases = [*EVERY_TIME, *(ON_REQUEST if everything else ())]
    for (capability, options), row in zip(cases, rows_of_cases(launch_of, cases), strict=True):
        yield row | {"per_sm": config_of(capability, **options).per_sm}
