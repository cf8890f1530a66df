"""``minikv simulate``: the answers are those of the package, and every assumption is said."""

import inspect
import json
import subprocess
import sys
from dataclasses import asdict, fields

import pytest

from minikv.cli.simulate import simulate as command
from minikv.cli.simulate_run import ASSUMED
from minikv.i18n import text
from minikv.simulate import (
    Assumptions,
    Fleet,
    Load,
    hit_rate,
    hit_rates,
    read_trace,
    simulate,
)
from tests.cli.simulating import FLEET, MAKE, TRACE, chinese, told

# Hit rate


@pytest.mark.parametrize("blocks", [300, 900, None])
@pytest.mark.parametrize("block_size", [None, 64])
def test_the_hit_rate_alone_is_one_number(load_file, terminal, blocks, block_size):
    some = [] if blocks is None else ["--num-blocks", str(blocks)]
    size = [] if block_size is None else ["--block-size", str(block_size)]
    found = told(terminal("simulate", load_file, "--hit-rate", *some, *size, "--json"))
    assert found == {"hit_rate": hit_rate(TRACE, blocks, block_size)}


def test_the_hit_rate_needs_no_torch(load_file):
    code = (
        "import sys; sys.argv = ['minikv', *sys.argv[1:]]\nfrom minikv.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    asked = ["simulate", load_file, "--hit-rate", "--num-blocks", "100", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_several_sizes_are_one_pass(load_file, terminal):
    found = told(terminal("simulate", load_file, "--hit-rate", "--sweep", "num_blocks=40,90,200", "--json"))
    rates = hit_rates(TRACE, [40, 90, 200, None])
    assert found == [
        {"num_blocks": blocks, "hit_rate": rate}
        for blocks, rate in zip([40, 90, 200, None], rates, strict=True)
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_hit_rate_in_words(load_file, terminal, lang):
    done = terminal("simulate", load_file, "--hit-rate", "--num-blocks", "90", "--lang", lang)
    assert f"{hit_rate(TRACE, 90):.1%}" in done.out
    assert "90" in done.out
    assert chinese(done.out) == (lang == "zh")


# One fleet


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_fleet_s_figures_its_limit_and_every_assumption(load_file, terminal, lang):
    done = terminal("simulate", load_file, *FLEET, "--replicas", "2", "--router", "prefix", "--lang", lang)
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


def test_the_fleet_s_json_has_all_of_it(load_file, terminal):
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
    found = told(
        terminal("simulate", load_file, *FLEET, *given, *clock, "--max-batched-tokens", "4096", "--json")
    )
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


def test_host_memory_has_its_rows(load_file, terminal):
    without = terminal("simulate", load_file, *FLEET).out
    with_host = terminal("simulate", load_file, *FLEET, "--host-kv", "4GiB").out
    assert "host hit rate" not in without
    assert "host hit rate" in with_host
    assert "KV on the hosts" in with_host


# The trace


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_trace_alone_is_described(load_file, terminal, lang):
    done = terminal("simulate", load_file, "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert f"{hit_rate(TRACE):.1%}" in done.out
    assert "60" in done.out
    assert chinese(done.out) == (lang == "zh")
    plain = told(terminal("simulate", load_file, "--json"))
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
        assert f"(assumed {field.default:g})" in text(f"help.{field.name}")


def test_the_help_names_every_option_by_what_it_is_about(terminal):
    done = terminal("simulate", "--help")
    assert done.code == 0
    for panel in ("ask", "fleet", "clock", "load"):
        assert text(f"help.panel_{panel}") in done.out
    for name in inspect.signature(command).parameters:
        if name not in ("trace", "as_json"):
            assert f"--{name.replace('_', '-')}" in done.out, name
    assert "simulate" in terminal("--help").out
