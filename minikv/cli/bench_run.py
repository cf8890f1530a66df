"""Runs a load through an LLM and measures it, for ``minikv bench``."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from minikv.cli.answers import check_answers
from minikv.cli.bench_load import BenchRequest, Shape
from minikv.cli.engine_options import Engine
from minikv.engine import LLM, RequestOutput, SamplingParams
from minikv.engine.ext.events import AnyEvent, EventLog
from minikv.engine.serve.metrics import Metrics, summary
from minikv.engine.serve.progress import Progress
from minikv.models import Loaded

WARMUP_STEPS = 2  # a prefill and a decode


@dataclass(frozen=True)
class Result:
    """``metrics`` of the load; ``kv_bytes`` of the cache, and ``peak_kv_bytes`` of the most blocks in use.

    Latencies count from the moment at which a request is due. An engine that is busy with a step takes it in later.
    """

    model: Loaded
    device: str
    metrics: Metrics
    prompt_tokens: int
    kv_bytes: int
    peak_kv_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; bytes are integers, times seconds."""
        metrics = asdict(self.metrics)
        return vars(self) | {"model": self.model.name, "metrics": metrics}


def run(
    engine: Engine,
    shape: Shape,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Result:
    """Load the model, warm it up, send the load through it.

    A request that does not fit raises before the load begins, as in ``LLM``. Raises ``MiniKVError`` if requests fail
    while they run: their figures would mean nothing.
    """
    loaded, log = engine.load(), EventLog()
    with engine.start(loaded, log, clock) as llm:
        load = shape.requests(llm.vocabulary)
        _warm_up(llm, load)
        log.events.clear()
        due, outputs = _send(llm, load, clock, sleep)
        check_answers(outputs)
        metrics = summary([_since_due(event, due) for event in log.events])
        block_bytes = [group.block_bytes(llm.cache.block_size) for group in llm.cache.kv_cache_groups]
        peak = max(
            sum(count * size for count, size in zip(step.used, block_bytes, strict=True))
            for step in log.of("step")
        )
        tokens = sum(len(asked.prompt) for asked in load)
        return Result(loaded, str(llm.cache.device), metrics, tokens, llm.cache.nbytes, peak)


def _warm_up(llm: LLM, load: list[BenchRequest]) -> None:
    """Run the first steps of the longest request, with other tokens: libraries initialize, and the request fits."""
    longest = max(load, key=lambda asked: len(asked.prompt) + asked.output)
    tokens = np.random.default_rng([0, len(load)]).integers(llm.vocabulary, size=len(longest.prompt))
    name = llm.add_request(tokens.tolist(), _params(longest), pieces=False)
    for _ in range(WARMUP_STEPS):
        llm.step()
    llm.abort(name)
    while llm.has_work:
        llm.step()


def _send(
    llm: LLM, load: list[BenchRequest], clock: Callable[[], float], sleep: Callable[[float], object]
) -> tuple[dict[str | int | None, float], list[RequestOutput]]:
    """Add each request when it is due, or right after the step that runs then. Returns due times and outputs."""
    due: dict[str | int | None, float] = {}
    outputs: list[RequestOutput] = []
    left, began = deque(load), clock()
    with Progress(len(load)) as bar:
        while left or llm.has_work:
            while left and left[0].at <= clock() - began:
                asked = left.popleft()
                name = llm.add_request(list(asked.prompt), _params(asked), pieces=False)
                due[name] = began + asked.at
            if llm.has_work:
                out = llm.step()
                outputs += out.finished
                bar.update(len(outputs), len(out.tokens))
            else:
                sleep(max(0.0, left[0].at - (clock() - began)))
    return due, outputs


def _params(asked: BenchRequest) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=asked.output, ignore_eos=True)


def _since_due(event: AnyEvent, due: dict[str | int | None, float]) -> AnyEvent:
    return replace(event, time=due[event.request]) if event.kind == "arrive" else event
