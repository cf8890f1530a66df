"""minikv: the KV-cache course that runs.

The names below load on first use (PEP 562), so that ``import minikv`` stays quick and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minikv.errors import MiniKVError
    from minikv.plan import CacheSpec, MemoryBudget, plan_memory

__version__ = "0.1.0"

_HOME = {
    "CacheSpec": "minikv.plan",
    "MemoryBudget": "minikv.plan",
    "MiniKVError": "minikv.errors",
    "plan_memory": "minikv.plan",
}

__all__ = ["CacheSpec", "MemoryBudget", "MiniKVError", "__version__", "plan_memory"]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'minikv' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
