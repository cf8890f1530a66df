"""What the host does in a step while 64 sequences decode: scheduling, the batch's tensors, taking the new tokens in."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.engine_cases import mixed
from benchmarks.kernels_timing import Detailed, tell
from minikv import LLM, SamplingParams
from minikv.engine.ext.graphs import DecodeGraphs

SEQUENCES, PROMPT = 64, 64
SHARE, MICROSECONDS = 0.05, 300.0
SETTLE = 4  # steps that do not count: the prefill, and the first decodes


def host_rows(model: Any, vocabulary: int, steps: int) -> Iterator[Detailed]:
    """Two rows: the host's microseconds a step against the limit, and against the whole step."""
    parts, whole = host_times(model, vocabulary, steps)
    us = {name: 1e6 * statistics.median(times) for name, times in parts.items()}
    host = 1e6 * statistics.median(map(sum, zip(*parts.values(), strict=True)))
    step = 1e6 * statistics.median(whole)
    details = {f"{name} us": value for name, value in us.items()} | {"step us": step, "steps": steps}
    tell(details)
    name = f"host work of a step, {SEQUENCES} sequences"
    goal = f"under {SHARE:.0%} of a step"
    yield Detailed(name, host, step, "the whole step", "us", goal, host < SHARE * step, details)
    goal = f"under {MICROSECONDS:g} us"
    yield Detailed(name, host, MICROSECONDS, "the limit", "us", goal, host < MICROSECONDS, details)


def host_times(model: Any, vocabulary: int, steps: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each part of the host's work, and of the whole step, for ``steps`` steps."""
    load = mixed(SEQUENCES, PROMPT, PROMPT, vocabulary)
    params = SamplingParams(temperature=0, max_tokens=SETTLE + steps + 1, ignore_eos=True)
    blocks = SEQUENCES * (-(-(PROMPT + params.max_tokens) // 16) + 1)
    now = defaultdict[str, float](float)
    steps_done, whole = [], []
    budget = SEQUENCES * PROMPT
    with LLM(model, num_blocks=blocks, max_num_seqs=SEQUENCES, max_batched_tokens=budget) as llm:
        llm.overlaps = False  # each step by itself: what is prepared meanwhile costs a GPU nothing
        watch = partial(_watch, now)
        watch("schedule", llm.scheduler, "schedule")
        watch("batch", llm.runner, "batch")
        if isinstance(llm.graphs, DecodeGraphs):  # of a step that is replayed
            watch("batch", llm.graphs, "takes")
            watch("batch", llm.graphs.buffers, "fill")
        watch("finish", llm.scheduler, "finish")
        for request in load.requests:
            llm.add_request(list(request.prompt), params)
        for _ in range(SETTLE + steps):
            now.clear()
            start = time.perf_counter()
            llm.step()
            whole.append(time.perf_counter() - start)
            steps_done.append(dict(now))
    parts = {name: [each[name] for each in steps_done[SETTLE:]] for name in ("schedule", "batch", "finish")}
    return parts, whole[SETTLE:]


def _watch(now: dict[str, float], part: str, owner: Any, method: str) -> None:
    """Add the seconds of a method of ``owner`` to those of ``part``."""
    call = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = call(*args, **kwargs)
        now[part] += time.perf_counter() - start
        return result

    setattr(owner, method, timed)
