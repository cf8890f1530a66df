"""Suspect 4 of lesson 16: a model that is sharded as for tensor parallelism, on one rank that talks to itself.

One rank does all that two do, sharded tensors and all-reduces included, only without a partner.
``tests/memory/test_suspects.py`` runs the same with two processes.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from minikv.course.lessons.suspects_16 import answer
from minikv.errors import ArgumentError
from minikv.memory import RetentionReport, retention_report


def parallel_plan(num_layers: int) -> dict[str, Any]:
    """Column and row parallel as in transformers' plan for Llama: module name -> style."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {}
    for layer in range(num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        columns = [f"{attention}.{name}_proj" for name in "qkv"] + [
            f"{mlp}.{name}_proj" for name in ("gate", "up")
        ]
        plan |= {name: ColwiseParallel() for name in columns}
        plan |= {f"{attention}.o_proj": RowwiseParallel(), f"{mlp}.down_proj": RowwiseParallel()}
    return plan


def suspect_parallel(model: Any, ids: Tensor) -> tuple[RetentionReport, bool]:
    """4: what is alive after ``generate()`` of the sharded ``model``, and whether it answers as the whole one.

    ``model`` (on the CPU) is sharded in place. The first call may set meshes up; it is the second that is reported.
    Raises ``ArgumentError`` where this process already is a rank of something.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    if dist.is_initialized():
        raise ArgumentError("parallel_16_taken", ranks=dist.get_world_size())
    whole = answer(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            parallelize_module(
                model, init_device_mesh("cpu", (1,)), parallel_plan(model.config.num_hidden_layers)
            )
            same = bool((answer(model, ids) == whole).all())
            report = retention_report(lambda: answer(model, ids))
        finally:
            dist.destroy_process_group()
            del store
    return report, same
