"""Bytes on paper: the cost of a token, the contents of a GPU. Nothing here imports torch."""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.plan.budget import MemoryBudget, plan_memory
    from minikv.plan.catalog import find_gpu, find_model, gpu_names, model_names
    from minikv.plan.estimate import estimate_kv_cache_gb, max_batch_size, rebuilt_bytes
    from minikv.plan.flops import crossing_length, generation_flops, step_flops
    from minikv.plan.gguf.memory import GGUFPlan, plan_gguf
    from minikv.plan.spec.cache_spec import CacheSpec
    from minikv.plan.spec.layers import LayerSpec
    from minikv.plan.weights.weight_bytes import weight_bytes

_HOME = {
    "CacheSpec": "spec.cache_spec",
    "GGUFPlan": "gguf.memory",
    "LayerSpec": "spec.layers",
    "MemoryBudget": "budget",
    "crossing_length": "flops",
    "estimate_kv_cache_gb": "estimate",
    "find_gpu": "catalog",
    "find_model": "catalog",
    "generation_flops": "flops",
    "gpu_names": "catalog",
    "max_batch_size": "estimate",
    "model_names": "catalog",
    "plan_gguf": "gguf.memory",
    "plan_memory": "budget",
    "rebuilt_bytes": "estimate",
    "step_flops": "flops",
    "weight_bytes": "weights.weight_bytes",
}

__all__ = [
    "CacheSpec",
    "GGUFPlan",
    "LayerSpec",
    "MemoryBudget",
    "crossing_length",
    "estimate_kv_cache_gb",
    "find_gpu",
    "find_model",
    "generation_flops",
    "gpu_names",
    "max_batch_size",
    "model_names",
    "plan_gguf",
    "plan_memory",
    "rebuilt_bytes",
    "step_flops",
    "weight_bytes",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
