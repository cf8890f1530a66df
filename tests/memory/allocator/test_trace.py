"""Replaying a trace as plain data, and what a bad one is told."""

import json

import pytest

from minikv.errors import ArgumentError
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.trace import replay
from minikv.units import MIB

TRACE = [
    {"op": "malloc", "id": "weights", "size": 30 * MIB},
    {"op": "malloc", "id": 1, "size": 1000, "stream": 3},
    {"op": "record_stream", "id": 1, "stream": 4},
    {"op": "free", "id": 1},
    {"op": "synchronize"},
    {"op": "free", "id": "weights"},
    {"op": "empty_cache"},
    {"op": "reset_peak_stats"},
    {"op": "reset_accumulated_stats"},
]


def test_a_trace_survives_json_and_says_what_each_operation_did():
    steps = replay(json.loads(json.dumps(TRACE)))
    assert [step.op for step in steps] == [entry["op"] for entry in TRACE]
    assert [step.usage.allocated for step in steps] == [30 * MIB] + [30 * MIB + 1024] * 2 + [30 * MIB] * 2 + [
        0
    ] * 4
    assert [step.usage.reserved for step in steps] == [30 * MIB] + [32 * MIB] * 5 + [0] * 3
    assert steps[3].usage.active == 30 * MIB + 1024
    assert steps[0].address is not None
    assert all(step.out_of_memory is None for step in steps)


def test_a_replay_equals_the_same_calls():
    model = CachingAllocator()
    steps = replay(TRACE[:2], model)
    assert model.usage() == steps[-1].usage
    again = CachingAllocator()
    again.malloc(30 * MIB)
    again.malloc(1000, 3)
    assert again.memory_stats() == model.memory_stats()
    assert again.segments() == model.segments()


def test_out_of_memory_is_recorded_and_the_trace_goes_on():
    trace = [
        {"op": "malloc", "id": 1, "size": 30 * MIB},
        {"op": "malloc", "id": 2, "size": 30 * MIB},
        {"op": "record_stream", "id": 2, "stream": 1},
        {"op": "free", "id": 2},
        {"op": "free", "id": 1},
        {"op": "malloc", "id": 2, "size": 40 * MIB},
    ]
    steps = replay(trace, CachingAllocator(50 * MIB))
    assert isinstance(steps[1].out_of_memory, DeviceOutOfMemoryError)
    assert steps[1].address is None
    assert steps[1].usage.num_ooms == 1
    assert steps[-1].usage.reserved == 40 * MIB


def test_recorded_addresses_are_used_and_compared():
    at = 0x7F0000000000
    trace = [{"op": "malloc", "id": n, "size": 512, "address": at + 512 * n} for n in (0, 1)]
    assert [step.address for step in replay(trace)] == [at, at + 512]
    trace[1]["address"] += 512
    with pytest.raises(ArgumentError, match="0x7f0000000400"):
        replay(trace)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (3, "dict|op"),
        ({}, "malloc"),
        ({"op": "calloc"}, "calloc"),
        ({"op": ["free"]}, "list"),
        ({"op": "malloc", "id": 9}, "fields"),
        ({"op": "free", "id": 9, "size": 3}, "fields"),
        ({"op": "malloc", "id": 9, "size": 0}, "size"),
        ({"op": "malloc", "id": 9, "size": True}, "size"),
        ({"op": "malloc", "id": 9, "size": 1.0}, "size"),
        ({"op": "malloc", "id": 9, "size": 2**63}, "size"),
        ({"op": "malloc", "id": 9, "size": 1, "stream": -1}, "stream"),
        ({"op": "malloc", "id": 9, "size": 1, "address": 0}, "address"),
        ({"op": "malloc", "id": None, "size": 1}, "id"),
        ({"op": "malloc", "id": True, "size": 1}, "id"),
        ({"op": "malloc", "id": [1], "size": 1}, "id"),
        ({"op": "malloc", "id": 0, "size": 1}, "still in use"),
        ({"op": "free", "id": 9}, "id 9"),
        ({"op": "record_stream", "id": 9, "stream": 1}, "id 9"),
        ({"op": "synchronize", "stream": "x"}, "stream"),
        ({"op": "empty_cache", 3: 4}, "fields"),
        ({"op": "empty_cache", 10**5000: 4}, "fields"),
        ({"op": "malloc", "id": 9, "size": 10**5000}, "size"),
        ({"op": "malloc", "id": 10**5000, "size": 1}, "id"),
        ({"op": "free", "id": -(10**5000)}, "id"),
    ],
)
def test_a_bad_trace_is_refused_before_it_runs(entry, found):
    model = CachingAllocator()
    with pytest.raises(ArgumentError, match=found) as raised:
        replay([{"op": "malloc", "id": 0, "size": 512}, entry], model)
    assert raised.value.values["place"] == 1
    assert model.segments() == ()


@pytest.mark.parametrize("trace", [None, "malloc", {"op": "malloc"}, 3])
def test_a_trace_is_a_list(trace):
    with pytest.raises(ArgumentError):
        replay(trace)
