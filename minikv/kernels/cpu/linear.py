"""Linear layers on a CPU by ``linear.c``: the weight in panels, each read from memory once for all rows."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from minikv.kernels.c_library import call, load
from minikv.kernels.dispatch import runs_in_c

WITHIN = 1e-4  # of the first results, beside plain torch's


def pack(*weights: Tensor) -> Tensor | None:
    """Return a weight [N, K] as panels [N / columns, rounded up, K, columns]; None where C cannot serve.

    Weights are float32 on the CPU. Columns past N are zeros. Of two weights each has half of a panel's columns.
    """
    if any(not each.is_cpu or each.dtype != torch.float32 for each in weights):
        return None
    library = _compiled() if runs_in_c(weights[0].device) else None
    if library is None:
        return None
    return _panels(weights, _columns(library))


def unpack(panels: Tensor, rows: int) -> Tensor:
    """Return the weight [N, K] of N = ``rows``; of two weights, ``panels`` are one half: ``[..., :columns // 2]``."""
    found = panels.transpose(1, 2).reshape(-1, panels.shape[1])
    return found if len(found) == rows else found[:rows].clone()


def linear(
    x: Tensor, panels: Tensor, rows: int, bias: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """Return ``x @ weight.T + bias`` [..., N] of the weight [N, K] in ``panels``, with N = ``rows``.

    ``gated``: ``silu(x @ first.T) * (x @ second.T)`` of the two weights in ``panels``, without a bias. ``x`` [..., K]
    and ``bias`` [N] are float32 on the CPU.
    """
    return _run(_compiled(), x, panels, rows, bias, gated)


def _run(library: Any, x: Tensor, panels: Tensor, rows: int, bias: Tensor | None, gated: bool) -> Tensor:
    x, depth = x.contiguous(), panels.shape[1]
    out = x.new_empty(*x.shape[:-1], rows)
    late = None if bias is None else bias.contiguous()
    call(
        library.linear,
        x.data_ptr(),
        panels.data_ptr(),
        None if late is None else late.data_ptr(),
        out.data_ptr(),
        out.numel() // rows,
        rows,
        depth,
        gated,
    )
    return out


def _panels(weights: Sequence[Tensor], columns: int) -> Tensor:
    rows, depth = weights[0].shape
    each = columns // len(weights)
    panels, full = weights[0].new_zeros(-(-rows // each), depth, columns), rows // each
    for place, weight in enumerate(weights):
        part = panels[..., place * each : (place + 1) * each]
        part[:full] = weight[: full * each].view(full, each, depth).transpose(1, 2)
        if full * each < rows:
            part[full, :, : rows - full * each] = weight[full * each :].T
    return panels


def _columns(library: Any) -> int:
    return ctypes.c_int64.in_dll(library, "columns").value


@cache
def _compiled() -> Any:
    """Return the library; None where it cannot be had, or does not give what torch does."""
    library = load(Path(__file__).parent / "linear.c")
    if library is None:
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.linear.argtypes = [pointer] * 4 + [count] * 4
    library.linear.restype = None
    columns = _columns(library)
    with torch.device("cpu"), torch.autocast("cpu", enabled=False):
        generator = torch.Generator("cpu").manual_seed(0)
        x, weight, gate, bias = (
            torch.randn(shape, generator=generator, dtype=torch.float32)
            for shape in ((25, 37), (columns + 3, 37), (columns + 3, 37), (columns + 3,))
        )
        panels, pair = _panels([weight], columns), _panels([gate, weight], columns)
        for number in range(1, len(x) + 1):  # each height of a tile
            rows, plain = x[:number], x[:number] @ weight.T
            for found, expected in (
                (_run(library, rows, panels, len(weight), bias, False), plain + bias),
                (_run(library, rows, pair, len(weight), None, True), silu(rows @ gate.T) * plain),
            ):
                if not torch.allclose(found, expected, rtol=WITHIN, atol=WITHIN):
                    return None
    return library
