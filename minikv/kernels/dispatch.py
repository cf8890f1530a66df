"""Which implementation runs: the Triton kernels on a GPU, plain torch on a CPU, or what ``MINIKV_KERNELS`` says.

``MINIKV_KERNELS=reference`` runs plain torch everywhere, to compare with. ``MINIKV_KERNELS=triton`` runs the kernels
everywhere; on a CPU that needs Triton's interpreter, so ``TRITON_INTERPRET=1`` must be set before Triton is imported.
"""

import importlib.util
import os
from functools import cache
from typing import Any

import torch

from minikv.errors import ArgumentError

CHOICES = ("reference", "triton")


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
