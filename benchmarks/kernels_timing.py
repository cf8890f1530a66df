"""How the kernels' benchmark measures: in turn, with cold caches, in a CUDA graph; and the rows that it tells."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import Row

COLD_BYTES = 256 * 10**6  # several times the second-level cache of any GPU: 50 MiB on an H200
LEAST_ROUNDS, SECONDS_EACH = 3, 2.0
Call = Callable[[], Any]


@dataclass(frozen=True)
class Detailed(Row):
    """A row with more to tell: ``details`` are printed above it and stand in the JSON."""

    details: dict[str, Any] = field(default_factory=dict)


def tell(details: Mapping[str, Any]) -> None:
    """One line of columns: "us 12.3 · GB/s 3900 · …"."""
    parts = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in details.items()
    )
    print("  " + " · ".join(parts), flush=True)


class Stopwatch:
    """Times calls on ``device``.

    On a GPU a run is one replay of a CUDA graph that holds all its calls, started while the GPU still reads something
    else, so that no launch is waited for and nothing is left in the second-level cache; the figure is the median. On a
    CPU the figure is the best: whatever else runs on the machine can only add to it.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._typical = statistics.median if self.on_gpu else min
        self._cold = torch.zeros(2 * COLD_BYTES // 4 if self.on_gpu else 1, device=device)

    def sets(self, num_bytes: int) -> int:
        """How many inputs to take in turn, so that none is still in a cache when it comes round again."""
        return min(64, -(-COLD_BYTES // max(1, num_bytes))) if self.on_gpu else 1

    def first(self, call: Call) -> tuple[Any, float]:
        """What ``call`` gives, and its seconds: before anything else has run it, compiling included."""
        start = time.perf_counter()
        result = call()
        if self.on_gpu:
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    def run(self, calls: Sequence[Call]) -> Callable[[], float]:
        """What makes one run over ``calls`` and returns the seconds of one call."""
        if not self.on_gpu:
            return lambda: self._on_cpu(calls)
        replay = captured(calls)
        return lambda: self._on_gpu(replay, len(calls))

    def compare(self, runs: Mapping[str, Sequence[Call]], rounds: int) -> dict[str, float]:
        """Seconds of one call of each, measured in turn, a different one first each round.

        A run that has taken ``SECONDS_EACH`` sits out the other rounds.
        """
        ready = {name: self.run(calls) for name, calls in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        spent = dict.fromkeys(runs, 0.0)
        for run in ready.values():
            run()
        names = list(runs)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if len(times[name]) < LEAST_ROUNDS or spent[name] < SECONDS_EACH:
                    start = time.perf_counter()
                    times[name].append(ready[name]())
                    spent[name] += time.perf_counter() - start
        return {name: self._typical(of) for name, of in times.items()}

    def _on_cpu(self, calls: Sequence[Call]) -> float:
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)

    def _on_gpu(self, replay: Call, calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cold.amax()  # read, not written: what is written would have to be put back during the run
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls


def captured(calls: Sequence[Call]) -> Call:
    """A replay of one CUDA graph with all ``calls``. They are run before, to compile and to allocate."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in [calls[0], *calls]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


class DisagreementError(Exception):
    """A result that is not the expected one: a benchmark of wrong results would say nothing."""


def agree(what: str, result: Tensor, expected: Tensor) -> None:
    """Raise ``DisagreementError`` where they differ by more than their dtype's rounding makes of it."""
    largest = expected.float().abs().amax().clamp(min=1e-6)
    error = ((result.float() - expected.float()).abs().amax() / largest).item()
    allowed = {torch.float32: 1e-3, torch.float16: 1e-2}.get(result.dtype, 4e-2)
    if not error <= allowed:  # NaN is not
        raise DisagreementError(f"{what}: off by {error:.1e} of the largest, more than {allowed:.0e}")


def copy_rate(watch: Stopwatch, num_bytes: int = 2 * 10**9) -> float:
    """Bytes a second, read and written, of torch's copy of half of ``num_bytes`` on the device."""
    source = torch.zeros(num_bytes // 8, device=watch.device)
    target = torch.empty_like(source)
    seconds = watch.compare({"copy": [lambda: target.copy_(source)]}, 20)["copy"]
    return 2 * source.nbytes / seconds


def matmul_rate(watch: Stopwatch, size: int = 8192) -> float:
    """FLOPs a second of a large square bfloat16 product."""
    a, b = (torch.randn(size, size, device=watch.device).to(torch.bfloat16) for _ in range(2))
    seconds = watch.compare({"matmul": [lambda: a @ b]}, 20)["matmul"]
    return 2 * size**3 / seconds
