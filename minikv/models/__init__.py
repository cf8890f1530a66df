"""Any Hugging Face decoder, unmodified, on a paged cache. Lessons 01 and 11.

``Batch`` says which tokens a forward computes and where they lie; ``PagedCache`` is what the model takes for its cache
during that forward; ``bind_model`` joins a model and a ``PagedKVCache`` to an ``Adapter``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minikv.models.adapter import Adapter, bind_model
    from minikv.models.attention import ATTENTION
    from minikv.models.batch import Batch, seen_window
    from minikv.models.hf_cache import GatheredCache, PagedCache

_HOME = {
    "ATTENTION": "attention",
    "Adapter": "adapter",
    "Batch": "batch",
    "GatheredCache": "hf_cache",
    "PagedCache": "hf_cache",
    "bind_model": "adapter",
    "seen_window": "batch",
}

__all__ = ["ATTENTION", "Adapter", "Batch", "GatheredCache", "PagedCache", "bind_model", "seen_window"]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"minikv.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'minikv.models' has no attribute {name!r}")
