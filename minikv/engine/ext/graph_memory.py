"""What captured decode steps take of a GPU, and room for it before the KV cache gets all that is left. Lesson 13.

A graph is captured on a cache that exists, and the cache takes what is left: so what the graphs will take is held while
``allocate_kv_cache`` measures. Its formula then counts those bytes as it counts all that is on the GPU. They are given
back before the capture.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from minikv.memory.arena import Arena


@dataclass(frozen=True)
class GraphMemory:
    """Bytes of ``count`` graphs, as expected or as measured.

    ``buffer_bytes``: their inputs and logits, an arena, known to the byte. ``pool_bytes``: what they compute in
    between; the graphs share it, and nothing else can use it. ``driver_bytes``: the graphs themselves.
    """

    count: int
    buffer_bytes: int
    pool_bytes: int
    driver_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.buffer_bytes + self.pool_bytes + self.driver_bytes


@contextmanager
def held(num_bytes: int, device: torch.device, what: str = "CUDA graphs") -> Iterator[None]:
    """Take ``num_bytes`` of ``device`` for as long as the block runs. Raises ``DoesNotFitError`` without the room."""
    if not num_bytes:
        yield
        return
    arena = Arena(num_bytes, device, name=what)
    try:
        yield
    finally:
        arena.close()
        if device.type == "cuda":
            torch.cuda.empty_cache()
