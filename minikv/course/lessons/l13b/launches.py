"""What a decode step launches, and how long it takes when the CPU launches every kernel, and when a graph does.

``step_kernels`` runs a model of the catalogue on torch's meta device, which has shapes and no memory, and records what
its forward launches. The times are computed from two assumptions, ``LAUNCH`` and ``SHORTEST``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minikv.models.cache_argument import cache_argument
from minikv.plan import find_gpu, find_model

LAUNCH = 6e-6  # seconds of the CPU for a launch from PyTorch; no source, it depends on the CPU
SHORTEST = 2e-6  # seconds of the smallest kernel; no source
# They return a tensor and compute nothing.
_FREE = {"_unsafe_view", "empty", "empty_like", "detach", "alias"}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step, and the bytes that it reads and writes."""

    name: str
    nbytes: int

    def seconds(self, bandwidth: float) -> float:
        """Return its time on a GPU that moves ``bandwidth`` bytes a second."""
        return max(SHORTEST, self.nbytes / bandwidth)


@dataclass(frozen=True)
class Timeline:
    """A step as (begin, seconds) of each launch on the CPU and of each kernel on the GPU; times are seconds."""

    launches: tuple[tuple[float, float], ...]
    kernels: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        begin, length = self.kernels[-1]
        return begin + length

    @property
    def waiting(self) -> float:
        """The seconds in which the GPU computes nothing."""
        return self.seconds - sum(length for _, length in self.kernels)


def launched(kernels: Sequence[Kernel], gpu: str, *, graph: bool) -> Timeline:
    """Return when each kernel runs: each launched by the CPU, or all of them by the one launch of a ``graph``."""
    bandwidth = 1e9 * find_gpu(gpu).bandwidth_gb_s
    launches = [(number * LAUNCH, LAUNCH) for number in range(1 if graph else len(kernels))]
    ran: list[tuple[float, float]] = []
    free = 0.0  # when the GPU has finished the kernel before
    for number, kernel in enumerate(kernels):
        begin, length = launches[0 if graph else number]
        start = max(free, begin + length)
        ran.append((start, kernel.seconds(bandwidth)))
        free = start + ran[-1][1]
    return Timeline(tuple(launches), tuple(ran))


def step_kernels(name: str, rows: int = 1, context: int = 1024) -> list[Kernel]:
    """Return what transformers' model ``name`` launches in a decode step of ``rows`` sequences in bfloat16."""
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    fields = dict(find_model(name).config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        cache = DynamicCache(config=config)
        kernels: list[Kernel] = []
        with _Attention([]):
            model(torch.zeros(rows, context, dtype=torch.long), **cache_argument(model, cache))
        with _Attention(kernels), _Operations(kernels):
            model(torch.zeros(rows, 1, dtype=torch.long), **cache_argument(model, cache))
    return kernels


class _Attention(TorchFunctionMode):
    """Records attention as the one kernel that it is on a GPU; on the meta device torch would take it apart."""

    def __init__(self, kernels: list[Kernel]):
        super().__init__()
        self.kernels = kernels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        out = torch.empty_like(query)
        self.kernels.append(Kernel("attention", _bytes((query, key, value, out))))
        return out


class _Operations(TorchDispatchMode):
    """Records each operation that computes; a view launches nothing."""

    def __init__(self, kernels: list[Kernel]):
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if not func.is_view and name not in _FREE:
            read = (
                (args[1], out) if name == "embedding" else (args, kwargs)
            )  # it reads the rows asked for alone
            self.kernels.append(Kernel(name, _bytes((read, out))))
        return out


def _bytes(values: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tree_leaves(values) if isinstance(one, Tensor))
