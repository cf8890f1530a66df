"""A Hugging Face decoder, unmodified, on a paged cache. Lessons 01 and 11.

``Batch`` has the tokens of a forward and their places in the cache; ``PagedCache`` is the model's cache object during
that forward; ``bind_model`` joins a model and a ``PagedKVCache`` to an ``Adapter``. ``load`` reads a model, also the
two small trained ones; ``recall_documents`` makes the task that those have learned. ``measure`` finds the layers of a
model of an architecture that is on no list.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

if TYPE_CHECKING:
    from minikv.models.adapter import Adapter, bind_model, own_attention
    from minikv.models.attention import ATTENTION
    from minikv.models.batch import Batch, seen_window
    from minikv.models.hf_cache import GatheredCache, PagedCache
    from minikv.models.loading import Loaded, load
    from minikv.models.measured import measure
    from minikv.models.recall import Document, Prompt, Question, recall_documents, recall_prompt

_HOME = {
    "ATTENTION": "attention",
    "Adapter": "adapter",
    "Batch": "batch",
    "Document": "recall",
    "GatheredCache": "hf_cache",
    "Loaded": "loading",
    "PagedCache": "hf_cache",
    "Prompt": "recall",
    "Question": "recall",
    "bind_model": "adapter",
    "own_attention": "adapter",
    "load": "loading",
    "measure": "measured",
    "recall_documents": "recall",
    "recall_prompt": "recall",
    "seen_window": "batch",
}

__all__ = [
    "ATTENTION",
    "Adapter",
    "Batch",
    "Document",
    "GatheredCache",
    "Loaded",
    "PagedCache",
    "Prompt",
    "Question",
    "bind_model",
    "load",
    "measure",
    "own_attention",
    "recall_documents",
    "recall_prompt",
    "seen_window",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
