"""Lesson 07: its two stories as steps of the allocator: a K that grows by joining, and a batch after another.

``SegmentsWidget`` and ``segment_moments`` draw the steps; ``next_batch`` runs the second story to its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minikv.course.widgets.segments_replay import AllocatorStep
from minikv.i18n import text
from minikv.memory import CachingAllocator, replay

_FIELDS = {"malloc": ("id", "size"), "free": ("id",), "empty_cache": ()}


def joined_steps(token_bytes: int, lengths: Sequence[int], lang: str = "en") -> list[AllocatorStep]:
    """Return the steps of one layer's K, ``token_bytes`` a token, that ``torch.cat`` makes anew at each length."""

    def say(key: str, **values: Any) -> str:
        return text(f"lesson_07.{key}", lang, **values)

    steps = [AllocatorStep("malloc", f"K {lengths[0]}", lengths[0] * token_bytes)]
    for old, new in pairwise(lengths):
        steps.append(AllocatorStep("malloc", f"K {new}", new * token_bytes, say("note_cat", tokens=new)))
        steps.append(AllocatorStep("free", f"K {old}", note=say("note_cat_free")))
    return [*steps, AllocatorStep("empty_cache", note=say("note_cat_empty"))]


def batch_steps(
    weights: int, cache: int, kept: int, order: str = "free, keep, empty", lang: str = "en"
) -> list[AllocatorStep]:
    """Return the six steps of the second story: weights, a cache, three calls in ``order``, and the next cache.

    The calls: "free" the cache, "keep" the logits (``kept`` bytes), "empty" torch's cache.
    """
    name = {key: text(f"lesson_07.{key}", lang) for key in ("weights", "cache", "next_cache")}
    note = {
        key: text(f"lesson_07.note_{key}", lang)
        for key in ("weights", "cache", "free", "logits", "empty", "next")
    }
    calls = {
        "free": AllocatorStep("free", name["cache"], note=note["free"]),
        "keep": AllocatorStep("malloc", "logits", kept, note["logits"]),
        "empty": AllocatorStep("empty_cache", note=note["empty"]),
    }
    return [
        AllocatorStep("malloc", name["weights"], weights, note["weights"]),
        AllocatorStep("malloc", name["cache"], cache, note["cache"]),
        *(calls[call] for call in order.split(", ")),
        AllocatorStep("malloc", name["next_cache"], cache, note["next"]),
    ]


def as_trace(steps: Sequence[AllocatorStep]) -> list[dict[str, Any]]:
    """Return ``steps`` as the list of operations that ``minikv.memory.replay`` runs."""
    trace = []
    for step in steps:
        known = {"id": step.name, "size": step.size}
        trace.append({"op": step.kind} | {field: known[field] for field in _FIELDS[step.kind]})
    return trace


@dataclass(frozen=True)
class NextBatch:
    """The end of the second story: bytes that are reserved in no tensor's use, and whether the next cache ``fits``."""

    stuck: int
    fits: bool


def next_batch(steps: Sequence[AllocatorStep], allocator: CachingAllocator) -> NextBatch:
    """Run ``steps`` on ``allocator``; ``stuck`` is what stood there before the last one."""
    *_, before, last = replay(as_trace(steps), allocator)
    return NextBatch(before.usage.reserved - before.usage.allocated, last.out_of_memory is None)
