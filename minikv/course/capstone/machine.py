"""The machine with the clock of a tiny model: a GPU of the catalogue, scaled down to it. Lesson 18."""

from dataclasses import replace
from typing import Any

from minikv.plan.catalog import find_gpu
from minikv.plan.roofline import Roof, gpu_roof
from minikv.plan.step_work import step_cost
from minikv.simulate.assumptions import Assumptions

LIKE_GPU, LIKE_MODEL = "H200", "Llama-3.1-8B"


def small_machine(config: Any, gpu: str = LIKE_GPU, model: str = LIKE_MODEL) -> tuple[Roof, Assumptions]:
    """An H200 on which this small model takes as long as Llama-3.1-8B on a whole one.

    Reading all weights once takes as long there, and so do a token's products with them: the bandwidth (that to the
    host too) is scaled by the ratio of the weights' bytes, the FLOP rate by the ratio of a token's FLOPs. On a whole
    H200 a tiny model's steps would be all overhead, whatever the plan.
    """
    own, like, assumptions = step_cost(config), step_cost(model), Assumptions()
    whole = gpu_roof(find_gpu(gpu))
    bytes_ratio = own.weight_bytes(1) / like.weight_bytes(1)
    roof = Roof(
        f"{gpu} / {1 / bytes_ratio:,.0f}",
        whole.bandwidth_gb_s * bytes_ratio,
        whole.tflops * own.token_flops / like.token_flops,
    )
    return roof, replace(assumptions, host_gb_s=assumptions.host_gb_s * bytes_ratio)
