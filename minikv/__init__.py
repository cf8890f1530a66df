"""minikv: the KV-cache course that runs.

The names below load on first use (PEP 562), so that ``import minikv`` stays quick and never imports torch.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.blocks import BlockManager, BlockPool
    from minikv.cache import LinearKVCache, PagedKVCache, allocate_kv_cache
    from minikv.engine import LLM, SamplingParams
    from minikv.errors import MiniKVError
    from minikv.eviction import eviction_report, install_kv_eviction, remove_kv_eviction
    from minikv.memory import Arena, ownership, retention_report
    from minikv.plan import CacheSpec, MemoryBudget, plan_memory

__version__ = "0.1.0"

_HOME = {
    "Arena": "memory",
    "BlockManager": "blocks",
    "BlockPool": "blocks",
    "CacheSpec": "plan",
    "LLM": "engine",
    "LinearKVCache": "cache",
    "MemoryBudget": "plan",
    "MiniKVError": "errors",
    "PagedKVCache": "cache",
    "SamplingParams": "engine",
    "allocate_kv_cache": "cache",
    "eviction_report": "eviction",
    "install_kv_eviction": "eviction",
    "ownership": "memory",
    "plan_memory": "plan",
    "remove_kv_eviction": "eviction",
    "retention_report": "memory",
}

__all__ = [
    "LLM",
    "Arena",
    "BlockManager",
    "BlockPool",
    "CacheSpec",
    "LinearKVCache",
    "MemoryBudget",
    "MiniKVError",
    "PagedKVCache",
    "SamplingParams",
    "__version__",
    "allocate_kv_cache",
    "eviction_report",
    "install_kv_eviction",
    "ownership",
    "plan_memory",
    "remove_kv_eviction",
    "retention_report",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)


def __dir__():
    return sorted([*globals(), *_HOME])
