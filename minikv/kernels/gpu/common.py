"""The description of a launch, and the facts about the GPU that it is meant for."""

import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from minikv.errors import ArgumentError

FP8_FROM = 89  # Triton converts from float8_e4m3fn on compute capability 8.9 and later


@dataclass(frozen=True)
class Device:
    """The GPU of a launch: its compute capability, 90 for 9.0, and its number of streaming multiprocessors."""

    capability: int
    multiprocessors: int


@cache
def device_of(device: torch.device) -> Device:
    """Return the GPU's figures; without a GPU, for the interpreter, those of a small Hopper."""
    if device.type != "cuda":
        return Device(90, 8)
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.major * 10 + properties.minor, properties.multi_processor_count)


def check_stored(what: str, dtype: torch.dtype, capability: int) -> None:
    """Raise ``ArgumentError`` where the kernels of a GPU of that compute capability (89: 8.9) cannot read ``dtype``."""
    if dtype == torch.float8_e4m3fn and capability < FP8_FROM:
        raise ArgumentError("kernel_fp8", what=what, capability=capability / 10)


@dataclass(frozen=True)
class Launch:
    """One kernel and its arguments, as data, so that it can be run here or compiled for another GPU.

    ``registers`` are the most of a thread; without a number the assembler chooses.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    registers: int | None = None

    @property
    def options(self) -> dict[str, int | None]:
        """Triton's names for how it is compiled."""
        return dict(num_warps=self.num_warps, num_stages=self.num_stages, maxnreg=self.registers)

    def run(self) -> None:
        """Start it on the GPU of its tensors, whichever is the current one; a grid without programs starts nothing."""
        if all(self.grid):
            with torch.cuda.device_of(next(x for x in self.arguments if isinstance(x, Tensor))):
                self.kernel[self.grid](*self.arguments, **self.constants, **self.options)


def interpreted() -> bool:
    """Return whether the kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def padded(dim: int) -> int:
    """Return the next power of two, as a tile's side must be one. At least 16, the least for tensor cores."""
    return max(16, triton.next_power_of_2(dim))


def aligned(*strides: tuple[int, ...]) -> bool:
    """Return whether tokens' rows lie multiples of 16 elements apart, in caches of these strides.

    If the caches begin at a multiple of 16 bytes, copies of 16 bytes are possible.
    """
    return all(stride % 16 == 0 for each in strides for stride in each[:-1])
