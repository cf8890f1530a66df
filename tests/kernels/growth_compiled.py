"""How many forms of each kernel an eager run compiles while its sequences grow: rows for ``tests.kernels.compiling``.

Nothing is compiled: a form is what Triton's launcher tells apart.
"""

from collections.abc import Iterator
from typing import Any

import torch

from minikv.kernels import PagedKV
from minikv.kernels.gpu.ahead import specialisations
from minikv.kernels.gpu.common import Device, Launch
from minikv.kernels.gpu.launches import attention_launches
from tests.kernels.compiling import empty

BLOCK, BATCHES, COLUMNS = 16, range(1, 65), range(1, 513)  # up to 8,192 tokens
LAYERS = {
    "heads": {},
    "one KV head": {"kv_heads": 1},
    "window": {"window": 1024},
    "sinks": {"sinks": True},
    "scores": {"return_scores": True},
    "latent": {"latent": True},
}


def decode(
    batch: int, columns: int, *, kv_heads: int = 8, latent: bool = False, sinks: bool = False, **options
) -> list[Launch]:
    """The launches of one step on an H200: Llama-8B's heads, or DeepSeek-V3's latents."""
    dim, heads = (512, 128) if latent else (128, 32)
    k, v = (
        empty(9000, BLOCK, 1 if latent else kv_heads, size, dtype=torch.bfloat16)
        for size in (dim, 64 if latent else dim)
    )
    if latent:
        options["q_rope"] = empty(batch, heads, 64, dtype=torch.bfloat16)
    if sinks:
        options["sinks"] = empty(heads, dtype=torch.bfloat16)
    table, lengths = empty(batch, columns, dtype=torch.int32), empty(batch, dtype=torch.int32)
    query = empty(batch, heads, dim, dtype=torch.bfloat16)
    return attention_launches(Device(90, 132), query, PagedKV(k, v, table, lengths), scale=0.1, **options)[0]


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    for name, options in LAYERS.items():
        walk = [(1, columns) for columns in COLUMNS] + [
            (batch, columns) for batch in BATCHES for columns in (3, 64, 512)
        ]
        forms = specialisations(launch for place in walk for launch in decode(*place, **options))
        yield {"layer": name, "forms": forms}
