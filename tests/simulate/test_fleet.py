"""A simulation serves every token once, gives every block back, and says beforehand what could never run."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from minikv.engine import EventLog, StepEvent, summary
from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError, RequestTooLargeError
from minikv.plan.budget import plan_memory
from minikv.simulate import (
    ROUTERS,
    Assumptions,
    Fleet,
    Trace,
    TraceRequest,
    read_mooncake,
    simulate,
    write_mooncake,
)
from minikv.simulate.arrival import Arrival
from minikv.units import GIB
from tests.simulate.fleets import clock, poisson, same, sessions, small_fleet

TAKES = ("allocate", "hit", "host_hit", "swap_in")


def listened(trace, fleet):
    logs = [EventLog() for _ in range(fleet.replicas)]
    return simulate(trace, fleet, emit=lambda number, event: logs[number](event)), logs


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("host_blocks", [0, 60])
def test_every_token_is_served_once_and_no_block_is_lost(router, host_blocks):
    trace = sessions(1, count=80)
    fleet = small_fleet(30, replicas=3, router=router, host_blocks=host_blocks)
    outcome, logs = listened(trace, fleet)
    ended = {event.request: event.tokens for log in logs for event in log.of("finish")}
    assert ended == {index: request.output_tokens for index, request in enumerate(trace.requests)}
    for number, log in enumerate(logs):
        here = set(np.flatnonzero(outcome.replica == number).tolist())
        assert {event.request for event in log.events if event.kind == "arrive"} == here
        taken = sum(sum(event.blocks) for event in log.events if event.kind in TAKES)
        assert taken >= sum(sum(event.blocks) for event in log.of("free"))
        assert log.of("step")[-1].used[0] <= 30
    assert (outcome.arrival <= outcome.admitted).all()
    assert (outcome.admitted < outcome.first_token).all()
    assert (outcome.first_token <= outcome.finish).all()
    assert (
        outcome.finish[outcome.output_tokens == 1] == outcome.first_token[outcome.output_tokens == 1]
    ).all()
    assert (outcome.cached_tokens + outcome.host_tokens < outcome.prompt_tokens).all()


def test_what_is_computed_is_what_was_asked_less_what_was_found():
    trace = sessions(2)
    outcome = simulate(trace, small_fleet(2000))
    (totals,) = outcome.replicas
    found = int(outcome.cached_tokens.sum())
    assert found > 0
    assert totals.preemptions == 0
    asked = trace.prompt_tokens - found
    assert totals.prefill_tokens == asked
    # The prefill brings the first token, and nobody computes the last.
    assert totals.decode_tokens == trace.output_tokens - len(trace)


@pytest.mark.parametrize("host_blocks", [0, 60])
def test_all_blocks_are_free_in_the_end_and_the_load_is_none(host_blocks):
    fleet = small_fleet(30, host_blocks=host_blocks)
    replica, trace = fleet.replica(), sessions(3)
    for index in range(len(trace)):
        arrival = Arrival(trace, index, fleet.block_size)
        replica.advance(arrival.time)
        replica.enqueue(arrival)
        assert replica.load > 0
    replica.advance()
    assert replica.load == 0
    replica.manager.check_invariants()
    assert not replica.manager.sequences()
    pools = (*replica.manager.pools, *replica.manager.host_pools)
    assert all(pool.num_free == pool.num_blocks for pool in pools)
    assert not replica._arrivals
    assert not replica._output


def test_the_answers_are_what_the_events_say():
    trace, fleet = sessions(4), small_fleet(30)
    outcome, (log,) = listened(trace, fleet)
    answers, metrics = outcome.answers(), summary(log.events)
    assert answers.preemptions == metrics.preemptions > 0
    assert answers.occupancy == pytest.approx(metrics.occupancy)
    assert answers.waste == pytest.approx(metrics.waste)
    assert answers.peak_occupancy == pytest.approx(metrics.peak_occupancy)
    assert answers.ttft == metrics.ttft
    assert answers.tpot.p99 == pytest.approx(metrics.tpot.p99)
    assert answers.seconds == pytest.approx(metrics.seconds)
    steps = log.of("step")
    (totals,) = outcome.replicas
    assert totals.steps == len(steps)
    assert totals.busy_seconds == pytest.approx(sum(step.seconds for step in steps))
    assert sum(answers.limits.values()) == pytest.approx(1)
    assert 0 < answers.utilisation <= 1


def test_the_same_again_to_the_last_bit():
    trace, fleet = sessions(5), small_fleet(40, replicas=2, router="prefix")
    assert same(simulate(trace, fleet), simulate(trace, fleet))


def test_a_request_that_could_never_run_is_named_before_anything_runs():
    fine = TraceRequest(0.0, 100, 10)
    heard = []
    for index, wrong in ((0, TraceRequest(0.0, 801, 2)), (2, TraceRequest(1.0, 1, 801))):
        requests = [fine] * index + [wrong]
        with pytest.raises(RequestTooLargeError) as error:
            simulate(Trace("t", tuple(requests)), small_fleet(200), emit=lambda *event: heard.append(event))
        assert error.value.values["index"] == index
    assert not heard
    # 800 tokens are stored: all blocks
    edge = Trace("t", (TraceRequest(0.0, 799, 2), TraceRequest(0.0, 1, 800)))
    assert np.isfinite(simulate(edge, small_fleet(200)).finish).all()


def test_a_request_beyond_the_models_positions_is_named():
    fleet = Fleet.plan("Llama-3.1-8B", "H200")
    assert fleet.max_model_len == 131_072
    with pytest.raises(RequestTooLargeError) as error:
        simulate(Trace("t", (TraceRequest(0.0, 131_000, 73),)), fleet)
    assert error.value.values["reason"].code == "fleet_beyond_model"
    simulate(Trace("t", (TraceRequest(0.0, 131_000, 72),)), fleet)


def test_a_planned_fleet_has_the_blocks_of_the_memory_plan():
    budget = plan_memory("Llama-3.1-70B", gpu="H200", tp=8, kv_dtype="fp8", block_size=512)
    fleet = Fleet.plan("Llama-3.1-70B", "H200", tp=8, replicas=4, kv_dtype="fp8", block_size=512)
    assert fleet.blocks == (budget.num_blocks,)
    assert fleet.block_bytes == (budget.block_bytes,)
    assert fleet.gpus == 32
    host = Fleet.plan(
        "Llama-3.1-70B", "H200", tp=8, block_size=512, host_kv_bytes=10 * 8 * 2 * 512 * 20480 + 1
    )
    assert host.host_blocks == 10
    with pytest.raises(DoesNotFitError, match="one block"):
        Fleet.plan("Llama-3.1-70B", "H200", tp=8, host_kv_bytes=1000)
    with pytest.raises(DoesNotFitError):
        Fleet.plan("Llama-3.1-70B", "RTX 4090")


def test_a_model_with_windows_has_a_pool_for_each_kind():
    fleet = Fleet.plan("gemma-3-27b-it", "H200", max_num_seqs=4, max_batched_tokens=512)
    assert len(fleet.blocks) == len(fleet.windows) == len(fleet.block_bytes) == 2
    trace = poisson(1, 12, 4.0, prompt=3000, output=40)
    assert same(simulate(trace, fleet), simulate(trace, fleet, stepwise=True))


def test_bad_fleets_are_refused():
    good = small_fleet()
    for change in (
        {"replicas": 0},
        {"router": "random"},
        {"router": 3},
        {"num_blocks": 0},
        {"num_blocks": (4, 4)},
        {"block_bytes": (1, 2)},
        {"max_num_seqs": 65},
        {"host_blocks": -1},
        {"step_time": 0.1},
    ):
        with pytest.raises(ArgumentError):
            replace(good, **change)


@pytest.mark.parametrize("value", [-1, 2, "0", None, True])
def test_a_router_that_chooses_nobody_is_refused(value):
    class Wrong:
        def choose(self, prompt, replicas):
            return value

    with pytest.raises(ArgumentError) as error:
        simulate(poisson(1, 3, 1.0), small_fleet(replicas=2, router=Wrong()))
    assert error.value.code == "fleet_no_replica"


def test_a_longer_overhead_is_a_longer_wait():
    trace = poisson(2, 200, 50.0, output=5)
    fleets = [
        replace(small_fleet(), step_time=clock(assumptions=Assumptions(overhead_seconds=seconds)))
        for seconds in (0.0, 0.001, 0.01)
    ]
    means = [float(simulate(trace, fleet).ttft.mean()) for fleet in fleets]
    assert means == sorted(means)
    assert means[2] > means[0] + 0.009


def test_host_memory_brings_back_what_the_device_had_no_room_for():
    trace = sessions(6, count=120, rate=5.0)
    without, with_host = (simulate(trace, small_fleet(32, host_blocks=count)).answers() for count in (0, 400))
    assert without.host_hit_rate == 0
    assert with_host.host_hit_rate > 0
    assert with_host.hit_rate + with_host.host_hit_rate > without.hit_rate
    assert [tier.name for tier in with_host.tiers] == ["device", "host"]
    assert with_host.limits["host"] > 0


def test_a_replica_gets_its_pools_with_its_first_request(monkeypatch):
    made, manager = [], Fleet.manager
    monkeypatch.setattr(Fleet, "manager", lambda self: made.append(self) or manager(self))
    trace = poisson(1, 3, 1.0)
    for router in sorted(ROUTERS):
        made.clear()
        outcome = simulate(trace, small_fleet(replicas=50, router=router))
        assert len(made) == len(set(outcome.replica.tolist())) <= 3
        assert len(outcome.replicas) == 50
        assert sum(totals.steps > 0 for totals in outcome.replicas) == len(made)
        assert outcome.answers().gpus == 50


@pytest.mark.parametrize("stepwise", [False, True])
def test_progress_hears_of_every_request_that_ends_while_it_runs(stepwise):
    heard = []
    trace = sessions(4, count=50)
    fleet = small_fleet(60, replicas=2)
    outcome = simulate(trace, fleet, progress=heard.append, stepwise=stepwise)
    assert heard == list(range(1, 51))
    assert same(outcome, simulate(trace, fleet))


@pytest.mark.parametrize("host_blocks", [0, 20_000])
def test_the_books_of_a_replica_take_what_the_fleet_says(host_blocks):
    fleet = small_fleet(40_000, host_blocks=host_blocks)
    fleet.replica()
    tracemalloc.start()
    replica = fleet.replica()
    measured = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(replica.manager.pools) == 1
    assert measured == pytest.approx(fleet.book_bytes, rel=0.02)


def test_more_replicas_than_this_machine_could_keep_books_of_are_refused():
    good = small_fleet(1000)
    most = 16 * GIB // good.book_bytes
    assert replace(good, replicas=most).gpus == most
    assert good.book_bytes > 48_000
    for change in (
        {"replicas": most + 1},
        {"replicas": 10**8},
        {"num_blocks": 2**31 - 1},
        {"host_blocks": 10**12},
    ):
        with pytest.raises(ArgumentError) as error:
            replace(good, **change)
        assert error.value.code == "fleet_books"
        assert error.value.values["limit"] == "16.00 GiB"


def test_all_messages_say_something_in_both_languages():
    for lang in ("en", "zh"):
        said = Assumptions(0.5, 0.75, 0.004, 100, 25).explain(lang)
        assert len(said) == 5
        assert "50%" in said[0]
        assert "0.004" in said[2]
    with pytest.raises(MiniKVError):
        Assumptions(compute_efficiency=1.5)
    with pytest.raises(MiniKVError):
        Assumptions(host_gb_s=0)


def test_no_torch():
    code = (
        "from minikv.simulate import *\nimport sys\n"
        "simulate(Trace('t', (TraceRequest(0.0, 100, 3),)), Fleet.plan('Llama-3.1-8B', 'H200')).answers()\n"
        "print([name for name in ('torch', 'transformers', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_events_say_which_replica():
    trace, numbers = poisson(3, 10, 5.0), set()
    simulate(
        trace,
        small_fleet(replicas=3, router="round-robin"),
        emit=lambda number, event: numbers.add(number) if isinstance(event, StepEvent) else None,
    )
    assert numbers == {0, 1, 2}


def test_of_a_file_the_line_is_named(tmp_path):
    path = tmp_path / "load.jsonl"
    trace = Trace("load", (TraceRequest(0.0, 100, 10), TraceRequest(1.0, 900, 10)))
    write_mooncake(trace, path)
    with pytest.raises(RequestTooLargeError, match=r"Line 2 of .*900 tokens"):
        simulate(read_mooncake(path), small_fleet(200))
