"""Linear layers on a CPU by ``linear.c``: the weight in panels, each read from memory once for all rows."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minikv.kernels.c_library import load
from minikv.kernels.dispatch import runs_in_c

WITHIN = 1e-4  # of the first results, beside plain torch's


def pack(weight: Tensor) -> Tensor | None:
    """Return ``weight`` [N, K] as panels [N / columns, rounded up, K, columns]; None where C cannot serve.

    ``weight`` is float32 on the CPU. Columns past N are zeros.
    """
    if not weight.is_cpu or weight.dtype != torch.float32 or not runs_in_c(weight.device):
        return None
    library = _compiled()
    return None if library is None else _panels(weight, _columns(library))


def unpack(panels: Tensor, rows: int) -> Tensor:
    """Return the weight [N, K] of N = ``rows``."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])[:rows]


def linear(x: Tensor, panels: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` [..., N] of the weight [N, K] in ``panels``, with N = ``rows``.

    ``x`` [..., K] and ``bias`` [N] are float32 on the CPU.
    """
    return _run(_compiled(), x, panels, rows, bias)


def _run(library: Any, x: Tensor, panels: Tensor, rows: int, bias: Tensor | None) -> Tensor:
    x, depth = x.contiguous(), panels.shape[1]
    out = x.new_empty(*x.shape[:-1], rows)
    late = None if bias is None else bias.contiguous()
    library.linear(
        x.data_ptr(),
        panels.data_ptr(),
        None if late is None else late.data_ptr(),
        out.data_ptr(),
        out.numel() // rows,
        rows,
        depth,
    )
    return out


def _panels(weight: Tensor, columns: int) -> Tensor:
    rows, depth = weight.shape
    whole = weight.new_zeros(-(-rows // columns), depth, columns)
    full = rows // columns
    whole[:full] = weight[: full * columns].view(full, columns, depth).transpose(1, 2)
    if full * columns < rows:
        whole[full, :, : rows - full * columns] = weight[full * columns :].T
    return whole


def _columns(library: Any) -> int:
    return ctypes.c_int64.in_dll(library, "columns").value


@cache
def _compiled() -> Any:
    """Return the library; None where it cannot be had, or does not give what torch does."""
    library = load(Path(__file__).parent / "linear.c")
    if library is None:
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.linear.argtypes = [pointer] * 4 + [count] * 3
    library.linear.restype = None
    columns = _columns(library)
    with torch.device("cpu"):
        generator = torch.Generator("cpu").manual_seed(0)
        x, weight, bias = (
            torch.randn(shape, generator=generator, dtype=torch.float32)
            for shape in ((25, 37), (columns + 3, 37), (columns + 3,))
        )
        panels = _panels(weight, columns)
        for number in range(1, len(x) + 1):  # each height of a tile
            found = _run(library, x[:number], panels, len(weight), bias)
            if not torch.allclose(found, torch.addmm(bias, x[:number], weight.T), rtol=0, atol=WITHIN):
                return None
    return library
