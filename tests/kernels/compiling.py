"""What the processes that compile kernels share: tensors without data, and a JSON row for each case."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minikv.kernels.gpu.ahead import compile_ahead
from minikv.kernels.gpu.common import Launch

Case = tuple[int, dict[str, Any]]  # a compute capability, and the options of a launch


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def print_rows(
    launch_of: Callable[..., Launch], every_time: Sequence[Case], on_request: Sequence[Case]
) -> None:
    """A row for each case of ``every_time``, and with "all" on the command line for the others as well."""
    for capability, options in [*every_time, *(on_request if sys.argv[1:] == ["all"] else ())]:
        launch = launch_of(capability, **options)
        row = dataclasses.asdict(compile_ahead(launch, capability))
        row.update(case=repr(options), float32=options.get("dtype") == torch.float32)
        print(json.dumps(row), flush=True)
