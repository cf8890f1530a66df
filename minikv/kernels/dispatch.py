"""Which function runs, and whether its arguments are checked. Two variables of the environment decide.

``MINIKV_KERNELS``: the Triton kernels on a GPU and plain torch on a CPU where it is not set. ``reference`` runs plain
torch everywhere, to compare with. ``triton`` runs the kernels everywhere; on a CPU that needs Triton's interpreter, so
``TRITON_INTERPRET=1`` must be set before Triton is imported.

``MINIKV_CHECKED``: the public functions of ``minikv.kernels`` check their arguments always. The caches and the models
call ``operations(device)``, with arguments that they have checked or made themselves. ``0``, or not set: they get the
implementation, and no argument is checked twice. ``1``: they get the public functions, so that each call is checked;
the tests and the notebooks run so. ``values``: as ``1``, and the values of tables, lengths and slots are read on a GPU
too, which makes the CPU wait for it at every call and cannot be captured in a CUDA graph.

Both are read at each call: a test or a debugging session switches them between two calls, and reading one takes a
microsecond, where the least kernel takes some tens.
"""

import importlib.util
import os
from functools import cache
from typing import Any

import torch

from minikv.errors import ArgumentError

CHOICES = ("reference", "triton")
MODES = ("0", "1", "values")


def checked_mode() -> str:
    """The value of ``MINIKV_CHECKED``, one of ``MODES``. Raises ``ArgumentError`` for another."""
    mode = os.environ.get("MINIKV_CHECKED") or "0"
    if mode not in MODES:
        raise ArgumentError("unknown_choice", what="MINIKV_CHECKED", value=mode, known=", ".join(MODES))
    return mode


def operations(device: torch.device) -> Any:
    """The module whose functions the caches and the models call for tensors on ``device``.

    In checked mode that of the public functions, otherwise ``implementation(device)``, which checks nothing.
    """
    if checked_mode() == "0":
        return implementation(device)
    from minikv.kernels import checked

    return checked


def implementation(device: torch.device) -> Any:
    """The module whose functions run for tensors on ``device``. Raises ``ArgumentError`` where it cannot run there."""
    if _choice(device) == "reference":
        from minikv.kernels import reference

        return reference
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError("kernel_not_interpreted", device=str(device))
    import minikv.kernels.gpu as gpu

    return gpu


def check_readable(what: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ``ArgumentError`` where what runs on ``device`` cannot compute attention over a cache of ``dtype``."""
    if _choice(device) == "triton":
        from minikv.kernels.gpu.common import check_stored, device_of

        check_stored(what, dtype, device_of(device).capability)


def _choice(device: torch.device) -> str:
    chosen = os.environ.get("MINIKV_KERNELS") or None
    if chosen not in (None, *CHOICES):
        raise ArgumentError("unknown_choice", what="MINIKV_KERNELS", value=chosen, known=", ".join(CHOICES))
    if chosen is None:
        chosen = "triton" if device.type == "cuda" and _has_triton() else "reference"
    if chosen == "triton" and not _has_triton():
        raise ArgumentError("kernel_no_triton")
    return chosen


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
