"""``minikv simulate``: the answers are those of the package, every assumption is said, bad input is one sentence."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import asdict, fields
from functools import partial

import pytest

from minikv.cli import simulate_options
from minikv.cli.simulate import simulate as command
from minikv.cli.simulate_run import ASSUMED, parse_sweep
from minikv.engine.simulate import (
    Assumptions,
    Fleet,
    Load,
    Target,
    fewest,
    hit_rate,
    hit_rates,
    read_trace,
    simulate,
    write_mooncake,
)
from minikv.errors import ArgumentError
from tests.cli.inside import is_one_sentence

TRACE = Load(
    num_requests=60, rate=30.0, prompt_tokens=2000, output_tokens=15, turns=3, think_seconds=1.0, seed=4
).trace()
FLEET = ("--model", "llama-3.1-8b", "--gpu", "H200", "--block-size", "64")
MAKE = partial(Fleet.plan, "llama-3.1-8b", "H200", block_size=64)


@pytest.fixture
def path(tmp_path):
    write_mooncake(TRACE, tmp_path / "load.jsonl")
    return str(tmp_path / "load.jsonl")


def chinese(words):
    return any("\u4e00" <= letter <= "\u9fff" for letter in words)


def told(done):
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


# Hit rate


@pytest.mark.parametrize("blocks", [300, 900, None])
@pytest.mark.parametrize("block_size", [None, 64])
def test_the_hit_rate_alone_is_one_number(path, terminal, blocks, block_size):
    some = [] if blocks is None else ["--num-blocks", str(blocks)]
    size = [] if block_size is None else ["--block-size", str(block_size)]
    found = told(terminal("simulate", path, "--hit-rate", *some, *size, "--json"))
    assert found == {"hit_rate": hit_rate(TRACE, blocks, block_size)}


def test_the_hit_rate_needs_no_torch(path):
    code = (
        "import sys; sys.argv = ['minikv', *sys.argv[1:]]\nfrom minikv.cli import app\n"
        "try:\n    app()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    asked = ["simulate", path, "--hit-rate", "--num-blocks", "100", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_several_sizes_are_one_pass(path, terminal):
    found = told(terminal("simulate", path, "--hit-rate", "--sweep", "num_blocks=40,90,200", "--json"))
    rates = hit_rates(TRACE, [40, 90, 200, None])
    assert found == [
        {"num_blocks": blocks, "hit_rate": rate}
        for blocks, rate in zip([40, 90, 200, None], rates, strict=True)
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_hit_rate_in_words(path, terminal, lang):
    done = terminal("simulate", path, "--hit-rate", "--num-blocks", "90", "--lang", lang)
    assert f"{hit_rate(TRACE, 90):.1%}" in done.out
    assert "90" in done.out
    assert chinese(done.out) == (lang == "zh")


# One fleet


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_fleet_s_figures_its_limit_and_every_assumption(path, terminal, lang):
    done = terminal("simulate", path, *FLEET, "--replicas", "2", "--router", "prefix", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    fleet = MAKE(replicas=2, router="prefix")
    answers = simulate(TRACE, fleet).answers()
    for figure in (
        f"{answers.hit_rate:.1%}",
        f"{answers.tokens_per_second:,.0f}",
        f"{answers.waste:.1%}",
        "H200",
    ):
        assert figure in done.out
    for sentence in fleet.step_time.assumptions.explain(lang):
        assert f"- {sentence}\n" in done.out
    assert {"en": "What limits it: ", "zh": "瓶颈："}[lang] in done.out
    assert {"en": "2 x Llama-3.1-8B, each on 1 x H200 SXM (2 GPUs)", "zh": "共 2 块 GPU"}[lang] in done.out
    assert chinese(done.out) == (lang == "zh")
    assert "{" not in done.out


def test_the_fleet_s_json_has_all_of_it(path, terminal):
    given = [
        "--tp",
        "2",
        "--host-kv",
        "2GiB",
        "--kv-dtype",
        "fp8",
        "--utilization",
        "0.8",
        "--max-num-seqs",
        "32",
    ]
    clock = ["--compute-efficiency", "0.5", "--overhead-seconds", "0", "--link-gb-s", "100"]
    found = told(terminal("simulate", path, *FLEET, *given, *clock, "--max-batched-tokens", "4096", "--json"))
    assumptions = Assumptions(compute_efficiency=0.5, overhead_seconds=0.0, link_gb_s=100.0)
    fleet = MAKE(
        tp=2, host_kv_bytes=2 * 2**30, kv_dtype="fp8", utilization=0.8, max_num_seqs=32, max_batched_tokens=4096,
        assumptions=assumptions,
    )  # fmt: skip
    answers = simulate(TRACE, fleet).answers()
    assert found["assumptions"] == asdict(assumptions)
    assert found["fleet"]["num_blocks"] == list(fleet.blocks)
    assert found["fleet"]["host_blocks"] == fleet.host_blocks > 0
    for field in fields(answers):
        assert field.name in found["answers"]
    assert found["answers"]["ttft"] == asdict(answers.ttft)
    assert found["answers"]["hit_rate"] == answers.hit_rate
    assert [tier["name"] for tier in found["answers"]["tiers"]] == ["device", "host"]
    assert len(found["assumed"]) >= len(ASSUMED)


def test_host_memory_has_its_rows(path, terminal):
    without = terminal("simulate", path, *FLEET).out
    with_host = terminal("simulate", path, *FLEET, "--host-kv", "4GiB").out
    assert "host hit rate" not in without
    assert "host hit rate" in with_host
    assert "KV on the hosts" in with_host


# Many fleets


def test_a_sweep_has_a_row_a_fleet_and_the_reason_where_there_is_none(path, terminal, tmp_path):
    page = tmp_path / "plot.html"
    sweep = ["--sweep", "utilization=0.9,0.1", "--sweep", "replicas=1,2"]
    done = terminal("simulate", path, *FLEET, *sweep, "--plot", str(page))
    assert (done.code, done.err) == (0, "")
    for replicas in (1, 2):
        answers = simulate(TRACE, MAKE(replicas=replicas)).answers()
        assert re.search(rf"^ +0\.9 +{replicas} +{replicas} .*{answers.hit_rate:.1%}", done.out, re.MULTILINE)
    assert re.search(r"^utilization=0.1 replicas=2: .+", done.out, re.MULTILINE)
    written = page.read_text(encoding="utf-8")
    assert "replicas=2" in written
    assert not re.search(r'src="https?:', written), "no outside request"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_sweep_in_json_and_in_both_languages(path, terminal, lang):
    sweep = ["--sweep", "router=round-robin,prefix", "--replicas", "2", "--lang", lang]
    rows = told(terminal("simulate", path, *FLEET, *sweep, "--json"))
    assert [row["settings"] for row in rows] == [{"router": "round-robin"}, {"router": "prefix"}]
    for row in rows:
        assert (
            row["answers"]["hit_rate"]
            == simulate(TRACE, MAKE(replicas=2, **row["settings"])).answers().hit_rate
        )
    table = terminal("simulate", path, *FLEET, *sweep).out
    assert {"en": "TTFT p99", "zh": "命中率"}[lang] in table
    assert chinese(table) == (lang == "zh")


def test_a_sweep_over_host_memory_shows_what_the_host_gives(tmp_path, terminal):
    busy = Load(num_requests=40, rate=4.0, turns=4, think_seconds=5.0, max_model_len=8000, seed=2).trace()
    write_mooncake(busy, tmp_path / "busy")
    asked = ("simulate", str(tmp_path / "busy"), *FLEET, "--utilization", "0.14", "--host-gb-s", "500")
    make = partial(MAKE, utilization=0.14, assumptions=Assumptions(host_gb_s=500.0))
    with_host = simulate(busy, make(host_kv_bytes=2**35)).answers().host_hit_rate
    assert with_host > 0
    table = terminal(*asked, "--sweep", "host_kv=0,32GiB").out
    assert "host hits" in table
    (row,) = [line for line in table.splitlines() if line.split()[:1] == ["32GiB"]]
    assert f" {with_host:.1%} " in row
    assert "host hits" not in terminal(*asked, "--sweep", "replicas=1,2").out


def test_links_that_are_guessed_are_said_to_be(path, terminal):
    asked = ("simulate", path, *FLEET, "--json", "--limit", "3")
    for more, said in (((), False), (("--tp", "2"), True), (("--tp", "2", "--link-gb-s", "50"), False)):
        assert any("--link-gb-s" in line for line in told(terminal(*asked, *more))["assumed"]) == said


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_fewest_gpus_with_what_limits_them_and_their_assumptions(path, terminal, lang):
    found = fewest(TRACE, MAKE, Target(p99_ttft=0.6))
    assert found.replicas > 1
    asked = ("simulate", path, *FLEET, "--fewest", "--p99-ttft", "0.6", "--lang", lang)
    done = terminal(*asked)
    assert (done.code, done.err) == (0, "")
    answer = {"en": f"{found.gpus} GPUs, as {found.replicas} x 1.", "zh": f"最少需要 {found.gpus} 块 GPU"}[
        lang
    ]
    assert answer in done.out
    less = {"en": f"One replica less ({found.gpus - 1}", "zh": f"少一个副本（{found.gpus - 1} 块 GPU）"}[lang]
    assert less in done.out
    assert {"en": "What limits it: ", "zh": "瓶颈："}[lang] in done.out
    for sentence in Assumptions().explain(lang):
        assert sentence in done.out
    plain = told(terminal(*asked, "--json"))
    assert (plain["replicas"], plain["gpus"], plain["steady"]) == (found.replicas, found.gpus, found.steady)
    assert plain["tried"].keys() == {str(number) for number in found.tried}
    assert plain["fleet"]["replicas"] == found.replicas
    assert plain["assumptions"] == asdict(Assumptions())
    assert set(Assumptions().explain(lang)) < set(plain["assumed"])


def test_the_fewest_of_several_kinds_of_replicas(path, terminal):
    asked = ("--fewest", "--p99-ttft", "0.6", "--sweep", "tp=1,2,7")
    done = terminal("simulate", path, *FLEET, *asked)
    assert done.code == 0
    for tp in (1, 2):
        found = fewest(TRACE, partial(MAKE, tp=tp), Target(0.6))
        assert re.search(rf"^ +{tp} +{found.replicas} +{found.gpus} ", done.out, re.MULTILINE)
    assert "tp=7: " in done.out
    rows = told(terminal("simulate", path, *FLEET, *asked, "--json"))
    assert [row["answers"] is None for row in rows] == [False, False, True]


def test_a_promise_that_cannot_be_kept_says_why(path, terminal):
    done = terminal("simulate", path, *FLEET, "--fewest", "--p99-ttft", "0.001")
    assert is_one_sentence(done)
    assert "even with a replica to itself" in done.err


# The trace


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_trace_alone_is_described(path, terminal, lang):
    done = terminal("simulate", path, "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert f"{hit_rate(TRACE):.1%}" in done.out
    assert "60" in done.out
    assert chinese(done.out) == (lang == "zh")
    plain = told(terminal("simulate", path, "--json"))
    assert (plain["requests"], plain["prompt_tokens"]) == (60, TRACE.prompt_tokens)


def test_a_csv_says_nothing_of_what_is_shared(tmp_path, terminal):
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    )
    done = terminal("simulate", str(tmp_path / "azure.csv"))
    assert "all at once" in done.out
    assert "no prefix is ever found" in done.out
    assert told(terminal("simulate", str(tmp_path / "azure.csv"), "--json"))["hit_rate"] is None


def test_a_load_of_one_s_own_is_made_written_and_simulated(tmp_path, terminal):
    made = Load(
        num_requests=30, rate=9.0, burst=2.0, prompt_tokens=500, output_tokens=7, spread=0.5, turns=2, think_seconds=3,
        system_tokens=600, system_prompts=2, seed=8,
    ).trace()  # fmt: skip
    own = [
        "--synthetic", "30", "--rate", "9", "--burst", "2", "--input-len", "500", "--output-len", "7",
        "--spread", "0.5", "--turns", "2", "--think-seconds", "3", "--system-len", "600",
        "--system-prompts", "2", "--seed", "8",
    ]  # fmt: skip
    target = tmp_path / "made.jsonl"
    done = terminal("simulate", *own, *FLEET, "--write", str(target), "--json")
    assert done.code == 0
    assert str(target) in done.err
    assert json.loads(done.out)["answers"]["hit_rate"] == simulate(made, MAKE()).answers().hit_rate
    assert read_trace(target).requests == made.requests
    assert told(terminal("simulate", *own, "--limit", "5", "--json"))["requests"] == 5


def test_options_have_the_defaults_of_the_package():
    parameters = inspect.signature(command).parameters
    names = {"input_len": "prompt_tokens", "output_len": "output_tokens", "system_len": "system_tokens"}
    for ours in (
        "rate",
        "burst",
        "spread",
        "turns",
        "think_seconds",
        "system_prompts",
        "seed",
        "hash_block",
        *names,
    ):
        assert parameters[ours].default == getattr(Load(), names.get(ours, ours))
    plan = inspect.signature(Fleet.plan).parameters
    for name in ("tp", "replicas", "router", "kv_dtype", "utilization", "max_num_seqs", "max_batched_tokens"):
        assert parameters[name].default == plan[name].default
    for field in fields(Assumptions):
        option = getattr(simulate_options, "".join(word.capitalize() for word in field.name.split("_")))
        assert f"(assumed {field.default:g})" in option.__metadata__[0].help


def test_the_help_names_every_option_by_what_it_is_about(terminal):
    done = terminal("simulate", "--help")
    assert done.code == 0
    for panel in (
        simulate_options.ASK,
        simulate_options.FLEET,
        simulate_options.CLOCK,
        simulate_options.LOAD,
    ):
        assert panel in done.out
    for name in inspect.signature(command).parameters:
        if name not in ("trace", "as_json"):
            assert f"--{name.replace('_', '-')}" in done.out, name
    assert "simulate" in terminal("--help").out


# Bad input


def test_a_sweep_s_words_become_values():
    parse = partial(parse_sweep, hit_rate=False, fewest=False)
    assert parse(["block-size=8, 16", "utilization=0.5", "router=prefix"]) == {
        "block_size": [8, 16], "utilization": [0.5], "router": ["prefix"],
    }  # fmt: skip
    assert parse_sweep(["num_blocks=5"], hit_rate=True, fewest=False) == {"num_blocks": [5]}
    for words in (
        "",
        "x",
        "=1",
        "replicas",
        "replicas=",
        "replicas=1,",
        "replicas=x",
        "replicas=1.5",
        "nothing=1",
    ):
        with pytest.raises(ArgumentError):
            parse([words])
    with pytest.raises(ArgumentError, match="twice"):
        parse(["tp=1", "tp=2"])
    with pytest.raises(ArgumentError):
        parse_sweep(["replicas=1"], hit_rate=False, fewest=True)


BAD = [
    ([], "--synthetic"),
    (["{path}", "--synthetic", "9"], "one of them"),
    (["{path}.none"], "load.jsonl.none"),
    (["{path}", "--num-blocks", "9"], "--hit-rate"),
    (["{path}", "--hit-rate", "--num-blocks", "0"], "num_blocks"),
    (["{path}", "--hit-rate", "--num-blocks", "1"], "Line 1 of load.jsonl"),
    (["{path}", "--hit-rate", "--model", "x"], "One question"),
    (["{path}", "--hit-rate", "--fewest"], "One question"),
    (["{path}", "--hash-block", "16"], "Line 1 of load.jsonl"),
    (["{path}", "--limit", "0"], "--limit"),
    (["{path}", "--model", "llama-3.1-8b"], "--gpu"),
    (["{path}", "--gpu", "H200"], "--model"),
    (["{path}", "--fewest"], "--model"),
    (["{path}", "--sweep", "replicas=1,2"], "--model"),
    (["{path}", "--plot", "x.html"], "--sweep"),
    (["{path}", "--plot", "x.html", "--fewest", *FLEET, "--sweep", "tp=1"], "without --fewest"),
    (["{path}", "--plot", "/no/such/folder/x", *FLEET, "--sweep", "tp=1"], "/no/such/folder/x"),
    (["{path}", *FLEET, "--sweep", "replicas"], "block_size=8,16,32"),
    (["{path}", *FLEET, "--sweep", "colour=1"], "colour"),
    (["{path}", *FLEET, "--sweep", "tp=two"], "two"),
    (["{path}", *FLEET, "--sweep", "replicas=0,-1"], "replicas"),
    (["{path}", *FLEET, "--replicas", "0"], "replicas"),
    (["{path}", *FLEET, "--router", "best"], "best"),
    (["{path}", *FLEET, "--host-kv", "much"], "--host-kv"),
    (["{path}", *FLEET, "--host-kv", "1KiB"], "1.00 KiB"),
    (["{path}", *FLEET, "--utilization", "0.05"], "GiB"),
    (["{path}", *FLEET, "--compute-efficiency", "0"], "compute_efficiency"),
    (["{path}", *FLEET, "--fewest", "--p99-ttft", "0"], "p99_ttft"),
    (["{path}", *FLEET, "--model", "no-such-model"], "no-such-model"),
    (["{path}", *FLEET, "--gpu", "no-such-gpu"], "no-such-gpu"),
    (["{path}", "--write", "/no/such/folder/x"], "/no/such/folder/x"),
    (["{path}", "--hit-rate", "--gpu", "H200"], "One question"),
    (["{path}", "--hit-rate", "--replicas", "4"], "--replicas changes nothing"),
    (["{path}", "--hit-rate", "--num-blocks", "90", "--sweep", "num_blocks=95"], "--num-blocks and --sweep"),
    (["{path}", "--tp", "8"], "--model, --gpu"),
    (["{path}", "--overhead-seconds", "0"], "--model, --gpu"),
    (["{path}", "--p99-ttft", "1"], "--fewest"),
    (["{path}", *FLEET, "--p99-tpot", "1"], "--fewest"),
    (["{path}", *FLEET, "--rate", "50"], "--synthetic"),
    (["{path}", *FLEET, "--seed", "1"], "--synthetic"),
    (["{path}", *FLEET, "--sweep", "block_size=16"], "--block-size and --sweep"),
    (["{path}", *FLEET, "--fewest", "--replicas", "4"], "leave --replicas out"),
    (["--synthetic", "0"], "num_requests"),
    (["--synthetic", "9", "--rate", "0"], "rate"),
    (["--synthetic", "9", "--turns", "0.5"], "turns"),
    (["--synthetic", "9999999999999"], "requests"),
    (["{path}", "--lang", "fr"], "fr"),
]


@pytest.mark.parametrize(("arguments", "names"), BAD, ids=lambda value: " ".join(value)[-60:])
def test_bad_input_is_one_sentence(arguments, names, path, terminal):
    given = [argument.format(path=path) for argument in arguments]
    done = terminal("simulate", *given)
    assert is_one_sentence(done), done
    assert names in done.err
    if "--lang" not in arguments:
        other = terminal("simulate", *given, "--lang", "zh")
        assert is_one_sentence(other)
        assert chinese(other.err)


@pytest.mark.parametrize("words", ["x", '{{"timestamp": 1}}', ""])
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, terminal, words):
    (tmp_path / "bad").write_text(words.format())
    assert is_one_sentence(terminal("simulate", str(tmp_path / "bad"), "--hit-rate"))


def test_a_request_too_large_for_a_replica_is_named_by_its_line(tmp_path, terminal):
    lines = [
        {"timestamp": at, "input_length": length, "output_length": 2}
        for at, length in enumerate((100, 200_000))
    ]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = terminal("simulate", str(tmp_path / "long.jsonl"), *FLEET)
    assert is_one_sentence(done)
    assert "Line 2 of long.jsonl" in done.err


def test_an_interrupt_leaves_without_figures(path, terminal, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("minikv.engine.simulate.simulate", interrupted)
    done = terminal("simulate", path, *FLEET)
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith("Stopped")
