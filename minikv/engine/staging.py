"""Staging: arrays go to the device in one copy that the host does not wait for, and results come back in one.

Lesson 11a.

A copy out of ordinary memory makes the host wait until the GPU has done everything queued before. Out of pinned
memory it is queued like a kernel, and the host goes on to launch the step. Pinned memory must not be overwritten
while a copy reads it. torch keeps its pinned buffers in a pool and reuses one only after the event behind its last copy
has come. So each step takes a new buffer, and after a few steps there are enough.

On the way back a result is copied into pinned memory behind the kernels that make it, and the host waits for that copy
alone. Asking a tensor for its values would wait for everything queued since: for the next step.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}
ALIGN = 16  # bytes; Triton would compile a kernel again for an address that is no multiple of it


def pinned(num_bytes: int, device: torch.device) -> Tensor:
    """Return ``num_bytes`` of uint8 on the host, uninitialized, to be filled and sent to ``device``."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copy each of ``arrays`` (int32 or int64) to a contiguous tensor on ``device``; they share one buffer.

    The arrays may be changed at once. On a GPU the tensors are valid for everything queued from now on.
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += aligned(array.nbytes)
    host = None if device.type == "cpu" else pinned(end, device)
    memory = np.empty(end, np.uint8) if host is None else host.numpy()
    places = [
        place(memory, start, array.shape, array.dtype) for start, array in zip(starts, arrays, strict=True)
    ]
    for into, array in zip(places, arrays, strict=True):
        into[...] = array
    if host is None:
        return [torch.from_numpy(filled) for filled in places]
    there = host.to(device, non_blocking=True)
    typed = {dtype: there.view(of_torch) for dtype, of_torch in DTYPES.items()}
    tensors = []
    for start, array in zip(starts, arrays, strict=True):
        first = start // array.itemsize
        tensors.append(typed[array.dtype][first : first + array.size].view(array.shape))
    return tensors


class HostCopy:
    """The values of ``tensor`` on their way to the host, copied in the order of its device's stream.

    A tensor that is not on a GPU must not be overwritten any more.
    """

    def __init__(self, tensor: Tensor):
        self._host, self._copied = tensor, None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def tolist(self) -> list:
        """Wait for the values and return them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.tolist()


def aligned(num_bytes: int) -> int:
    """Return ``num_bytes``, rounded up to a multiple of ``ALIGN``."""
    return -(-num_bytes // ALIGN) * ALIGN


def place(memory: np.ndarray, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return the bytes of ``memory`` (uint8) from ``offset`` on as an array of ``shape``."""
    return np.ndarray(shape, dtype, memory, offset)
