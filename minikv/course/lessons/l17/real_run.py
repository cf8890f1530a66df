"""Lesson 17: requests that the tiny model really serves on this machine, and the step times that it measures."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minikv import LLM, SamplingParams
from minikv.engine import EventLog, summary
from minikv.engine.ext.events import AnyEvent
from minikv.engine.serve.metrics import Metrics
from minikv.memory import matmul_rate, read_bandwidth
from minikv.models import load
from minikv.plan.roofline import Roof
from minikv.simulate import Fleet, StepTime, Trace, TraceRequest

SETTINGS: dict[str, Any] = {"num_blocks": 600, "max_num_seqs": 16, "max_batched_tokens": 512}


@dataclass(frozen=True)
class RealRun:
    """``trace``: requests that came at once; ``summary``: of the run that served them.

    ``events``: of other runs, with as many tokens in their steps. ``guess``: the step times before any was measured,
    by the roofline of this machine.
    """

    trace: Trace
    summary: Metrics
    events: list[AnyEvent]
    guess: StepTime

    def fleet(self, step_time: StepTime) -> Fleet:
        """Return the engine of the run on paper, with this ``step_time``."""
        return Fleet(step_time, block_size=16, **SETTINGS)


def run_here(num_requests: int = 24, seed: int = 17) -> RealRun:
    """Serve ``num_requests`` with tiny-gqa, three times, and some steps alone.

    On the GPU, or on one thread where there is none.
    """
    torch.set_num_threads(1)
    model, draw = load("tiny-gqa"), random.Random(seed)
    lengths = [(draw.randint(40, 400), draw.randint(8, 40)) for _ in range(num_requests)]

    def run(asked: Sequence[tuple[int, int]]) -> list[AnyEvent]:
        prompts = [[draw.randrange(5, 150) for _ in range(prompt)] for prompt, _ in asked]
        params = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True) for _, new in asked]
        log = EventLog()
        with LLM(model, emit=log, **SETTINGS) as llm:
            llm.overlaps = False  # each step is timed alone
            llm.generate(prompts, params)
        return list(log.events)

    run(lengths[:4])  # the first run of a process is slow, and says nothing
    # The fastest is measured and the second is compared: the slowest was disturbed by something.
    first, second, _ = sorted((run(lengths) for _ in range(3)), key=lambda events: summary(events).seconds)
    alone = [event for count in (32, 128, 512) for event in run([(count, 16)])]
    device, dtype = model.model.device, model.model.dtype
    # 256 MiB, since no cache of a GPU holds as much.
    roof = Roof("this machine", read_bandwidth(2**28, device).gb_s, matmul_rate(device, dtype=dtype).tflops)
    guess = StepTime.of_model(model.model.config.to_dict(), roof)
    trace = Trace("at once", tuple(TraceRequest(0.0, prompt, new) for prompt, new in lengths))
    return RealRun(trace, summary(second), alone + first, guess)
