"""Plan: the learner's decisions, and the number of blocks that the budget has for them. Lesson 18."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from minikv.course.capstone.entries import LONGEST
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.plan import pool
from minikv.plan.dtypes import find_kv_dtype
from minikv.units import exact_bytes

if TYPE_CHECKING:
    from minikv.course.capstone.task import Task

MOST_DRAFTS = 8
"""Tokens that a plan may guess in a step: the floor counts on it, since a right guess saves a step."""


@dataclass(frozen=True)
class Plan:
    """How to serve a task: the arguments of ``LLM`` that a learner may choose. The defaults are those of ``LLM``.

    ``num_blocks`` None: as many as the budget has room for. ``kv_dtype`` None: the dtype of the weights.
    ``prompt_lookup``: at most ``MOST_DRAFTS``. ``label`` is what the leaderboard calls it.

    Raises ``ArgumentError`` for a bad count, a dtype that no cache has, or other than ``EvictionConfig``.
    """

    block_size: int = 16
    kv_dtype: str | None = None
    max_num_seqs: int = 64
    max_batched_tokens: int = 2048
    eviction: EvictionConfig | None = None
    prompt_lookup: int = 0
    cpu_kv_bytes: int | None = None
    num_blocks: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        for what in ("block_size", "max_num_seqs", "max_batched_tokens"):
            check_count(what, getattr(self, what))
        for what in ("cpu_kv_bytes", "num_blocks"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        check_count("prompt_lookup", self.prompt_lookup, 0)
        if self.prompt_lookup > MOST_DRAFTS:
            raise ArgumentError("capstone_drafts", value=self.prompt_lookup, most=MOST_DRAFTS)
        if self.kv_dtype is not None:
            find_kv_dtype(self.kv_dtype)
        if self.eviction is not None and not isinstance(self.eviction, EvictionConfig):
            raise ArgumentError("eviction_params", kind=type(self.eviction).__name__)
        if not isinstance(self.label, str) or len(self.label) > LONGEST or not self.label.isprintable():
            raise ArgumentError("capstone_label", value=self.label, most=LONGEST)

    @property
    def settings(self) -> dict[str, Any]:
        """The differences from ``Plan()`` and ``EvictionConfig()``, as JSON values; without the label."""
        set_here = _changed(self, Plan())
        set_here.pop("label", None)
        if self.eviction is not None:
            policy = self.eviction.policy
            name = policy if isinstance(policy, str) else repr(policy)[:LONGEST]
            set_here["eviction"] = {"policy": name} | _changed(self.eviction, EvictionConfig(policy))
        return set_here

    def record_bytes(self, task: "Task") -> int:
        """Bytes of eviction's records beside the cache, allocated when the LLM is made; 0 without eviction."""
        from minikv.course.capstone.room import record_bytes  # torch, which a plan alone does not need

        return record_bytes(task, self)

    def block_bytes(self, task: "Task") -> int:
        """Bytes of one block in every layer that ``num_blocks`` counts, scales of the dtype included."""
        return pool.counted_block_bytes(task.spec(self.kv_dtype), self.block_size)

    def num_blocks_for(self, task: "Task") -> int:
        """The blocks of this plan: ``num_blocks``, or all that fit into the budget beside the records.

        Raises ``DoesNotFitError`` where ``num_blocks`` do not fit, or not a single block does.
        """
        from minikv.course.capstone.room import most_blocks, pool_bytes

        fits, wanted = most_blocks(task, self), self.num_blocks or 1
        if wanted > fits:
            records = self.record_bytes(task)
            raise DoesNotFitError(
                "capstone_budget",
                blocks=wanted,
                block=exact_bytes(self.block_bytes(task)),
                need=exact_bytes(pool_bytes(task, self, wanted) + records),
                records=exact_bytes(records),
                budget=exact_bytes(task.kv_bytes),
                fits=fits,
            )
        return self.num_blocks or fits


def _changed(given: Any, default: Any) -> dict[str, Any]:
    """The fields of one dataclass that differ from those of another."""
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
