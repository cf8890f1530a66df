"""What the driver and torch say at six moments between the start of a process and its KV cache. Lesson 08.

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
    """The state after each of ``CALLS`` of an engine whose start-up measured ``terms``, and then took ``kv_bytes``.

    ``start``        the CUDA context is there, and what other processes hold; torch has allocated nothing.
    ``load``         the weights come, with ``loading_bytes`` of copies that are freed again. Torch does not give freed
                     memory back, it caches it: ``used`` still counts the copies, and so does ``peak``.
    ``reset_peak``   ``empty_cache``, then ``reset_peak_memory_stats``: torch gives back what it cached, and ``peak``
                     falls to ``current``. (The reset alone would leave ``used`` where it is.)
    ``warmup``       the largest forward. Its activations were in ``peak``; when it ends they are free, and cached.
    ``empty_cache``  torch gives them back: ``used`` falls. ``peak`` remembers, ``current`` never knew.
    ``allocate``     one tensor for the cache: ``current`` and ``used`` grow by ``kv_bytes``; ``peak`` on a record.

    Left out is what torch's segments round up and fragment, which ``used`` has on top. Raises ``ArgumentError`` for
    terms that no start-up has (``used`` or ``peak`` below ``current``) and for sizes that are none.
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
