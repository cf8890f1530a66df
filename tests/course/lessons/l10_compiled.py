"""Compile the kernels of lesson 10 for GPUs that are not there: rows for ``tests.kernels.compiling``."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from minikv.course.lessons.l10 import decode_kernel
from minikv.course.lessons.l10.kernels import split_kernel, store_kernel
from minikv.kernels.gpu.ahead import compile_ahead
from minikv.kernels.gpu.common import Launch
from tests.nano.decode_compiled import launch_of

# The shape that the lesson measures on a GPU
HEADS, GROUP, DIM, BLOCK, WIDTH, SPLITS = 8, 4, 128, 16, 256, 32


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    def on_meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query, cache = on_meta(1, HEADS * GROUP, DIM), on_meta(WIDTH, BLOCK, HEADS, DIM)
    table, lengths = on_meta(1, WIDTH, dtype=torch.int32), on_meta(1, dtype=torch.int32)
    parts, lse = (on_meta(SPLITS, 1, HEADS * GROUP, *rest, dtype=torch.float32) for rest in ((DIM,), ()))
    sizes = dict(KV_HEADS=HEADS, GROUP=GROUP, BLOCK=BLOCK, DIM=DIM)
    given = (query, cache, cache, table, lengths)
    launches = (
        Launch(
            store_kernel, (1,), (on_meta(1, HEADS * DIM), cache, lengths), dict(BLOCK=BLOCK, ROW=HEADS * DIM)
        ),
        Launch(split_kernel, (1, 8, 32), (*given, parts, lse, 0.1, WIDTH), dict(sizes, SPLITS=SPLITS)),
    )
    for capability in (75, 90):
        for launch in launches:
            yield dataclasses.asdict(compile_ahead(launch, capability))
    # A known wrong kernel of exercise 10.6, which has no file of its own, is compiled on a GPU like any other.
    decode_kernel.prepare = lambda: "gpu"
    wrong = next(m.wrong for m in decode_kernel.KERNEL.misconceptions if m.name == "scale_forgotten")
    launch = dataclasses.replace(launch_of(torch.float32, 6, 2, 16), kernel=wrong.kernel)
    yield dataclasses.asdict(compile_ahead(launch, 90))
