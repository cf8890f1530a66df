"""RMS norm on a CPU by ``rms_norm.c``: one call for the five operations of plain torch."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minikv.kernels.c_library import call, load
from minikv.kernels.dispatch import runs_in_c


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    """Return ``x * weight / sqrt(mean(x^2) + eps)`` over the last dimension of ``x``; None where C cannot serve.

    ``x`` [..., N] and ``weight`` [N] float32 on the CPU, contiguous.
    """
    fits = (
        x.is_cpu
        and weight.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and x.shape[-1:] == weight.shape
    )
    run = (
        _compiled() if fits and x.is_contiguous() and weight.is_contiguous() and runs_in_c(x.device) else None
    )
    if run is None:
        return None
    out, width = torch.empty_like(x), len(weight)
    call(run, x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // width, width, eps)
    return out


@cache
def _compiled() -> Any:
    library = load(Path(__file__).parent / "rms_norm.c")
    if library is None:
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.rms_norm.argtypes = [pointer, pointer, pointer, count, count, ctypes.c_float]
    library.rms_norm.restype = None
    return library.rms_norm
