"""What a cache costs per token that grows by torch.cat, beside one that was allocated once.

    python -m benchmarks.malloc [--quick] [--json FILE]

One layer's K of a batch of 4, 8 heads of 128 elements, float32 on a CPU and float16 on a GPU, at several lengths.
A slot is memory that was there before; "the copy alone" joins into such memory. A time is the median over the steps
of one generation, a peak is counted by ``measure_peak``. The last rows: ``torch.empty`` beside ``torch.zeros``, and
the first write to memory beside the second one; on a CPU the pages come with the first touch, on a GPU with the
allocation. (On a CPU, KINETO_LOG_LEVEL=99 in the environment keeps torch's profiler quiet.)
"""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain

import torch

from benchmarks.report import Row, arguments, publish
from minikv.memory import measure_peak
from minikv.units import MIB

NEEDS_GPU = True  # a part of python -m tools.gpu
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32
BATCH, HEADS, WIDTH = 4, 8, 128
TOKEN_BYTES = BATCH * HEADS * WIDTH * DTYPE.itemsize
LONG = 1024  # tokens from which the copy must be seen in the time


def timed(work: Callable[[], object]) -> float:
    """Microseconds of one call, the GPU's work included."""
    start = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start)


def new(tokens: int) -> torch.Tensor:
    return torch.zeros(BATCH, HEADS, tokens, WIDTH, dtype=DTYPE, device=DEVICE)


def joined_steps(length: int, steps: int) -> list[float]:
    """Microseconds of each of ``steps`` tokens, joined to a cache of ``length``."""
    held, one = new(length), new(1)

    def join() -> None:
        nonlocal held
        held = torch.cat([held, one], dim=2)

    return [timed(join) for _ in range(steps)]


def copied_steps(length: int, steps: int) -> list[float]:
    """The same join into memory that is there already: the copy without the malloc."""
    held, one, room = new(length), new(1), new(length + 1)
    return [timed(lambda: torch.cat([held, one], dim=2, out=room)) for _ in range(steps)]


def slot_steps(length: int, steps: int) -> list[float]:
    """The same, written to the next free slot."""
    room, one = new(length + steps), new(1)

    def write(at: int) -> None:
        room[:, :, at : at + 1] = one

    return [timed(lambda at=length + step: write(at)) for step in range(steps)]  # type: ignore[misc]


def growth_rows(length: int, steps: int, times: int) -> list[Row]:
    slots = statistics.median(statistics.median(slot_steps(length, steps)) for _ in range(times))
    joined = statistics.median(statistics.median(joined_steps(length, steps)) for _ in range(times))
    copied = statistics.median(statistics.median(copied_steps(length, steps)) for _ in range(times))
    slot_peak = measure_peak(lambda: slot_steps(length, 4), DEVICE).extra
    joined_peak = measure_peak(lambda: joined_steps(length, 4), DEVICE).extra
    # A GPU's short copy costs its launch, and a slot's write costs one too
    share = 1.2 if length < LONG else 0.5
    goal, peak_goal = f"at most {share:g} of torch.cat's", "at most 0.6 of torch.cat's"
    return [
        Row(
            f"a token to its slot at {length:,} tokens",
            slots,
            joined,
            "torch.cat",
            "microseconds",
            goal,
            slots <= share * joined,
        ),
        Row(
            f"the copy alone at {length:,} tokens, by out=",
            copied,
            joined,
            "torch.cat: the copy and the malloc",
            "microseconds",
            "at most 1.2 of torch.cat's",
            copied <= 1.2 * joined,
        ),
        Row(
            f"peak at {length:,} tokens",
            slot_peak / MIB,
            joined_peak / MIB,
            "torch.cat: old and new at once",
            "MiB",
            peak_goal,
            slot_peak <= 0.6 * joined_peak,
        ),
    ]


def touch_rows(mib: int, times: int) -> Iterator[Row]:
    """``torch.empty`` and ``torch.zeros`` of ``mib`` MiB, and writing to it for the first and the second time."""
    torch.zeros(mib * MIB, dtype=torch.uint8, device=DEVICE)  # the device wakes up
    empty = statistics.median(fresh(torch.empty, mib) for _ in range(times))
    zeros = statistics.median(fresh(torch.zeros, mib) for _ in range(times))
    yield Row(f"torch.empty of {mib} MiB", empty, zeros, "torch.zeros", "microseconds", "less", empty < zeros)
    if DEVICE == "cpu":  # a GPU has no first touch
        pairs = [two_writes(mib) for _ in range(times)]
        first, second = (statistics.median(pair[place] for pair in pairs) for place in (0, 1))
        claim = f"writing {mib} MiB for the second time"
        yield Row(claim, second, first, "for the first time", "microseconds", "less", second < first)


def fresh(make: Callable[..., torch.Tensor], mib: int) -> float:
    """Microseconds of making a tensor whose memory has to come from the driver."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return timed(lambda: make(mib * MIB, dtype=torch.uint8, device=DEVICE))


def two_writes(mib: int) -> tuple[float, float]:
    room = torch.empty(mib * MIB, dtype=torch.uint8, device=DEVICE)
    return timed(lambda: room.fill_(1)), timed(lambda: room.fill_(2))


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    lengths, steps, times = ((256, 1024), 16, 3) if options.quick else ((256, 1024, 4096, 16_384), 32, 5)
    growth = (row for length in lengths for row in growth_rows(length, steps, times))
    publish(chain(growth, touch_rows(64 if options.quick else 256, times)), options.json, on=DEVICE)


if __name__ == "__main__":
    main()
