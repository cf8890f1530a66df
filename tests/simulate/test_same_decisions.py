"""The simulator decides as the engine does: the same events in the same order, the clock aside."""

import dataclasses
import random

import pytest

from minikv import LLM
from minikv.blocks import BlockManager, HostBlocks
from minikv.engine import Event, EventLog, SamplingParams
from minikv.models import load
from minikv.plan.preemption import TransferRates
from minikv.simulate import Assumptions, Replica, StepTime, Trace, TraceRequest
from minikv.simulate.arrival import Arrival

BLOCK = 4
SIZES = {"max_num_seqs": 6, "max_batched_tokens": 32}
RATES = {"swap": TransferRates(1e9, 1e9, 1e3), "recompute": TransferRates(1e3, 1e3, 1e9)}


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


def requests(draw, count=18):
    """(step, prompt tokens, output tokens, hash ids): prompts of shared beginnings, crowded enough to preempt."""
    stems = [[draw.randrange(1, 30) for _ in range(draw.randrange(1, 5))] for _ in range(3)]
    asked = []
    for number in range(count):
        ids = [*draw.choice(stems), *range(40 + number, 40 + number + draw.randrange(1, 3))]
        prompt = len(ids) * BLOCK - draw.randrange(BLOCK)
        asked.append((draw.randrange(40), prompt, draw.randrange(1, 25), tuple(ids)))
    return sorted(asked)


def trace_of(asked):
    return Trace("asked", tuple(TraceRequest(0.0, *each[1:]) for each in asked), hash_block=BLOCK)


def real_events(model, trace, steps, num_blocks, **host):
    """An LLM gets each request in front of the step of its number."""
    log = EventLog()
    with LLM(
        model, num_blocks=num_blocks, block_size=BLOCK, seed=0, emit=log, enforce_eager=True, **SIZES, **host
    ) as llm:
        sizes = llm.scheduler.extensions[-1].block_bytes
        for index, request in enumerate(trace.requests):
            while llm.has_work and llm._engine.steps < steps[index]:
                llm.step()
            params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
            llm.add_request(trace.prompt(index).tolist(), params, request_id=index)
        while llm.has_work:
            llm.step()
        host_blocks = llm.manager.host_pools[0].num_blocks if llm.manager.host_pools else 0
    return log.events, tuple(sizes), host_blocks


def simulated_events(trace, steps, num_blocks, block_bytes, host_blocks=0, rates=None):
    log = EventLog()
    replica = Replica(
        StepTime.of_model("Llama-3.1-8B", "H200", assumptions=Assumptions()),
        BlockManager(num_blocks, BLOCK, host_blocks=HostBlocks(host_blocks, BLOCK)),
        block_bytes,
        rates=rates,
        emit=log,
        **SIZES,
    )
    for index in range(len(trace)):
        while replica.scheduler.has_work and replica.totals.steps < steps[index]:
            replica.step()
        replica.enqueue(Arrival(trace, index, BLOCK))
    while replica.step():
        pass
    return log.events


def without_clock(event):
    told = dataclasses.asdict(event)
    del told["time"]
    told.pop("seconds", None)
    return told


@pytest.mark.parametrize(("seed", "how"), [(0, None), (1, None), (2, "swap"), (3, "recompute"), (4, "swap")])
def test_the_same_events_as_the_engine(model, seed, how):
    asked = requests(random.Random(seed))
    trace, steps = trace_of(asked), [each[0] for each in asked]
    host = {} if how is None else {"cpu_kv_bytes": 2**20, "swap_rates": RATES[how]}
    real, block_bytes, host_blocks = real_events(model, trace, steps, 24, **host)
    rates = None if how is None else RATES[how]
    simulated = simulated_events(trace, steps, 24, block_bytes, host_blocks, rates)
    groups = {event.kind for event in real if isinstance(event, Event)}
    assert {"arrive", "hit", "allocate", "evict", "preempt", "first", "free", "finish"} <= groups
    assert how != "swap" or {"swap_out", "swap_in"} <= groups, "nothing was swapped, so nothing is shown"
    assert list(map(without_clock, simulated)) == list(map(without_clock, real))
