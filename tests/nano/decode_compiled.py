"""Compile nano's decode kernel for GPUs that are not there: rows for ``tests.kernels.compiling``."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from minikv.kernels.gpu.ahead import compile_ahead
from minikv.kernels.gpu.common import Launch
from minikv.nano import attention
from minikv.nano.runner import Batch


class Recorder:
    """Stands in for the kernel: what it is called with becomes a ``Launch``."""

    def __init__(self, kernel):
        self.kernel, self.launch = kernel, None

    def __getitem__(self, grid):
        def call(*arguments, **constants):
            self.launch = Launch(self.kernel, grid, arguments, constants, 4, 3)

        return call


def launch_of(dtype: torch.dtype, query_heads: int, kv_heads: int, dim: int) -> Launch:
    def empty(*shape, kind=dtype):
        return torch.empty(shape, dtype=kind, device="meta")

    table, lengths = empty(3, 5, kind=torch.long), empty(3, kind=torch.long)
    batch = Batch(lengths, lengths, lengths, table, lengths, lengths, [], True)
    recorder = attention.paged_decode_kernel = Recorder(attention.paged_decode_kernel)
    try:
        cache = empty(9, 16, kv_heads, dim)
        attention.decode_on_gpu(empty(3, query_heads, dim), cache, cache, batch, 0.1)
    finally:
        attention.paged_decode_kernel = recorder.kernel
    return recorder.launch


def rows(everything: bool) -> Iterator[dict[str, Any]]:
    for capability in (75, 80, 90, 100):
        dtype = torch.float16 if capability == 75 else torch.bfloat16
        yield dataclasses.asdict(compile_ahead(launch_of(dtype, 32, 8, 128), capability))
    yield dataclasses.asdict(compile_ahead(launch_of(torch.float32, 6, 2, 10), 90))
