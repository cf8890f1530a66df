"""The figures of driver and torch at six moments between the start of a process and its KV cache. Lesson 08.

    call            current                peak                            used
    ==============  =====================  ==============================  ====================================
    start           0                      0                               not_torch
    load            weights                weights + loading               not_torch + weights + loading
    reset_peak      weights                weights                         not_torch + weights
    warmup          weights                weights + activations           not_torch + weights + activations
    empty_cache     weights                weights + activations           not_torch + weights
    allocate        weights + kv           the larger of before and now    not_torch + weights + kv

The formula reads its terms after ``empty_cache``.
"""

from dataclasses import dataclass

from minikv.errors import check_count
from minikv.plan.measured import MeasuredTerms

CALLS = ("start", "load", "reset_peak", "warmup", "empty_cache", "allocate")


@dataclass(frozen=True)
class Moment:
    """The state after ``call``, in bytes: ``used`` as the driver sees it (total - free), ``peak`` and ``current`` as
    torch's allocator counts its live tensors (``allocated_bytes.all``)."""

    call: str
    used: int
    peak: int
    current: int


def startup_moments(terms: MeasuredTerms, kv_bytes: int, *, loading_bytes: int = 0) -> tuple[Moment, ...]:
    """The state after each of ``CALLS`` of an engine that measured ``terms`` at its start, and then took ``kv_bytes``.

    ``start``        the CUDA context and other processes hold memory; torch has allocated nothing.
    ``load``         the weights are loaded, with ``loading_bytes`` of copies that are freed again. Torch caches freed
                     memory: ``used`` still counts the copies, and so does ``peak``.
    ``reset_peak``   ``empty_cache``, then ``reset_peak_memory_stats``: torch returns its cached memory, and ``peak``
                     falls to ``current``. (The reset alone would leave ``used`` as it is.)
    ``warmup``       the largest forward. ``peak`` has its activations; they are freed when it ends, and cached.
    ``empty_cache``  torch returns them: ``used`` falls. ``peak`` stays, and ``current`` does not count them.
    ``allocate``     one tensor for the cache: ``current`` and ``used`` grow by ``kv_bytes``; ``peak`` if exceeded.

    The rounding and fragmentation of torch's segments, which ``used`` includes, are left out. Raises ``ArgumentError``
    for terms that no start-up has (``used`` or ``peak`` below ``current``) and for sizes that are none.
    """
    not_torch, activations = terms.used - terms.current, terms.peak - terms.current
    check_count("used - current", not_torch, least=0)
    check_count("peak - current", activations, least=0)
    check_count("kv_bytes", kv_bytes, least=0)
    check_count("loading_bytes", loading_bytes, least=0)

    weights = terms.current
    loaded = weights + loading_bytes
    return (
        Moment("start", not_torch, peak=0, current=0),
        Moment("load", not_torch + loaded, peak=loaded, current=weights),
        Moment("reset_peak", not_torch + weights, peak=weights, current=weights),
        Moment("warmup", not_torch + terms.peak, peak=terms.peak, current=weights),
        Moment("empty_cache", terms.used, peak=terms.peak, current=weights),
        Moment(
            "allocate",
            terms.used + kv_bytes,
            peak=max(terms.peak, weights + kv_bytes),
            current=weights + kv_bytes,
        ),
    )
