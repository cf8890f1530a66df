"""Staging: arrays go to the device in one copy that the host does not wait for, and results come back in one.

Lesson 11a.

A copy out of ordinary memory makes the host wait until the GPU has done all that was queued before. Out of pinned
memory it is queued like a kernel, and the host goes on to launch the step. Pinned memory must not be written again
while a copy reads it; torch keeps its pinned buffers in a pool and gives one out again only when the event behind the
last copy out of it has come, so each step simply takes a new one, and after a few steps there are enough.

Back it is the same: a result is copied into pinned memory behind the kernels that make it, and the host waits for
that copy alone. Asking a tensor for its values would wait for all that was queued since: for the next step.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}
ALIGN = 16  # bytes: for an address that is no multiple of it Triton would compile a kernel once more


def pinned(num_bytes: int, device: torch.device) -> Tensor:
    """``num_bytes`` of uint8 on the host, to be filled and sent to ``device``; nothing is in them yet."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Each of ``arrays`` (int32 or int64) as a contiguous tensor on ``device``; they share one buffer.

    The arrays may be changed at once. On a GPU the tensors are there for all that is queued from now on.
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += aligned(array.nbytes)
    host = pinned(end, device)
    memory = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        place(memory, start, array.shape, array.dtype)[...] = array
    there = host.to(device, non_blocking=True)
    typed = {dtype: there.view(of_torch) for dtype, of_torch in DTYPES.items()}
    tensors = []
    for start, array in zip(starts, arrays, strict=True):
        first = start // array.itemsize
        tensors.append(typed[array.dtype][first : first + array.size].view(array.shape))
    return tensors


class Arrival:
    """The values of ``tensor`` on their way to the host, from where they are in the order of its device's stream.

    The tensor must not be written any more where it is not on a GPU.
    """

    def __init__(self, tensor: Tensor):
        self._host, self._copied = tensor, None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def tolist(self) -> list:
        """The values, once they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.tolist()


def aligned(num_bytes: int) -> int:
    """``num_bytes``, or the next multiple of ``ALIGN``."""
    return -(-num_bytes // ALIGN) * ALIGN


def place(memory: np.ndarray, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The bytes of ``memory`` (uint8) from ``offset`` on as an array of ``shape``."""
    return np.ndarray(shape, dtype, memory, offset)
