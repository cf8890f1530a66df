"""The benchmark beside vLLM, with a stand-in for it: what runs in which order, what is compared, what is refused."""

import json
import sys
import tomllib
from dataclasses import replace

import pytest
import torch

from benchmarks import vllm_cpu, vllm_cpu_runs
from benchmarks.engine_cases import SMALL, ModelShape, random_model
from benchmarks.vllm_cpu import BATCHED, COMPILED, EAGER, NANO, loads, refusal, rows_of
from benchmarks.vllm_cpu_runs import (
    OURS,
    Found,
    Limits,
    ProcessRun,
    found_of,
    measure,
    product_rate,
    products_of,
)
from minikv.course.your_engine.driven import DrivenError
from minikv.course.your_engine.ways import Nano
from minikv.errors import MiniKVError
from tests.vllm_stand_in import make
from tools.highlights import CHOSEN

SHAPE = ModelShape("tiny", 2, 32, 48, 4, 2, 8, 61)
LIMITS = Limits(4, 32)
WAYS = [OURS, EAGER, COMPILED]
linux = pytest.mark.skipif(sys.platform != "linux", reason="vLLM for CPUs runs on Linux")


@pytest.fixture(scope="module")
def model():
    return random_model(SHAPE, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def asked():
    return loads(SHAPE, 4, 3, 16)


@pytest.fixture(scope="module")
def answers(model, asked):
    return [Nano(4, 32, 32).run(model, load).answers for load in asked]


def run(way, answers, seconds=(1.0, 2.0, 3.0), first=1.0, peak=100):
    return ProcessRun(way, first, list(seconds), answers, peak)


def other(answers, load=0, request=1, place=2):
    """``answers`` with another token at that place."""
    changed = [[list(tokens) for tokens in of] for of in answers]
    changed[load][request][place] = (changed[load][request][place] + 1) % SHAPE.vocabulary
    return changed


def test_figures_are_the_best_of_the_rounds_and_the_memory_is_the_worst(model, asked, answers):
    rounds = [
        run(OURS, answers, (3.0, 2.0, 4.0), 5.0, 100),
        run(OURS, answers, (4.0, 1.0, 4.0), 4.0, 90),
    ]
    found = found_of(model, asked, {OURS: rounds, EAGER: [run(EAGER, answers)]})
    assert list(found.seconds[OURS].values()) == [3.0, 1.0, 4.0]
    assert (found.first_token[OURS], found.peak_bytes[OURS], found.rounds) == (4.0, 100, 2)
    assert found.differ == {OURS: [], EAGER: []}
    assert found.requests == sum(len(load.requests) for load in asked)


def test_an_answer_of_vllm_that_differs_is_found_in_any_round_and_judged(model, asked, answers, monkeypatch):
    wrong = run(EAGER, other(answers))
    right = run(EAGER, answers)
    for rounds in ([right, wrong], [wrong, right], [wrong, wrong]):
        [found] = found_of(model, asked, {OURS: [run(OURS, answers)], EAGER: rounds}).differ[EAGER]
        assert (found.load, found.request, found.place) == (asked[0].name, 1, 2)
        assert not found.is_tie
        assert found.gap > 1e-3
    monkeypatch.setattr(vllm_cpu_runs, "TIE", {torch.float32: 1e9})
    [found] = found_of(model, asked, {OURS: [run(OURS, answers)], EAGER: [wrong]}).differ[EAGER]
    assert found.is_tie


def test_one_of_ours_that_differs_ends_the_benchmark(model, asked, answers):
    ours = [run(OURS, answers)]
    with pytest.raises(MiniKVError, match="request 1, token 2"):
        found_of(model, asked, {OURS: ours, NANO: [run(NANO, other(answers))]})
    with pytest.raises(MiniKVError, match="request 1, token 2"):
        found_of(model, asked, {OURS: [*ours, run(OURS, other(answers))]})
    short = [[tokens[:-1] for tokens in of] for of in answers]
    with pytest.raises(MiniKVError, match="tokens of"):
        found_of(model, asked, {OURS: ours, EAGER: [run(EAGER, short)]})


def test_every_product_of_the_weights_is_counted_once_a_token(model, asked):
    """But for the head, which only tokens that are sampled from need; and the tokens of a shared prefix are one."""
    linear = {
        name: each.weight.numel() for name, each in model.named_modules() if type(each).__name__ == "Linear"
    }
    head = linear.pop("lm_head")
    even, _, shared = asked
    for load, again in ((even, 0), (shared, shared.shared_tokens * (len(shared.requests) - 1))):
        tokens = load.prompt_tokens + load.new_tokens - len(load.requests) - again
        assert products_of(SHAPE, load) == 2 * (sum(linear.values()) * tokens + head * load.new_tokens)
    assert shared.shared_tokens > 0


def test_the_rate_of_the_floor_is_the_fastest_product(monkeypatch):
    monkeypatch.setattr(vllm_cpu_runs, "PRODUCTS", ((4, 8, 8), (4, 16, 16)))
    calls = []

    def compare(watch, ways, rounds):
        calls.append(list(ways))
        return {"mm": 2e-6, "onednn": 1e-6}

    monkeypatch.setattr(vllm_cpu_runs.Stopwatch, "compare", compare)
    assert product_rate(1) == pytest.approx(2 * 4 * 16 * 16 / 1e-6)
    assert len(calls) == 2


def test_all_ways_of_a_product_give_the_same():
    given, weight = torch.randn(5, 32), torch.randn(16, 32)
    results = [call() for _, call in vllm_cpu_runs.product_calls(given, weight)]
    for result in results:
        torch.testing.assert_close(result, given @ weight.T, atol=1e-4, rtol=1e-4)


def found(asked, seconds, first, peak, differ=()):
    return Found(
        {way: {load.name: each for load in asked} for way, each in seconds.items()},
        first,
        peak,
        {way: list(differ) for way in seconds},
        12,
        3,
    )


def test_a_goal_is_a_comparison(asked):
    seconds = {OURS: 1.0, EAGER: 1.0, COMPILED: 0.9, NANO: 1.1, BATCHED: 1.2}
    first, peak = {OURS: 4.0, EAGER: 12.0, COMPILED: 11.9}, {OURS: 10**8, EAGER: 10**8, COMPILED: 2 * 10**8}
    told = list(rows_of(SHAPE, asked, found(asked, seconds, first, peak), 1e12))
    per_load = [[row.holds for row in told[4 * place : 4 * place + 4]] for place in range(3)]
    assert per_load == [[True, False, True, False]] * 3
    assert [row.peer_name for row in told[:4]] == [EAGER, COMPILED, NANO, BATCHED]
    assert [row.holds for row in told[12:]] == [True, False, True, True, True, False]
    assert [round(row.ratio, 2) for row in told[12:]] == [1, 1, 0.33, 1, 0.5, 0.34]
    share = told[0].details["share of the floor"]
    assert share[OURS] == pytest.approx(products_of(SHAPE, asked[0]) / 1e12)
    assert share[COMPILED] == pytest.approx(share[OURS] / 0.9)
    assert told[0].details["tokens/s"][EAGER] == asked[0].new_tokens


def test_the_rows_of_the_readmes_are_rows_of_the_benchmark():
    seconds = dict.fromkeys([OURS, EAGER, COMPILED], 1.0)
    asked = loads(SMALL, *vllm_cpu.FULL["small"][1:])
    told = rows_of(SMALL, asked, found(asked, seconds, seconds, dict.fromkeys(seconds, 1)), 1e12)
    rows = {(row.claim, row.peer_name) for row in told}
    chosen = tomllib.loads(CHOSEN.read_text(encoding="utf-8"))["row"]
    wanted = {(row["claim"], row["peer_name"]) for row in chosen if row["file"] == "vllm_cpu"}
    assert wanted
    assert wanted <= rows


def test_an_answer_that_is_no_tie_is_told(asked):
    tie = vllm_cpu_runs.Differing("x", 3, 1, 1e-5, True)
    seconds = {OURS: 1.0, EAGER: 1.0}
    figures = dict.fromkeys(seconds, 1.0), dict.fromkeys(seconds, 1)
    for differ, holds in (((tie,), True), ((tie, replace(tie, gap=0.1, is_tie=False)), False)):
        told = list(rows_of(SHAPE, asked, found(asked, seconds, *figures, differ), 1e12))
        row = next(row for row in told if "token for token" in row.claim)
        assert (row.ours, row.peer, row.holds) == (12 - len(differ), 12, holds)
        assert [each["gap"] for each in row.details["differ"]] == [each.gap for each in differ]


def test_the_engines_take_turns_and_share_one_folder_and_one_size(asked, answers, monkeypatch):
    started = []

    def run_way(way, asked, setup, vllm, threads, scratch):
        assert (scratch / "model" / "config.json").is_file()
        started.append((way, json.dumps(setup)))
        return run(way, answers)

    monkeypatch.setattr(vllm_cpu_runs, "run_way", run_way)
    measure(SHAPE, asked, WAYS, LIMITS, None, rounds=3, threads=1)
    assert [way for way, _ in started] == [*WAYS, *WAYS[1:], WAYS[0], WAYS[2], *WAYS[:2]]
    [setup] = {setup for _, setup in started}
    limits = json.loads(setup)
    assert limits["kv_bytes"] >= limits["kv_tokens"] * SHAPE.token_bytes
    assert limits["kv_tokens"] >= LIMITS.seats * max(load.longest for load in asked)


@linux
@pytest.mark.slow
def test_minikv_and_the_stand_in_answer_in_processes_of_their_own(tmp_path, asked, answers, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    requests = [each for load in asked for each in load.requests]
    python = make(tmp_path, requests, [tokens for of in answers for tokens in of])
    assert refusal(python, ["small"]) is None
    seen = measure(SHAPE, asked, [OURS, BATCHED, EAGER], LIMITS, python, rounds=1, threads=1)
    assert seen.differ == {OURS: [], BATCHED: [], EAGER: []}
    assert all(each > 0 for of in seen.seconds.values() for each in of.values())
    assert 0 < seen.first_token[EAGER] < seen.first_token[OURS]
    assert seen.peak_bytes[EAGER] < seen.peak_bytes[OURS]


@linux
def test_the_end_of_a_process_is_told(tmp_path, asked, capsys):
    python = make(tmp_path, at_start="raise OSError('libtorchvision.so is missing')")
    with pytest.raises(DrivenError, match=r"vLLM eager.*libtorchvision\.so is missing"):
        measure(SHAPE, asked, [EAGER, OURS], LIMITS, python, rounds=1, threads=1)
    assert EAGER in capsys.readouterr().err


def test_what_vllm_needs_is_said(tmp_path, monkeypatch):
    assert "make bench-vllm" in refusal(None, ["small", "ideas"])
    assert refusal(None, ["ideas"]) is None
    assert "has no vLLM" in refusal(tmp_path / "nowhere", ["large"])
    monkeypatch.setattr(vllm_cpu, "vllm_version", lambda python: "0.1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in refusal(tmp_path, ["small"])


@linux
def test_a_python_says_whether_it_has_vllm(tmp_path):
    with_it, without = tmp_path / "with", tmp_path / "without"
    for folder in (with_it, without):
        folder.mkdir()
    assert vllm_cpu_runs.vllm_version(make(with_it)) == "0.1"
    assert vllm_cpu_runs.vllm_version(make(without, there=False)) is None


def test_without_vllm_the_program_ends_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(vllm_cpu, "vllm_python", lambda: None)
    monkeypatch.setattr(sys, "argv", ["vllm_cpu", "--quick"])
    with pytest.raises(SystemExit, match="make bench-vllm"):
        vllm_cpu.main()
    assert capsys.readouterr().out == ""


def test_a_process_that_ends_ends_the_program_with_a_sentence_and_an_incomplete_file(tmp_path, monkeypatch):
    def measured(*_, **__):
        raise DrivenError("driven_ended", name=EAGER, exit=1, reason="no libgomp")

    monkeypatch.setattr(vllm_cpu, "measure", measured)
    monkeypatch.setattr(vllm_cpu, "product_rate", lambda: 1e12)
    path, threads = tmp_path / "rows.json", str(torch.get_num_threads())
    monkeypatch.setattr(sys, "argv", ["x", "--only", "ideas", "--json", str(path), "--threads", threads])
    with pytest.raises(SystemExit, match=r"vLLM eager.*no libgomp"):
        vllm_cpu.main()
    assert not path.exists() or not json.loads(path.read_text())["complete"]


def test_ideas_alone_run_no_vllm(monkeypatch, asked):
    ran = []

    def measured(shape, asked, ways, *rest, **more):
        ran.append((shape.name, ways))
        return found(asked, dict.fromkeys(ways, 1.0), {}, {})

    monkeypatch.setattr(vllm_cpu, "measure", measured)
    monkeypatch.setattr(vllm_cpu, "product_rate", lambda: 1e12)
    list(vllm_cpu.rows("ideas", None, quick=False, rounds=1, threads=1))
    assert ran == [("4 layers x 512", [OURS, NANO, BATCHED]), ("8 layers x 1024", [OURS, NANO, BATCHED])]


def test_a_section_measured_alone_keeps_the_others_of_this_machine(tmp_path, monkeypatch, asked):
    def measured(shape, asked, ways, *rest, **more):
        return found(asked, dict.fromkeys(ways, 1.0), dict.fromkeys(ways, 1.0), dict.fromkeys(ways, 1))

    def run(*only):
        monkeypatch.setattr(sys, "argv", ["x", "--threads", threads, "--json", str(path), "--only", *only])
        vllm_cpu.main()
        told = json.loads(path.read_text())
        return told["complete"], sorted({row["step"] for row in told["rows"]})

    monkeypatch.setattr(vllm_cpu, "measure", measured)
    monkeypatch.setattr(vllm_cpu, "product_rate", lambda: 1e12)
    monkeypatch.setattr(vllm_cpu, "refusal", lambda *_: None)
    path, threads = tmp_path / "rows.json", str(torch.get_num_threads())
    assert run("small") == (False, ["small"])
    path.write_text(path.read_text().replace('"versions": {', '"versions": {"another": "1",'))
    assert run("ideas") == (False, ["ideas", "small"])
    assert json.loads(path.read_text())["versions"]["another"] == "1"
    assert run("large", "ideas") == (True, ["ideas", "large", "small"])
    path.write_text(path.read_text().replace('"device": "', '"device": "another '))
    assert run("ideas") == (False, ["ideas"])
