"""An engine to read in one evening: paged K and V, prefix cache, chunks, continuous batching, preemption.

Seven files: llm, scheduler, block_manager, sequence, runner, attention, kv_cache. README.md beside them
follows one token through all. ``minikv.nano.scheduler`` and ``minikv.nano.block_manager`` are pure Python.
"""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use
from minikv.nano.sequence import SamplingParams, Sequence

if TYPE_CHECKING:
    from minikv.nano.llm import LLM, RequestOutput

__all__ = ["LLM", "RequestOutput", "SamplingParams", "Sequence"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, {"LLM": "llm", "RequestOutput": "llm"})
