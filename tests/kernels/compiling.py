"""What the modules share whose kernels are compiled for GPUs that are not there, and the process that compiles them.

Such a module has ``rows(everything)``: a JSON row for each case of every day, or for all that are listed. They print
them in a process of its own, in which Triton is not told to interpret:
``python -m tests.kernels.compiling [--all] tests.kernels.sums_compiled ...``
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minikv.kernels.gpu.ahead import compile_ahead
from minikv.kernels.gpu.common import Launch

Case = tuple[int, dict[str, Any]]  # a compute capability, and the options of a launch


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rows_of_cases(launch_of: Callable[..., Launch], cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    for capability, options in cases:
        launch = launch_of(capability, **options)
        row = dataclasses.asdict(compile_ahead(launch, capability))
        tile = {"block_m": launch.constants["BLOCK_M"], "block_n": launch.constants["BLOCK_N"]}
        yield row | tile | {"case": repr(options), "float32": options.get("dtype") == torch.float32}


if __name__ == "__main__":
    everything = sys.argv[1] == "--all"
    for module in sys.argv[1 + everything :]:
        for row in importlib.import_module(module).rows(everything):
            print(json.dumps(row | {"module": module}), flush=True)
