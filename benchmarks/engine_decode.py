"""A decode step beside its floor: the weights and the cached keys and values, read once, at the measured bandwidth.

On a GPU with CUDA graphs and, to compare, without; on a CPU, which has none, as it is. Nothing but decodes runs: the
prompts are computed before, and no sequence ends.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.engine_cases import mixed
from benchmarks.kernels_timing import Detailed, tell
from minikv import LLM, SamplingParams
from minikv.engine.ext.graphs import DecodeGraphs
from minikv.memory.bandwidth import read_bandwidth
from minikv.plan.roofline import decode_floor

SHARE = 0.6  # of the floor, at the largest batch, on a GPU
BUDGET = 2048  # tokens of a step, while the prompts are computed
SETTLE = 5  # decode steps that do not count
WORKING_SET = {"cuda": 2**31, "cpu": 2**28}  # bytes: far beyond the caches


@dataclass(frozen=True)
class Decoding:
    """``steps`` decode steps of ``batch`` sequences, whose prompts have ``context`` tokens each."""

    batch: int
    context: int
    steps: int


@dataclass(frozen=True)
class Steps:
    """Seconds of each step and of its floor. ``num_bytes`` are read by the last, ``graphs`` are theirs (None: off)."""

    seconds: list[float]
    floors: list[float]
    num_bytes: int
    graphs: int | None

    @property
    def typical(self) -> float:
        return statistics.median(self.seconds)

    @property
    def floor(self) -> float:
        return statistics.median(self.floors)


def decode_rows(model: Any, name: str, vocabulary: int, cases: tuple[Decoding, ...]) -> Iterator[Detailed]:
    """A row a case: milliseconds of a step, and of its floor. The goal is for the last case, and for a GPU."""
    kind = model.device.type
    gb_s = read_bandwidth(WORKING_SET[kind], model.device).gb_s
    for case in cases:
        steps = decode_steps(model, vocabulary, case, gb_s)
        ms, floor = 1e3 * steps.typical, 1e3 * steps.floor
        details: dict[str, Any] = {
            "GB/s measured": gb_s,
            "GB/s of the step": steps.num_bytes / steps.typical / 1e9,
            "share of the floor": floor / ms,
            "graphs": "off: a CPU has none" if steps.graphs is None else f"{steps.graphs / 2**20:.0f} MiB",
            "steps": case.steps,
        }
        if kind == "cuda":
            eager = decode_steps(model, vocabulary, case, gb_s, enforce_eager=True)
            details |= {"ms without graphs": 1e3 * eager.typical}
        tell(details)
        claim = f"{name}: decode step, {case.batch} x {case.context} tokens"
        counts = kind == "cuda" and case is cases[-1]
        goal = f"at least {SHARE:.0%} of its floor" if counts else "measured, without a goal"
        yield Detailed(claim, ms, floor, "its floor", "ms", goal, not counts or floor >= SHARE * ms, details)


def decode_steps(
    model: Any, vocabulary: int, case: Decoding, gb_s: float, *, enforce_eager: bool = False
) -> Steps:
    """``case`` through an LLM. A step ends when its tokens are on the host: device and host count."""
    load = mixed(case.batch, case.context, case.context, vocabulary)
    prefills = -(-case.batch * case.context // BUDGET)
    # Whose prompt comes first decodes while the others' are computed
    new = prefills + SETTLE + case.steps + 2
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    blocks = case.batch * (-(-(case.context + new) // 16) + 1)
    weights = weight_bytes(model)
    seconds, floors, num_bytes = [], [], 0
    with LLM(
        model,
        num_blocks=blocks,
        max_num_seqs=case.batch,
        max_batched_tokens=max(BUDGET, case.batch),
        enforce_eager=enforce_eager,
    ) as llm:
        for request in load.requests:
            llm.add_request(list(request.prompt), params, pieces=False)
        while len(llm.step().tokens) < case.batch:
            pass
        for _ in range(SETTLE):
            llm.step()
        spec = llm.cache.spec
        for _ in range(case.steps):
            contexts = [len(llm.scheduler.sequence(name).tokens) for name in llm.scheduler.running]
            start = time.perf_counter()
            llm.step()
            seconds.append(time.perf_counter() - start)
            cached = sum(spec.bytes_read(context) for context in contexts)
            floors.append(decode_floor(weights, cached, gb_s))
            num_bytes = weights + cached
        graphs = llm.graphs
        held = graphs.memory.num_bytes if isinstance(graphs, DecodeGraphs) else None
    return Steps(seconds, floors, num_bytes, held)


def weight_bytes(model: Any) -> int:
    """What a decode reads of the model: all of it but the embedding, of which it takes a row a token."""
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    return sum(each.nbytes for each in model.parameters() if tied or each is not embedding)
