"""The machine of the lab, and what arithmetic says about it before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from minikv.models.random_weights import ModelShape, shape_for

BLOCK_SIZE = 16
UTILIZATION = 0.9  # the default of an LLM
SMALL_POOL = 64 * 2**20  # bytes of KV without a GPU, where no memory is set aside for a model


@dataclass(frozen=True)
class Card:
    """A GPU with ``total`` bytes, or without one (None) the CPU, and the model that the lab builds there."""

    name: str
    total: int | None
    device: torch.device
    dtype: torch.dtype
    shape: ModelShape

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.total is not None

    @property
    def weight_bytes(self) -> int:
        """The model's weights in ``dtype``."""
        return self.shape.parameters * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """K and V of a token in ``dtype``."""
        return self.shape.token_bytes // 4 * self.dtype.itemsize

    @property
    def context(self) -> int:
        """Tokens of a sequence in the timed decodes: enough for a GPU to read, few enough for a CPU to compute."""
        return 512 if self.on_gpu else 32

    def sequences(self, kv_bytes: int, tokens: int) -> int:
        """Sequences of ``tokens`` that ``kv_bytes`` hold in whole blocks."""
        return kv_bytes // (BLOCK_SIZE * self.token_bytes) // -(-tokens // BLOCK_SIZE)

    def shares(self, step_bytes: int, outside: int) -> dict[str, int]:
        """The bytes of the card by use: weights, the largest step, ``outside`` of torch, KV, and what stays free.

        Without a GPU the KV cache is ``SMALL_POOL``, and nothing else is counted.
        """
        if self.total is None:
            return {"weights": self.weight_bytes, "kv": SMALL_POOL}
        used = {"weights": self.weight_bytes, "step": step_bytes, "outside": outside}
        limit = int(self.total * UTILIZATION)
        return used | {"kv": max(0, limit - sum(used.values())), "free": self.total - limit}

    def options(self) -> dict[str, Any]:
        """What an LLM must be told of its size: nothing on a GPU, which measures it."""
        return {} if self.on_gpu else {"kv_bytes": SMALL_POOL}

    def absent(self, sentence: str) -> list[str]:
        """``sentence`` says what only a GPU would show; none where there is one."""
        return [] if self.on_gpu else [sentence]


def find_card() -> Card:
    """Return the current GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return Card("CPU", None, torch.device("cpu"), torch.float32, shape_for(None))
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.cuda.mem_get_info(device)[1]
    return gpu_card(
        torch.cuda.get_device_name(device), total, torch.cuda.get_device_capability(device), device
    )


def gpu_card(name: str, total: int, capability: tuple[int, int], device: torch.device | None = None) -> Card:
    """A GPU of ``total`` bytes; below compute capability 8.0 there is no bf16, and the model is in fp16."""
    dtype = torch.bfloat16 if capability >= (8, 0) else torch.float16
    return Card(name, total, device or torch.device("cuda", 0), dtype, shape_for(total))


# What torch reports of some cards: bytes, compute capability.
KNOWN: Mapping[str, tuple[int, tuple[int, int]]] = {
    "T4": (15_828_320_256, (7, 5)),
    "A100 40GB": (42_298_834_944, (8, 0)),
    "H100 80GB": (85_029_158_912, (9, 0)),
    "H200": (150_109_290_496, (9, 0)),
}
