"""minikv: the KV-cache course that runs.

The names below load on first use (PEP 562), so that ``import minikv`` stays quick and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
    "Arena": "minikv.memory",
    "BlockManager": "minikv.blocks",
    "BlockPool": "minikv.blocks",
    "CacheSpec": "minikv.plan",
    "LLM": "minikv.engine",
    "LinearKVCache": "minikv.cache",
    "MemoryBudget": "minikv.plan",
    "MiniKVError": "minikv.errors",
    "PagedKVCache": "minikv.cache",
    "SamplingParams": "minikv.engine",
    "allocate_kv_cache": "minikv.cache",
    "eviction_report": "minikv.eviction",
    "install_kv_eviction": "minikv.eviction",
    "ownership": "minikv.memory",
    "plan_memory": "minikv.plan",
    "remove_kv_eviction": "minikv.eviction",
    "retention_report": "minikv.memory",
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


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'minikv' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
