"""Bandwidth, measured: bytes a second against the working set. Its steps are the memory pyramid. Lesson 04.

A read is ``torch.amax`` over the working set, many times inside one call: the tensor is expanded by a dimension of
stride 0, so that a small set is read thousands of times between two readings of the clock. Otherwise a small set would
show the cost of a call (1 us on a CPU, some 5 us for a kernel launch) and not the bandwidth.

The fastest of many short calls counts, as in STREAM (McCalpin 1995): other work on the machine can only make a call
longer. A curve is measured three times over, so that a busy moment does not spoil the points that fell into it.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minikv.errors import ArgumentError, check_count
from minikv.memory.stats import MemoryStats, find_memory
from minikv.units import GIB, KIB, MIB, format_bytes

WORKING_SETS = tuple(2**power for power in range(14, 31))  # 16 KiB to 1 GiB
SMALLEST = 4 * KIB
REPEATS = 5  # calls at least
SPEND_S = 0.05  # seconds of calls at least
ROUNDS = 3
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class BandwidthPoint:
    """One measurement. ``what`` is "read", "copy", or an access pattern's name.

    ``working_set`` counts the different bytes that it touches. ``bytes_read`` and ``bytes_written`` are those that one
    timed call asked for, every pass over the set counted; ``seconds`` is the time of the fastest such call. The
    hardware may move more: whole cache lines for a few bytes, a line read before it is written.
    """

    what: str
    device: str
    working_set: int
    bytes_read: int
    bytes_written: int
    seconds: float

    @property
    def gb_s(self) -> float:
        """10**9 bytes a second, read and written together."""
        return (self.bytes_read + self.bytes_written) / self.seconds / 1e9


@dataclass(frozen=True)
class FlopRate:
    """FLOPs of one matrix product of ``dtype``, and the seconds of the fastest of several."""

    device: str
    dtype: str
    flops: int
    seconds: float

    @property
    def tflops(self) -> float:
        """10**12 FLOP a second."""
        return self.flops / self.seconds / 1e12


@dataclass(frozen=True)
class Cache:
    """A cache of the device: ``name`` ("L1", "L2", "L3") and its ``size`` in bytes; on a CPU, as one core sees it."""

    name: str
    size: int


@dataclass(frozen=True)
class Level:
    """A step of the pyramid: the ``points`` with a working set that the cache ``name`` holds, or else "memory"."""

    name: str
    points: tuple[BandwidthPoint, ...]

    @property
    def gb_s(self) -> float:
        """The median of its points."""
        return statistics.median(point.gb_s for point in self.points)


def bandwidth_curve(
    device: Any = None,
    *,
    sizes: Sequence[int] = WORKING_SETS,
    cores: int | None = None,
    repeats: int = REPEATS,
) -> tuple[BandwidthPoint, ...]:
    """Read bandwidth against the working set, one point for each of ``sizes`` (bytes).

    ``device`` None is the current GPU, or the CPU where there is none. On a CPU ``cores`` cores read, each the whole
    set, so one core's caches count, and the shared ones. ``cores`` None are as many as torch has threads: the bandwidth
    of the whole machine while it is idle (a core that is busy elsewhere keeps the others waiting). 1 is the steadier
    figure, that of one core. On a GPU the multiprocessors divide the set, so that their L1 caches add up; a set of a
    few KiB keeps only some of them busy.

    All points read the front of one buffer of the largest size. Raises ``ArgumentError`` for sizes below 4 KiB, for
    more than the device has free, for more cores than torch has threads, and for a device that torch cannot use.
    """
    found = find_device(device)
    check_count("repeats", repeats)
    cores = check_cores(cores)
    if not sizes:
        raise ArgumentError("bad_count", what="len(sizes)", value=0, least=1)
    for size in sizes:
        check_count("working_set", size, least=SMALLEST)
    check_room(max(sizes), found)
    # On a GPU the reduction spends instructions on every element's address: so 8 bytes an element.
    dtype = torch.int32 if found.type == "cpu" else torch.int64
    buffer = torch.ones(max(sizes) // dtype.itemsize, dtype=dtype, device=found)
    with only(cores):
        rounds = [[_read(buffer, size, repeats) for size in sizes] for _ in range(ROUNDS)]
    return tuple(min(points, key=lambda point: point.seconds) for points in zip(*rounds, strict=True))


def read_bandwidth(
    working_set: int, device: Any = None, *, cores: int | None = None, repeats: int = REPEATS
) -> BandwidthPoint:
    """One point of ``bandwidth_curve``."""
    return bandwidth_curve(device, sizes=(working_set,), cores=cores, repeats=repeats)[0]


def copy_bandwidth(
    working_set: int, device: Any = None, *, cores: int | None = None, repeats: int = REPEATS
) -> BandwidthPoint:
    """torch's own copy of half the working set into the other half: as many bytes written as read.

    Each call is timed alone, so small sets show the cost of a call. ``cores`` and errors: as ``bandwidth_curve``.
    """
    found = find_device(device)
    check_count("repeats", repeats)
    cores = check_cores(cores)
    check_count("working_set", working_set, least=SMALLEST)
    check_room(working_set, found)
    source = torch.ones(working_set // 2, dtype=torch.uint8, device=found)
    target = torch.empty_like(source)
    with only(cores):
        seconds = seconds_of(lambda: target.copy_(source), found, repeats)
    return BandwidthPoint("copy", str(found), 2 * source.nbytes, source.nbytes, target.nbytes, seconds)


def matmul_rate(
    device: Any = None, *, dtype: torch.dtype | None = None, side: int | None = None, repeats: int = 25
) -> FlopRate:
    """The FLOPs a second that a product of two ``side`` x ``side`` matrices reaches: 2 * side**3 FLOPs.

    The default dtype is bf16 on a GPU that has it, fp16 on an older one, and float32 on a CPU, where every build is
    fast in it. A product of square matrices is the best case; nothing in a model does more. Other programs take cores
    of a CPU away. So the default product lasts about a millisecond there, and some are undisturbed. One core alone is
    tried too: it may be faster than cores that wait for each other.
    """
    found = find_device(device)
    check_count("repeats", repeats)
    side = _matmul_side(found) if side is None else side
    check_count("side", side)
    if dtype is None:
        dtype = torch.float32
        if found.type == "cuda":
            dtype = torch.bfloat16 if torch.cuda.get_device_capability(found) >= (8, 0) else torch.float16
    check_room(3 * side * side * dtype.itemsize, found)
    a, b = (torch.ones(side, side, device=found).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    times = []
    for cores in {1, torch.get_num_threads()} if found.type == "cpu" else {1}:
        with only(cores):
            times += [seconds_of(lambda: torch.mm(a, b, out=out), found, repeats) for _ in range(ROUNDS)]
    return FlopRate(str(found), str(dtype).removeprefix("torch."), 2 * side**3, min(times))


def cache_sizes(device: Any = None) -> tuple[Cache, ...]:
    """The known caches of ``device``, smallest first: Linux tells those of a CPU, torch the L2 of a GPU."""
    found = find_device(device)
    if found.type == "cuda":
        return (Cache("L2", torch.cuda.get_device_properties(found).L2_cache_size),)
    return _cpu_caches(_CPU_CACHES)


def levels(points: Iterable[BandwidthPoint], caches: Sequence[Cache]) -> tuple[Level, ...]:
    """The points by the smallest cache that holds their working set, "memory" where none does; no empty levels."""
    names = [*(cache.name for cache in caches), "memory"]
    by_name: dict[str, list[BandwidthPoint]] = {name: [] for name in names}
    for point in points:
        name = next((cache.name for cache in caches if point.working_set <= cache.size), "memory")
        by_name[name].append(point)
    return tuple(Level(name, tuple(found)) for name, found in by_name.items() if found)


def seconds_of(fn: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float:
    """The fewest seconds of ``fn()`` in ``repeats`` calls or more, after one that does not count.

    CUDA events time it on a GPU. For calls of microseconds the time includes the launch.
    """
    fn()
    times: list[float] = []
    while len(times) < repeats or sum(times) < SPEND_S:
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.device(device):
                start.record()
                fn()
                end.record()
            end.synchronize()
            times.append(max(start.elapsed_time(end) / 1e3, 1e-7))
        else:
            begin = time.perf_counter()
            fn()
            # A clock that has not advanced would make a bandwidth infinite, and this loop endless.
            times.append(max(time.perf_counter() - begin, 1e-7))
    return min(times)


def _matmul_side(device: torch.device) -> int:
    """A side that fills a GPU; on a CPU 256 for one core, growing with the root of the number of cores."""
    if device.type == "cuda":
        return 8192
    return 128 * math.ceil(2 * math.sqrt(torch.get_num_threads()))


@contextmanager
def only(count: int) -> Iterator[None]:
    """Give torch ``count`` threads on the CPU inside the block, and restore the number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read(buffer: torch.Tensor, size: int, repeats: int) -> BandwidthPoint:
    """``passes`` readings of the first ``size`` bytes of ``buffer`` in one call of amax."""
    on_gpu = buffer.is_cuda
    # As many pieces as a GPU runs at once: each is read by threads of its own, so none reads what another has just
    # cached. A CPU's cores have caches of their own, so there each may read the whole set.
    workers = 4 * torch.cuda.get_device_properties(buffer.device).multi_processor_count if on_gpu else 1
    pieces = max(1, min(workers, size // (8 * KIB)))
    passes = max(1, (4 * GIB if on_gpu else 64 * MIB) // size)
    again = repeated(buffer, size, pieces, passes)
    # One result a piece on a GPU, one a pass on a CPU: torch divides the work over threads by results.
    dims = (1, 2) if on_gpu else (0, 2)
    seconds = seconds_of(lambda: again.amax(dims), buffer.device, repeats)
    touched = again[:, 0].numel() * buffer.itemsize
    return BandwidthPoint("read", str(buffer.device), touched, passes * touched, 0, seconds)


def repeated(buffer: torch.Tensor, num_bytes: int, pieces: int, passes: int) -> torch.Tensor:
    """The first ``num_bytes`` of ``buffer`` ``passes`` times over: a view [pieces, passes, elements of a piece].

    The passes have stride 0, so the view takes no memory. It leaves out the rest that ``pieces`` does not divide.
    """
    piece = num_bytes // buffer.itemsize // pieces
    return buffer[: pieces * piece].view(pieces, 1, piece).expand(pieces, passes, piece)


def find_device(device: Any) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return find_memory(device)


def check_cores(cores: int | None) -> int:
    """``cores``, or torch's number of threads where it is None. Raises ``ArgumentError`` for more than that."""
    most = torch.get_num_threads()
    cores = most if cores is None else cores
    check_count("cores", cores)
    if cores > most:
        raise ArgumentError("out_of_range", what="cores", value=cores, low=0, high=most)
    return cores


def check_room(num_bytes: int, device: torch.device) -> None:
    free = MemoryStats.read(device).free
    if num_bytes > free:
        raise ArgumentError(
            "bandwidth_no_room", asked=format_bytes(num_bytes), free=format_bytes(free), device=str(device)
        )


def _cpu_caches(folder: Path) -> tuple[Cache, ...]:
    """The caches of the first core as Linux lists them: one file a figure, sizes like "48K"."""
    found = []
    for entry in folder.glob("index*"):
        try:
            level, kind, size = ((entry / name).read_text().strip() for name in ("level", "type", "size"))
            number, unit = int(size.rstrip("KMG")), {"K": KIB, "M": MIB, "G": GIB}.get(size[-1], 1)
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            found.append(Cache(f"L{level}", number * unit))
    return tuple(sorted(found, key=lambda cache: cache.size))
