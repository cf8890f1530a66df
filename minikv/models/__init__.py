"""A Hugging Face decoder, unmodified, on a paged cache. Lessons 01 and 11.

``Batch`` has the tokens of a forward and their places in the cache; ``PagedCache`` is the model's cache object during
that forward; ``bind_model`` joins a model and a ``PagedKVCache`` to an ``Adapter``. ``load`` reads a model, also the
two small trained ones; ``recall_documents`` makes the task that those have learned. ``measure`` finds the layers of a
model of an architecture that is on no list; ``random_model`` makes one of any size without a checkpoint.
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
    from minikv.models.random_weights import ModelShape, random_model, shape_for
    from minikv.models.recall import Document, Prompt, Question, recall_documents, recall_prompt

_HOME = {
    "ATTENTION": "attention",
    "Adapter": "adapter",
    "Batch": "batch",
    "Document": "recall",
    "GatheredCache": "hf_cache",
    "Loaded": "loading",
    "ModelShape": "random_weights",
    "PagedCache": "hf_cache",
    "Prompt": "recall",
    "Question": "recall",
    "bind_model": "adapter",
    "own_attention": "adapter",
    "load": "loading",
    "measure": "measured",
    "random_model": "random_weights",
    "recall_documents": "recall",
    "recall_prompt": "recall",
    "seen_window": "batch",
    "shape_for": "random_weights",
}

__all__ = [
    "ATTENTION",
    "Adapter",
    "Batch",
    "Document",
    "GatheredCache",
    "Loaded",
    "ModelShape",
    "PagedCache",
    "Prompt",
    "Question",
    "bind_model",
    "load",
    "measure",
    "own_attention",
    "random_model",
    "recall_documents",
    "recall_prompt",
    "seen_window",
    "shape_for",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
