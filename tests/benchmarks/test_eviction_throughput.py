"""Throughput at equal memory at tiny sizes: equal bytes hold more sequences at once, and a goal can be missed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import eviction, eviction_throughput
from benchmarks.engine_cases import ModelShape, random_model
from benchmarks.eviction_throughput import (
    KEPT,
    Run,
    Throughput,
    blocks_beside_records,
    rows_of,
    run,
    size_for,
    throughput_rows,
)
from minikv.engine.ext.eviction import EvictionConfig

SHAPE = ModelShape("tiny", 1, 32, 48, 2, 1, 64, 64)
SIZE = Throughput(SHAPE, requests=7, prompt=64, new=40, fits=3, step_tokens=48, rounds=1, policies=("h2o",))


@pytest.mark.parametrize("size", [SIZE, eviction_throughput.ON_GPU, eviction_throughput.QUICK])
def test_a_quarter_of_the_longest_text_stays(size):
    budget = EvictionConfig("h2o", **size.params).tokens
    assert budget.capacity == int(KEPT * size.longest)
    assert all(len(request.prompt) + request.new == size.longest for request in size.load().requests)


def test_the_same_bytes_hold_more_texts_in_fewer_steps():
    model, load = random_model(SHAPE, torch.device("cpu"), torch.float32, SIZE.longest), SIZE.load()
    params = EvictionConfig("h2o", **SIZE.params)
    blocks = blocks_beside_records(model, SIZE, params)
    ours = run(model, SIZE, load, blocks, params)
    full = run(model, SIZE, load, SIZE.num_blocks, None)
    block = full.kv_bytes // SIZE.num_blocks
    assert full.record_bytes == 0 < ours.record_bytes
    assert full.kv_bytes - block < ours.kv_bytes + ours.record_bytes <= full.kv_bytes
    assert ours.at_once > full.at_once
    assert ours.steps < full.steps
    assert ours.resident < ours.length
    assert full.resident == full.length


def test_the_rows_are_told_without_a_goal_on_a_cpu():
    speed, at_once = throughput_rows(replace(SIZE, requests=5))
    assert speed.ours > 0 < speed.peer
    assert speed.holds
    assert speed.details["evicts: steps"] < speed.details["full: steps"]
    assert at_once.holds == (at_once.ours > at_once.peer)


def test_on_a_gpu_twice_is_the_goal():
    full = Run(100.0, 4, 50, 0, 90.0, 90.0, 1000, 0)
    for speed, holds in ((200.0, True), (199.0, False)):
        rows = [*rows_of("it", replace(full, tokens_per_second=speed), full, on_gpu=True)]
        assert [row.holds for row in rows] == [holds, False], "as many at once are not more"


def test_the_size_follows_the_gpu_and_it_is_a_section(monkeypatch):
    assert size_for(quick=True) is eviction_throughput.QUICK
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    each = eviction_throughput.ON_GPU.longest * eviction_throughput.ON_GPU.shape.token_bytes // 2
    for free, fits in ((10 * each, 5), (10**15, 128), (0, 2)):
        memory = type("Memory", (), {"free": free})
        monkeypatch.setattr(eviction_throughput.MemoryStats, "read", lambda device, memory=memory: memory)
        size = size_for(quick=False)
        assert (size.fits, size.requests) == (fits, 4 * fits)
    assert "throughput" in eviction.SECTIONS
