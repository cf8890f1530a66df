"""Throughput at equal memory: the full cache beside one that keeps a quarter of each text, in the same bytes.

    python -m benchmarks.eviction_throughput [--quick] [--json FILE]

Both LLMs have the same model, the same requests and the same bytes for K and V; what eviction remembers beside the
cache is taken from its blocks. Who holds less of each text serves more texts at once, in fewer steps. What the texts
say differs, and is no matter here: ``benchmarks.eviction`` asks for that. On a GPU the full cache decodes with CUDA
graphs, eviction without. On a CPU a step of more sequences takes longer, so there is no goal, and seconds are those of
one thread: what else runs on the machine takes other seconds.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.engine_cases import QWEN3_06B, SMALL, ModelShape, random_model
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, arguments, publish
from minikv import LLM, SamplingParams
from minikv.course.your_engine.ways import RaceLoad, RaceRequest
from minikv.engine import EventLog, EvictionConfig, summary
from minikv.memory import MemoryStats

NEEDS_GPU = True  # a part of python -m tools.gpu
KEPT, SINKS = 0.25, 4
BLOCK_SIZE, EVERY = 16, 16
GOAL_ON_GPU = 2.0  # times the full cache's tokens a second
MIB = 2**20


@dataclass(frozen=True)
class Throughput:
    """``requests`` of ``prompt`` tokens in and ``new`` out, on a pool with room for ``fits`` of them at their longest.

    ``step_tokens``: the most that a step computes. Of ``rounds``, each of a full cache and one that evicts, the best
    counts.
    """

    shape: ModelShape
    requests: int
    prompt: int
    new: int
    fits: int
    step_tokens: int
    rounds: int
    policies: tuple[str, ...] = ("streaming", "h2o")

    @property
    def longest(self) -> int:
        return self.prompt + self.new

    @property
    def num_blocks(self) -> int:
        return self.fits * -(-self.longest // BLOCK_SIZE)

    @property
    def params(self) -> dict[str, int]:
        """Of ``EvictionConfig``: ``KEPT`` of the longest text stays, a quarter of that the most recent tokens."""
        capacity = int(KEPT * self.longest)
        recent = capacity // 4
        counts = {"n_sink": SINKS, "n_recent": recent, "budget": capacity - recent - SINKS}
        return counts | {"evict_every": EVERY, "prefill_chunk": max(BLOCK_SIZE, capacity // 4)}

    def load(self) -> RaceLoad:
        draw = np.random.default_rng(0)
        prompts = draw.integers(1, self.shape.vocabulary, (self.requests, self.prompt)).tolist()
        name = f"{self.requests} of {self.prompt} tokens in, {self.new} out"
        return RaceLoad(name, tuple(RaceRequest(tuple(prompt), self.new) for prompt in prompts))


ON_GPU = Throughput(QWEN3_06B, 512, 1536, 1536, 128, 8192, 1)
ON_CPU = Throughput(SMALL, 32, 128, 128, 4, 256, 2)
QUICK = Throughput(replace(SMALL, name="2 layers x 512", layers=2), 6, 64, 64, 2, 96, 1, ("h2o",))


@dataclass(frozen=True)
class Run:
    """One run of a load. ``at_once``: the most sequences that held blocks in a step. ``length`` and ``resident``:
    tokens of a running sequence in the mean, and those of them that were held.
    """

    tokens_per_second: float
    at_once: int
    steps: int
    preemptions: int
    length: float
    resident: float
    kv_bytes: int
    record_bytes: int


def run(
    model: Any, size: Throughput, load: RaceLoad, num_blocks: int, eviction: EvictionConfig | None
) -> Run:
    """Every request of ``load``, from the moment when all are there to the last token."""
    log = EventLog()
    with LLM(
        model,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=size.requests,
        max_batched_tokens=max(size.step_tokens, size.requests),
        max_model_len=size.longest,
        eviction=eviction,
        emit=log,
    ) as llm:
        first = load.requests[0]
        few = SamplingParams(temperature=0, max_tokens=min(4, first.new))
        llm.generate([list(first.prompt)], few, progress=False)  # what is compiled or captured once is
        log.events.clear()
        prompts = [list(request.prompt) for request in load.requests]
        params = [SamplingParams(temperature=0, max_tokens=request.new) for request in load.requests]
        clock = time.perf_counter if model.device.type == "cuda" else time.thread_time
        began = clock()
        llm.generate(prompts, params, progress=False)
        seconds = clock() - began
        memory = llm.memory_report()
    metrics = summary(log.events)
    return Run(
        load.new_tokens / seconds,
        max(step.running for step in log.of("step")),
        metrics.steps,
        metrics.preemptions,
        metrics.length or 0.0,
        metrics.resident or 0.0,
        memory.kv_bytes,
        memory.record_bytes,
    )


def blocks_beside_records(model: Any, size: Throughput, eviction: EvictionConfig) -> int:
    """The blocks of a pool that has the bytes of ``size.num_blocks``, less those of eviction's records."""
    options = {"num_blocks": size.num_blocks, "block_size": BLOCK_SIZE, "max_model_len": size.longest}
    tokens = max(size.step_tokens, size.requests)
    with LLM(
        model, max_num_seqs=size.requests, max_batched_tokens=tokens, eviction=eviction, **options
    ) as llm:
        memory = llm.memory_report()
        block_bytes = memory.kv_bytes // size.num_blocks
    return size.num_blocks - -(-memory.record_bytes // block_bytes)


def best(runs: list[Run]) -> Run:
    return max(runs, key=lambda each: each.tokens_per_second)


def throughput_rows(size: Throughput) -> Iterator[Row]:
    """For each policy tokens a second beside the full cache, and how many sequences ran at once."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model(size.shape, device, dtype, size.longest)
    load = size.load()
    for policy in size.policies:
        eviction = EvictionConfig(policy, **size.params)
        num_blocks = blocks_beside_records(model, size, eviction)
        pairs = [
            (run(model, size, load, num_blocks, eviction), run(model, size, load, size.num_blocks, None))
            for _ in range(size.rounds)
        ]
        ours, full = (best(list(runs)) for runs in zip(*pairs, strict=True))
        yield from rows_of(
            f"{size.shape.name}, {load.name}, {policy}", ours, full, on_gpu=device.type == "cuda"
        )


def rows_of(name: str, ours: Run, full: Run, *, on_gpu: bool) -> Iterator[Row]:
    """What the two runs say."""
    details: dict[str, Any] = {}
    for who, each in (("evicts", ours), ("full", full)):
        details |= {f"{who}: steps": each.steps, f"{who}: preemptions": each.preemptions}
        details |= {f"{who}: tokens of a text": each.length, f"{who}: held": each.resident}
        details |= {f"{who}: MiB": (each.kv_bytes + each.record_bytes) / MIB}
    details["MiB of records"] = ours.record_bytes / MIB
    tell(details)
    peer, goal, holds = "full cache, the same bytes", "told, no goal", True
    if on_gpu:
        goal = f"at least {GOAL_ON_GPU:g}x"
        holds = ours.tokens_per_second >= GOAL_ON_GPU * full.tokens_per_second
    speeds = ours.tokens_per_second, full.tokens_per_second
    yield Detailed(f"{name}: generated", *speeds, peer, "tokens/s", goal, holds, details)
    yield Row(
        f"{name}: at once", ours.at_once, full.at_once, peer, "sequences", "more", ours.at_once > full.at_once
    )


def size_for(quick: bool) -> Throughput:
    """The sizes for this machine: on a GPU as many texts as half of its free memory holds, at most those of
    ``ON_GPU``.
    """
    if not torch.cuda.is_available():
        return QUICK if quick else ON_CPU
    each = ON_GPU.longest * ON_GPU.shape.token_bytes // 2  # bfloat16
    fits = max(2, min(ON_GPU.fits, MemoryStats.read("cuda").free // (2 * each)))
    if quick:
        return replace(ON_GPU, fits=min(fits, 16), requests=4 * min(fits, 16), policies=QUICK.policies)
    return replace(ON_GPU, fits=fits, requests=4 * fits)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(throughput_rows(size_for(options.quick)), options.json, on="cuda")


if __name__ == "__main__":
    main()
