"""The sizes that PyTorch's CUDA caching allocator rounds to, and its settings. No torch is needed here.

Every rule names the file and the function of PyTorch that it was read from; ``caching_allocator.py`` applies them.
The constants are in ``c10/core/AllocatorConfig.h`` (torch 2.13; earlier in ``c10/cuda/CUDACachingAllocator.cpp``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from minikv.errors import ArgumentError, check_count
from minikv.units import MIB

MIN_BLOCK_SIZE = 512  # kMinBlockSize: every size is a multiple of it
SMALL_SIZE = MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer: every segment of the small pool
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer: the segment of a request below MIN_LARGE_ALLOC
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a segment fits its request ...
ROUND_LARGE = 2 * MIB  # kRoundLarge: ... in multiples of this
INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: 1 MiB, 2 MiB, ... 32 GiB and more
REST = ">"  # in the list form of roundup_power2_divisions: every interval above the last one that is named


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings of ``PYTORCH_CUDA_ALLOC_CONF`` for the native allocator, with the same names and defaults.

    ``max_split_size_mb``: blocks of this many MiB or more are never split (None: all are), at least 20.
    ``max_non_split_rounding_mb``: how much larger than the request a block may be that cannot be split.
    ``roundup_power2_divisions``: one number for all sizes, or ``{64: 8, 256: 4, ">": 1}``, intervals in MiB in
    rising order. ``garbage_collection_threshold``: above 0 and below 1; like torch, it works only where the
    allocator has a ``memory_limit``. ``expandable_segments``: segments that grow; minikv does not model it
    together with ``max_split_size_mb`` or ``garbage_collection_threshold``.
    """

    max_split_size_mb: int | None = None
    max_non_split_rounding_mb: int = 20
    roundup_power2_divisions: int | Mapping[int | str, int] = 1
    garbage_collection_threshold: float | None = None
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        # c10/core/AllocatorConfig.cpp: parseMaxSplitSize, parseMaxNonSplitRoundingSize, parseGarbageCollectionThreshold
        if self.max_split_size_mb is not None:
            check_count("max_split_size_mb", self.max_split_size_mb, least=20)
        check_count("max_non_split_rounding_mb", self.max_non_split_rounding_mb, least=20)
        threshold = self.garbage_collection_threshold
        if threshold is not None:
            number = isinstance(threshold, float | int) and not isinstance(threshold, bool)
            if not (number and isfinite(threshold) and 0 < threshold < 1):
                raise ArgumentError("allocator_threshold", value=threshold)
        if not isinstance(self.expandable_segments, bool):
            raise ArgumentError(
                "unknown_choice",
                what="expandable_segments",
                value=self.expandable_segments,
                known="True, False",
            )
        if self.expandable_segments and (self.max_split_size_mb is not None or threshold is not None):
            raise ArgumentError("allocator_settings_clash")
        if isinstance(self.roundup_power2_divisions, Mapping):
            kept = MappingProxyType(dict(self.roundup_power2_divisions))
            object.__setattr__(self, "roundup_power2_divisions", kept)
        divisions_by_interval(self.roundup_power2_divisions)

    @property
    def max_split_size(self) -> int:
        """Bytes from which a block is oversize; 2**64 - 1 where there is no limit, as torch keeps it."""
        return 2**64 - 1 if self.max_split_size_mb is None else self.max_split_size_mb * MIB


def divisions_by_interval(divisions: int | Mapping[int | str, int]) -> tuple[int, ...]:
    """The divisions of each of the 16 intervals [2**i MiB, 2**(i + 1) MiB); 0 and 1 mean no rounding up.

    ``c10/core/AllocatorConfig.cpp``, ``parseRoundUpPower2Divisions``: the first entry also fills the intervals
    below it, ``">"`` fills those above the last one, and intervals between two entries stay 0. Until pull request
    165304 (October 2025, after torch 2.9) ``">"`` overwrote the last named interval as well; this is the later rule.
    """
    if not isinstance(divisions, Mapping):
        _check_power("roundup_power2_divisions", divisions)
        return (divisions,) * INTERVALS
    table = [0] * INTERVALS
    last = None
    for start, value in divisions.items():
        if value != 0 or isinstance(value, bool):
            _check_power(f"roundup_power2_divisions[{start!r}]", value)
        if start == REST:
            first = 1 if last is None else last + 1  # torch starts from last_index = 0
            table[first:] = [value] * (INTERVALS - first)
            continue
        _check_power("roundup_power2_divisions", start)
        index = min(int(start).bit_length() - 1, INTERVALS - 1)
        if last is None:
            table[:index] = [value] * index
        table[index] = value
        last = index
    return tuple(table)


def _check_power(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
        raise ArgumentError("allocator_power_of_two", what=what, value=value)


def round_size(size: int, divisions: tuple[int, ...]) -> int:
    """Bytes of the block that ``size`` requested bytes get: ``DeviceCachingAllocator::round_size``.

    A multiple of 512, or with ``roundup_power2_divisions`` the next of N steps between two powers of two
    (``roundup_power2_next_division``), where the request is larger than 512 N bytes.
    """
    if size < MIN_BLOCK_SIZE:
        return MIN_BLOCK_SIZE
    log2 = size.bit_length() - 1
    steps = divisions[min(max(log2 - 20, 0), INTERVALS - 1)]
    if steps > 1 and size > MIN_BLOCK_SIZE * steps:
        floor = 1 << log2
        step = floor // steps
        return size if size == floor else -(-size // step) * step
    return -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def segment_size(size: int) -> int:
    """Bytes of a new segment for a rounded ``size``: ``DeviceCachingAllocator::get_allocation_size``.

    2 MiB up to 1 MiB, 20 MiB below 10 MiB, and from exactly 10 MiB on the next multiple of 2 MiB.
    """
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE_ALLOC:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE
