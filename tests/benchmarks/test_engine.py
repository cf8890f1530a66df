"""The engine's benchmark at tiny sizes: loads are what they say, wrong tokens end it, and a goal is a comparison."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from benchmarks import engine, engine_decode
from benchmarks.engine_cases import ModelShape, mixed, random_model, shared_prefix, skewed
from benchmarks.engine_compare import compare
from benchmarks.engine_decode import Decoding, decode_rows, decode_steps, weight_bytes
from benchmarks.engine_host import host_times
from minikv.course.your_engine import ways
from minikv.course.your_engine.ways import (
    ContinuousBatching,
    Nano,
    Ours,
    RaceLoad,
    RaceRequest,
    Run,
    StaticBatches,
    agree,
)
from minikv.errors import MiniKVError

SHAPE = ModelShape("tiny", 2, 32, 48, 4, 2, 8, 61)
DECODES = (Decoding(1, 7, 3), Decoding(4, 7, 3))
SCALE = engine.Scale(SHAPE, 6, 3, 16, 3, 4, 4, 16, (8,), (16,), DECODES)


@pytest.fixture(scope="module")
def model():
    return random_model(SHAPE, torch.device("cpu"), torch.float32)


@pytest.fixture
def load():
    return mixed(5, 3, 9, SHAPE.vocabulary)


def test_loads_keep_their_bounds():
    even, uneven = mixed(200, 12, 128, 100), skewed(200, 12, 128, 100)
    for load in (even, uneven):
        sizes = [size for request in load.requests for size in (len(request.prompt), request.new)]
        assert (min(sizes), max(sizes)) == (12, 128)
        assert {token for request in load.requests for token in request.prompt} <= set(range(1, 100))
    assert uneven.new_tokens < 0.6 * even.new_tokens
    assert mixed(200, 12, 128, 100) == even


def test_a_shared_prefix_is_as_long_as_it_says():
    load = shared_prefix(20, 90, 10, 3, 1000)
    assert {len(request.prompt) for request in load.requests} == {100}
    assert load.shared_tokens == 90
    assert mixed(20, 3, 9, 1000).shared_tokens == 0


def test_all_ways_say_the_same_tokens_and_watch_what_they_hold(model, load):
    ways = {
        "ours": Ours(3, 8, 32),
        "static": StaticBatches(2),
        "continuous": ContinuousBatching(8, 16, 200),
        "nano": Nano(3, 8, 32),
    }
    found = compare(model, load, ways, rounds=2)
    assert set(found.seconds) == set(ways)
    assert found.rate("ours") > 0
    longest = max(len(request.prompt) + request.new for request in load.requests)
    token = SHAPE.token_bytes
    peaks = {name: run.peak_kv_bytes // token for name, run in found.watched.items()}
    assert longest <= peaks["ours"] <= 8 * 16
    assert longest <= peaks["nano"] <= 8 * 16
    # generate() does not compute the last token.
    pairs = [load.requests[first : first + 2] for first in (0, 2, 4)]
    padded = [len(p) * (max(len(r.prompt) for r in p) + max(r.new for r in p) - 1) for p in pairs]
    assert peaks["static"] == max(padded)
    assert longest <= peaks["continuous"] <= 200


def test_a_watched_run_counts_steps_and_preemptions(model):
    load = RaceLoad("two that do not fit", (RaceRequest((1,) * 15, 20), RaceRequest((2,) * 15, 20)))
    run = Ours(2, 4, 64).run(model, load, watch=True)
    assert run.preemptions >= 1
    assert run.peak_kv_bytes == 4 * 16 * SHAPE.token_bytes
    assert Ours(2, 4, 64).run(model, load).peak_kv_bytes is None
    run = Nano(2, 4, 64).run(model, load, watch=True)
    assert run.preemptions >= 1
    assert run.peak_kv_bytes == 4 * 16 * SHAPE.token_bytes
    assert Nano(2, 4, 64).run(model, load).peak_kv_bytes is None


def test_wrong_and_missing_tokens_end_the_benchmark(model, load):
    right = Ours(3, 8, 32).run(model, load).answers
    wrong = [list(answer) for answer in right]
    wrong[1][2] = (wrong[1][2] + 1) % SHAPE.vocabulary
    with pytest.raises(MiniKVError, match="request 1, token 2"):
        agree(model, load, right, wrong, "x")
    with pytest.raises(MiniKVError, match="request 0 has"):
        agree(model, load, right, [right[0][:-1], *right[1:]], "x")
    assert agree(model, load, right, right, "x") == 0


def test_a_tie_is_counted(model, load, monkeypatch):
    right = Ours(3, 8, 32).run(model, load).answers
    other = [list(answer) for answer in right]
    other[1][2] = (other[1][2] + 1) % SHAPE.vocabulary
    monkeypatch.setattr(ways, "TIE", {torch.float32: 1e9})
    assert agree(model, load, right, other, "x") == 1


def test_a_run_that_differs_from_its_first_ends_the_benchmark(model, load):
    class Forgetful:
        def __init__(self):
            self.runs = 0

        def run(self, model, load, watch=False):
            self.runs += 1
            run = Ours(3, 8, 32).run(model, load, watch)
            return run if self.runs == 1 else replace(run, answers=[answer[::-1] for answer in run.answers])

    with pytest.raises(MiniKVError, match="again"):
        compare(model, load, {"x": Forgetful()}, rounds=1)


@pytest.mark.parametrize(("section", "claims"), [("mixed", 6), ("prefix", 2), ("host", 2), ("decode", 2)])
def test_every_section_says_its_claims(model, section, claims, monkeypatch):
    monkeypatch.setattr(engine_decode, "WORKING_SET", {"cpu": 2**16})
    told = list(engine.Bench(model, SCALE, 1).rows(section))
    assert len(told) == claims
    for row in told:
        assert row.ours > 0
        assert row.peer > 0


def test_a_goal_is_a_comparison(model, load, monkeypatch):
    answers = [[0] * request.new for request in load.requests]
    held = {engine.OURS: 200, engine.FRUGAL: 90, engine.STATIC: 100, engine.CONTINUOUS: 90}
    seconds = {engine.OURS: 1.0, engine.FRUGAL: 1.1, engine.STATIC: 2.0, engine.CONTINUOUS: 1.29}

    def told(model, load, ways, rounds, first=None):
        watched = {name: Run(1.0, answers, held[name], 10) for name in ways}
        return engine.Compared(load, seconds, watched, {})

    monkeypatch.setattr(engine, "compare", told)
    monkeypatch.setattr(engine.Bench, "tune", lambda bench, load: (ContinuousBatching(8, 16, 200), {}))
    bench = engine.Bench(model, SCALE, 1)
    rows = list(bench.speed_rows(load))
    assert [row.holds for row in rows] == [True, False, False, False, True, False]
    assert rows[0].ratio == pytest.approx(2)
    prompts = (RaceRequest((1, 2, 3, 4), 3), RaceRequest((1, 2, 3, 4, 5), 3), RaceRequest((1, 2, 3, 4, 6), 3))
    assert [row.holds for row in bench.speed_rows(load, engine.FASTER_ON_GPU)][:2] == [False, False]
    saved, speed = bench.prefix_rows(RaceLoad("x", prompts))
    assert (saved.ours, saved.peer, saved.holds, speed.holds) == (10, 8, True, False)


def test_host_times_are_those_of_decodes(model):
    parts, whole = host_times(model, SHAPE.vocabulary, 3)
    assert {name: len(times) for name, times in parts.items()} == dict.fromkeys(parts, 3)
    for number, seconds in enumerate(whole):
        assert 0 < sum(times[number] for times in parts.values()) < seconds


def test_the_floor_of_a_decode_is_its_bytes_at_the_bandwidth(model):
    case = Decoding(3, 9, 4)
    steps = decode_steps(model, SHAPE.vocabulary, case, gb_s=2.0)
    assert len(steps.seconds) == len(steps.floors) == 4
    assert steps.graphs is None, "a CPU has none"
    weights = weight_bytes(model)
    assert weights == sum(each.nbytes for each in model.parameters()) - SHAPE.vocabulary * SHAPE.hidden * 4
    cached = [2e9 * floor - weights for floor in steps.floors]
    for before, after in pairwise(cached):
        assert after - before == pytest.approx(3 * SHAPE.token_bytes), "each sequence is a token longer"
    assert steps.num_bytes == pytest.approx(2e9 * steps.floors[-1])
    assert cached[0] % (3 * SHAPE.token_bytes) == pytest.approx(0, abs=1)


def test_the_goal_of_a_decode_counts_on_a_gpu_alone(model, monkeypatch):
    slow = engine_decode.Steps([1.0], [0.5], 10, 2**20)
    monkeypatch.setattr(engine_decode, "decode_steps", lambda *_, **__: slow)
    monkeypatch.setattr(engine_decode, "WORKING_SET", {"cpu": 2**16, "cuda": 2**16})
    monkeypatch.setattr(engine_decode, "read_bandwidth", lambda *_: SimpleNamespace(gb_s=1.0))
    for kind, holds in (("cpu", [True, True]), ("cuda", [True, False])):
        device = SimpleNamespace(device=torch.device(kind))
        rows = list(decode_rows(device, "x", 61, DECODES))
        assert [row.holds for row in rows] == holds
        assert [row.ratio for row in rows] == [2.0, 2.0]
    monkeypatch.setattr(engine_decode, "SHARE", 0.5)
    assert all(row.holds for row in decode_rows(device, "x", 61, DECODES))
