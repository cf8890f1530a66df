"""The bytes of a plan's K and V, as the engine counts them before it allocates. Lesson 18."""

from typing import TYPE_CHECKING

from minikv.engine.ext.eviction_worker import reserve
from minikv.engine.factory import EngineConfig, windows_wanted
from minikv.plan import CacheSpec
from minikv.plan.measured import size_for_blocks
from minikv.plan.pool import kv_cache_groups

if TYPE_CHECKING:
    from minikv.course.capstone.plan import Plan
    from minikv.course.capstone.task import Task


def record_bytes(task: "Task", plan: "Plan") -> int:
    """Bytes of eviction's records beside the cache, allocated when the LLM is made; 0 without eviction."""
    if plan.eviction is None:
        return 0
    spec, wanted = task.spec(plan.kv_dtype), _wanted(task, plan, None)
    return reserve(task.model, spec, plan.eviction, wanted, 1, task.max_model_len).num_bytes


def pool_bytes(task: "Task", plan: "Plan", num_blocks: int) -> int:
    """Bytes of so many blocks of the layers without a window, and of the windows that the engine makes beside them."""
    spec, wanted = task.spec(plan.kv_dtype), _wanted(task, plan, num_blocks)
    windows = windows_wanted(spec, wanted, task.max_model_len) or {"context": task.max_model_len}
    size = size_for_blocks(spec, num_blocks, block_size=plan.block_size, **windows)
    return _bytes_of(spec, size.blocks, plan.block_size)


def most_blocks(task: "Task", plan: "Plan") -> int:
    """The most blocks that fit into the budget beside the records; 0 where none fits."""
    room = task.kv_bytes - record_bytes(task, plan)
    low, high = 0, 1
    while pool_bytes(task, plan, high) <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pool_bytes(task, plan, middle) <= room else (low, middle)
    return low


def _wanted(task: "Task", plan: "Plan", num_blocks: int | None) -> EngineConfig:
    return EngineConfig(
        kv_bytes=None,
        num_blocks=num_blocks,
        utilization=0.9,
        block_size=plan.block_size,
        max_num_seqs=plan.max_num_seqs,
        max_batched_tokens=plan.max_batched_tokens,
        max_model_len=task.max_model_len,
        cache="paged",
        kv_dtype=plan.kv_dtype,
        prompt_lookup=plan.prompt_lookup,
    )


def _bytes_of(spec: CacheSpec, blocks: tuple[int, ...], block_size: int) -> int:
    groups = kv_cache_groups(spec)
    return sum(group.block_bytes(block_size) * count for group, count in zip(groups, blocks, strict=True))
