"""The choice of the implementation, and whether its arguments are checked, by two environment variables.

``MINIKV_KERNELS``: if it is not set, the Triton kernels run on a GPU; on a CPU attention over float32 pages, RMS norms
and linear layers run in C, where there is a C compiler, and everything else in plain torch. ``reference`` runs plain
torch everywhere, for comparisons. ``triton`` runs the kernels everywhere; on a CPU that needs Triton's interpreter, so
``TRITON_INTERPRET=1`` must be set before Triton is imported.

``MINIKV_CHECKED``: the public functions of ``minikv.kernels`` always check their arguments. The caches and the models
call ``operations(device)``, with arguments that they have checked or made themselves. With ``0``, or unset, they get
the implementation, and no argument is checked twice. With ``1`` they get the public functions, so that each call is
checked; the tests and the notebooks run so. ``values`` is like ``1``, but also reads the values of tables, lengths and
slots on a GPU, which makes the CPU wait for it at every call and cannot be captured in a CUDA graph.

Both are read at each call, so a test or a debugging session can switch them between two calls; linear layers are chosen
when an ``LLM`` opens, and decodes that it replays notice a switch at the next prompt. Reading one takes a microsecond;
the smallest kernel takes some tens.
"""

import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError

if TYPE_CHECKING:
    from minikv.kernels.paged_kv import PagedKV

CHOICES = ("reference", "triton")
MODES = ("0", "1", "values")


def checked_mode() -> str:
    """Return the value of ``MINIKV_CHECKED``, one of ``MODES``. Raises ``ArgumentError`` for another."""
    mode = os.environ.get("MINIKV_CHECKED") or "0"
    if mode not in MODES:
        raise ArgumentError("unknown_choice", what="MINIKV_CHECKED", value=mode, known=", ".join(MODES))
    return mode


def operations(device: torch.device) -> Any:
    """Return the module that the caches and the models call for tensors on ``device``.

    In checked mode it has the public functions, otherwise it is ``implementation(device)``, which checks nothing.
    """
    if checked_mode() == "0":
        return implementation(device)
    from minikv.kernels import checked

    return checked


def implementation(device: torch.device) -> Any:
    """Return the implementation for tensors on ``device``. Raises ``ArgumentError`` where it cannot run there."""
    chosen = _choice(device)
    if chosen == "reference":
        from minikv.kernels import reference

        return reference
    if chosen == "cpu":
        import minikv.kernels.cpu as cpu

        return cpu
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError("kernel_not_interpreted", device=str(device))
    import minikv.kernels.gpu as gpu

    return gpu


def check_readable(what: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ``ArgumentError`` where the implementation for ``device`` cannot read a cache of ``dtype``."""
    if _choice(device) == "triton":
        from minikv.kernels.gpu.common import check_stored, device_of

        check_stored(what, dtype, device_of(device).capability)


def part_bytes(device: torch.device, query: Tensor, kv: "PagedKV", **options: Any) -> int:
    """Return the bytes beside the result that an attention on ``device`` leaves and merges; the tensors may be meta.

    ``options`` are those of ``minikv.kernels.gpu.launches.attention_launches``. Only the Triton kernels leave any.
    """
    if _choice(device) != "triton":
        return 0
    from minikv.kernels.gpu import launches
    from minikv.kernels.gpu.common import device_of

    return launches.part_bytes(device_of(device), query, kv, **options)


def runs_in_c(device: torch.device) -> bool:
    """Whether ``MINIKV_KERNELS`` leaves it to a CPU to run in C what it has in C."""
    return _choice(device) == "cpu"


def _choice(device: torch.device) -> str:
    chosen = os.environ.get("MINIKV_KERNELS") or None
    if chosen not in (None, *CHOICES):
        raise ArgumentError("unknown_choice", what="MINIKV_KERNELS", value=chosen, known=", ".join(CHOICES))
    if chosen is None:
        if device.type == "cpu":
            return "cpu"
        chosen = "triton" if device.type == "cuda" and _has_triton() else "reference"
    if chosen == "triton" and not _has_triton():
        raise ArgumentError("kernel_no_triton")
    return chosen


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
