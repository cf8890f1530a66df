"""Where a decode step's time goes on a CPU: microseconds of each part, of 64 sequences and of 8.

    python -m benchmarks.step_parts [--quick] [--json FILE]

One thread's CPU time, so that other work on the machine counts little. A part has its own time, without that of the
parts that it calls; together they are the step as the model's own code runs it. Each figure is the median of the steps.
The watch itself costs about half a microsecond a call, which stands in the calling part: "the rest of the forward" has
most calls. The last row is the same step replayed (``minikv.engine.ext.recorded``), without any watch inside.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.engine_cases import SMALL, ModelShape, mixed, random_model
from benchmarks.report import Row, arguments, publish
from minikv import LLM, SamplingParams

PROMPT, SETTLE = 100, 6
FEW, MANY = 8, 64
WHOLE = "the rest of the engine"
WATCHED, FEWER = "by the model's own code", "less"
PARTS = {
    "products of the weights": ("minikv.models.cpu_modules:_product", "minikv.models.cpu_modules:_gated"),
    "attention over the pages": ("minikv.kernels.cpu:paged_decode",),
    "norms": ("minikv.models.cpu_modules:_normed",),
    "K and V stored": ("minikv.models.hf_cache:store_kv",),
    "rotary embedding": ("transformers.models.qwen3.modeling_qwen3:apply_rotary_pos_emb",),
    "the rest of the forward": ("minikv.models.adapter:Adapter.forward",),
    "tokens chosen": ("minikv.engine.core.runner:draw",),
    "schedule, batch, finish": (
        "minikv.engine.core.scheduler:Scheduler.schedule",
        "minikv.engine.core.runner:Runner.batch",
        "minikv.engine.core.scheduler:Scheduler.finish",
    ),
    WHOLE: ("minikv.engine.llm:LLM.step",),
}


class Watch:
    """Adds up each part's own seconds. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.thread_time):
        self.clock, self.seconds = clock, defaultdict[str, float](float)
        self._inner: list[
            float
        ] = []  # of each call that is under way, the seconds of the parts that it called

    def of(self, part: str, call: Callable) -> Callable:
        """``call``, timed as a piece of ``part``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self.clock()
            self._inner.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                spent = self.clock() - began
                self.seconds[part] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        return timed


def measure(shape: ModelShape, sequences: int, steps: int) -> dict[str, float]:
    """Seconds of each part in a decode step of ``sequences``, as ``PARTS`` names them."""
    watch, found = Watch(), defaultdict[str, list[float]](list)
    with ExitStack() as stack:
        for part, names in PARTS.items():
            for name in names:
                module, _, place = name.partition(":")
                target = watch.of(part, resolve_name(name))
                stack.enter_context(patch(f"{module}.{place}", target))
        for step in decodes(shape, sequences, steps, enforce_eager=True):
            watch.seconds.clear()
            step()
            for part, seconds in watch.seconds.items():
                found[part].append(seconds)
    return {part: statistics.median(found[part]) for part in PARTS}


def replayed(shape: ModelShape, sequences: int, steps: int) -> float:
    """Seconds of the whole step, replayed."""
    found = []
    for step in decodes(shape, sequences, steps):
        began = time.thread_time()
        step()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def decodes(shape: ModelShape, sequences: int, steps: int, **options: Any) -> Iterator[Callable[[], Any]]:
    """Yield the engine's step, ``steps`` times, while ``sequences`` decode; ``options`` are those of ``LLM``."""
    model = random_model(shape, torch.device("cpu"), torch.float32)
    load = mixed(sequences, PROMPT, PROMPT, shape.vocabulary)
    params = SamplingParams(temperature=0, max_tokens=SETTLE + steps + 1, ignore_eos=True)
    blocks = sequences * (-(-(PROMPT + params.max_tokens) // 16) + 1)
    budget = sequences * PROMPT
    with LLM(model, num_blocks=blocks, max_num_seqs=sequences, max_batched_tokens=budget, **options) as llm:
        llm.overlaps = False  # each step by itself
        for request in load.requests:
            llm.add_request(list(request.prompt), params)
        for _ in range(SETTLE):
            llm.step()
        for _ in range(steps):
            yield llm.step


def rows(steps: int) -> Iterator[Row]:
    for sequences in (MANY, FEW):
        seconds = measure(SMALL, sequences, steps)
        whole = 1e6 * sum(seconds.values())
        for part, spent in seconds.items():
            claim = f"{sequences} sequences: {part}"
            yield Row(claim, 1e6 * spent, whole, "the whole step", "us", "told, no goal", True)
        again = 1e6 * replayed(SMALL, sequences, steps)
        yield Row(
            f"{sequences} sequences: the whole step, replayed",
            again,
            whole,
            WATCHED,
            "us",
            FEWER,
            again < whole,
        )


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    publish(rows(10 if options.quick else 60), options.json)


if __name__ == "__main__":
    main()
