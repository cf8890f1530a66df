"""One setting of the allocation widget: the terms of the formula, and the cache that so many bytes would hold.

The terms come from the planner (a model and a GPU of the catalogue) or from a measured ``AllocationReport``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.errors import LARGEST_COUNT, ArgumentError, DoesNotFitError, check_count
from minikv.plan import pool
from minikv.plan.budget import DEFAULT_CONTEXT, plan_memory
from minikv.plan.measured import MeasuredTerms, size_for_bytes
from minikv.plan.moments import Moment, startup_moments
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.units import GIB, exact_bytes

if TYPE_CHECKING:  # it imports torch, which the other widgets do not need
    from minikv.cache.allocation import AllocationReport

MAX_GIB = 1024  # of a number box


@dataclass(frozen=True)
class Fit:
    """The cache that some bytes hold: ``num_blocks`` counted blocks; ``kv_bytes`` with the windows' blocks."""

    num_blocks: int
    kv_bytes: int


@dataclass(frozen=True)
class Case:
    """The terms of the formula for a model on a GPU, in bytes; ``block_size`` in tokens.

    The activations are those of ``warmup_tokens`` (None: a report does not say). ``loading`` are bytes that existed
    only while the weights were loaded. ``fit(num_bytes)`` returns the cache that so many bytes hold.
    """

    name: str
    gpu: str
    terms: MeasuredTerms
    block_size: int
    block_bytes: int
    warmup_tokens: int | None
    loading: int
    fit: Callable[[int], Fit]

    @property
    def cache(self) -> Fit:
        """The cache that the formula allows."""
        return self.fit(self.terms.available)

    @property
    def not_torch(self) -> int:
        return self.terms.used - self.terms.current

    @property
    def activations(self) -> int:
        return self.terms.peak - self.terms.current

    @property
    def free(self) -> int:
        """The free memory that the driver reports when the formula is computed."""
        return self.terms.total - self.terms.used

    def moments(self) -> tuple[Moment, ...]:
        return startup_moments(self.terms, self.cache.kv_bytes, loading_bytes=self.loading)

    def parts(self) -> dict[str, int]:
        """Return the device's bytes after ``allocate``, under the names of ``AllocationReport.parts``."""
        terms, kv = self.terms, self.cache.kv_bytes
        return {
            "current": terms.current,
            "not_torch": self.not_torch,
            "activations": self.activations,
            "kv": kv,
            "left": terms.available - kv,
            "kept_free": terms.total - terms.limit,
        }

    def missing_after(self, cache: Fit) -> int:
        """Return the bytes that the next prefill lacks beside ``cache``; a negative number is left over."""
        return self.activations - (self.free - cache.kv_bytes)


def planned(state: Mapping[str, Any], context: int | None, batch: int | None) -> Case:
    """Return the planner's terms, as ``allocate_kv_cache`` would measure them; raises the errors that it would raise.

    The warm-up and ``context`` are cut to the model's positions.
    """
    tokens = state["warmup_tokens"]
    check_count("warmup_tokens", tokens)
    spec = CacheSpec.from_config(state["model"], tp=state["tp"])
    most = spec.max_positions or LARGEST_COUNT
    tokens = min(tokens, most)
    budget = plan_memory(
        state["model"],
        gpu=state["gpu"],
        tp=state["tp"],
        utilization=state["utilization"],
        block_size=state["block_size"],
        chunk=tokens,
        cuda_context_bytes=to_bytes("non_torch", state["non_torch"]),
    )
    if any(layer.state_bytes for layer in spec.layers):
        raise ArgumentError("allocation_states", name=spec.name)
    context = min(context or DEFAULT_CONTEXT, most)
    groups, block_size = pool.kv_cache_groups(spec), state["block_size"]

    def fit(num_bytes: int) -> Fit:
        size = size_for_bytes(spec, num_bytes, block_size=block_size, context=context, batch=batch)
        blocks = zip(groups, size.blocks, strict=True)
        return Fit(size.num_blocks, sum(group.block_bytes(block_size) * count for group, count in blocks))

    form = budget.measured_form()
    terms = MeasuredTerms(budget.total_bytes, budget.utilization, form["used"], form["peak"], form["current"])
    return Case(
        name=spec.name,
        gpu=state["gpu"],
        terms=terms,
        block_size=block_size,
        block_bytes=budget.block_bytes,
        warmup_tokens=tokens,
        loading=to_bytes("loading", state["loading"]),
        fit=fit,
    )


def report_start(report: "AllocationReport") -> dict[str, Any]:
    """Return the first settings for a report: its own terms, to the byte. Raises ``ArgumentError`` without terms."""
    terms = report.terms
    if terms is None:
        raise ArgumentError("allocation_not_measured", how=report.how)
    return {
        "utilization": terms.utilization,
        "non_torch": (terms.used - terms.current) / GIB,  # exact: a division by a power of two
        "activations": (terms.peak - terms.current) / GIB,
        "loading": 0.0,
    }


def reported(report: "AllocationReport", state: Mapping[str, Any]) -> Case:
    """Return the report's terms with the settings of ``state``; windowed layers keep the blocks that they got.

    The result is of this rank alone, without the minimum over ranks. Raises ``DoesNotFitError`` where no block is left.
    """
    own = report.terms
    assert own is not None  # report_start raises for a report without terms
    terms = MeasuredTerms(
        total=own.total,
        utilization=state["utilization"],
        used=own.current + to_bytes("non_torch", state["non_torch"]),
        peak=own.current + to_bytes("activations", state["activations"]),
        current=own.current,
    )
    aside = report.kv_bytes - report.num_blocks * report.block_bytes

    def fit(num_bytes: int) -> Fit:
        blocks = max(0, num_bytes - aside) // report.block_bytes
        return Fit(blocks, aside + blocks * report.block_bytes if blocks else 0)

    if not fit(terms.available).num_blocks:
        raise _no_room(report, terms, aside + report.block_bytes)
    same = state["activations"] == report_start(report)["activations"]
    return Case(
        name=report.name,
        gpu=report.device,
        terms=terms,
        block_size=report.block_size,
        block_bytes=report.block_bytes,
        warmup_tokens=report.warmup_tokens if same else None,
        loading=to_bytes("loading", state["loading"]),
        fit=fit,
    )


def to_bytes(what: str, size: object) -> int:
    """Return ``size`` GiB as bytes. Raises ``ArgumentError`` unless it is a number from 0 to ``MAX_GIB``."""
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size <= MAX_GIB:
        raise ArgumentError("bad_gib", what=what, value=size, high=MAX_GIB)
    return round(size * GIB)


def _no_room(report: "AllocationReport", terms: MeasuredTerms, least: int) -> DoesNotFitError:
    others = report.stats.others
    return DoesNotFitError(
        "allocator_no_room",
        name=report.name,
        total=exact_bytes(terms.total),
        utilization=terms.utilization,
        least=exact_bytes(least),
        short=exact_bytes(least - terms.available),
        others="?" if others is None else exact_bytes(others),
        tokens=report.warmup_tokens,
        tp=report.tp,
        **{name: exact_bytes(value) for name, value in terms.as_dict().items()},
    )
