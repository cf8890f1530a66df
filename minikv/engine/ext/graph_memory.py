"""The GPU memory of captured decode steps, reserved before the KV cache takes the rest. Lesson 13b.

A graph is captured on an existing cache, and the cache takes all free memory. So the graphs' expected bytes are held
while ``allocate_kv_cache`` measures, and its formula counts them like everything on the GPU. They are freed before the
capture.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from minikv.memory.arena import Arena


@dataclass(frozen=True)
class GraphMemory:
    """The bytes of ``count`` graphs, expected or measured.

    ``buffer_bytes``: their inputs and logits, an arena, known to the byte. ``pool_bytes``: their intermediate results;
    the graphs share the pool, and nothing else can use it. ``driver_bytes``: the graphs themselves.
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
    """Hold ``num_bytes`` of ``device`` while the block runs. Raises ``DoesNotFitError`` if there is no room."""
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
