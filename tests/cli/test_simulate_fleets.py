"""``minikv simulate`` on many fleets: sweeps, and the fewest GPUs that keep a promise."""

import re
from dataclasses import asdict
from functools import partial

import pytest

from minikv.i18n import text
from minikv.simulate import (
    Assumptions,
    Load,
    Target,
    fewest,
    simulate,
    sweep,
    write_mooncake,
)
from tests.cli.inside import is_one_sentence
from tests.cli.simulating import FLEET, MAKE, TRACE, chinese, told


def test_a_sweep_has_a_row_a_fleet_and_the_reason_where_there_is_none(load_file, terminal, tmp_path):
    page = tmp_path / "plot.html"
    sweep = ["--sweep", "utilization=0.9,0.1", "--sweep", "replicas=1,2"]
    done = terminal("simulate", load_file, *FLEET, *sweep, "--plot", str(page))
    assert (done.code, done.err) == (0, "")
    for replicas in (1, 2):
        answers = simulate(TRACE, MAKE(replicas=replicas)).answers()
        assert re.search(rf"^ +0\.9 +{replicas} +{replicas} .*{answers.hit_rate:.1%}", done.out, re.MULTILINE)
    assert re.search(r"^utilization=0.1 replicas=2: .+", done.out, re.MULTILINE)
    written = page.read_text(encoding="utf-8")
    assert "replicas=2" in written
    assert not re.search(r'src="https?:', written), "no outside request"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_sweep_in_json_and_in_both_languages(load_file, terminal, lang):
    sweep = ["--sweep", "router=round-robin,prefix", "--replicas", "2", "--lang", lang]
    rows = told(terminal("simulate", load_file, *FLEET, *sweep, "--json"))
    assert [row["settings"] for row in rows] == [{"router": "round-robin"}, {"router": "prefix"}]
    for row in rows:
        assert (
            row["answers"]["hit_rate"]
            == simulate(TRACE, MAKE(replicas=2, **row["settings"])).answers().hit_rate
        )
    table = terminal("simulate", load_file, *FLEET, *sweep).out
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


def test_links_that_are_guessed_are_said_to_be(load_file, terminal):
    asked = ("simulate", load_file, *FLEET, "--json", "--limit", "3")
    for more, said in (((), False), (("--tp", "2"), True), (("--tp", "2", "--link-gb-s", "50"), False)):
        assert any("--link-gb-s" in line for line in told(terminal(*asked, *more))["assumed"]) == said


@pytest.mark.parametrize("more", [(), ("--fewest", "--p99-ttft", "0.6")], ids=["answers", "fewest"])
def test_runs_at_once_print_what_one_after_the_other_prints(more, load_file, terminal):
    asked = ("simulate", load_file, *FLEET, "--sweep", "utilization=0.9,0.1", "--sweep", "tp=1,2", *more)
    for form in ((), ("--json",)):
        assert terminal(*asked, *form, "--jobs", "2") == terminal(*asked, *form)
    shown = terminal(*asked, "--jobs", "2", is_terminal=True, TERM="xterm")
    assert "4/4" in shown.err, "of the runs"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_an_interrupt_leaves_the_rows_that_are_there(form, lang, load_file, terminal, monkeypatch):
    def interrupted(trace, make, on_row, **given):
        whole = sweep(trace, make, replicas=given["replicas"][:1])
        on_row(whole[0])
        raise KeyboardInterrupt

    asked = ("simulate", load_file, *FLEET, "--lang", lang, *form)
    one = terminal(*asked, "--sweep", "replicas=1")
    monkeypatch.setattr("minikv.cli.simulate_run.sweep", interrupted)
    done = terminal(*asked, "--sweep", "replicas=1,2,3")
    assert (done.code, done.out) == (130, one.out)
    assert done.err == text("simulate.sweep_stopped", lang, done=1, count=3) + "\n"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_fewest_gpus_with_what_limits_them_and_their_assumptions(load_file, terminal, lang):
    found = fewest(TRACE, MAKE, Target(p99_ttft=0.6))
    assert found.replicas > 1
    asked = ("simulate", load_file, *FLEET, "--fewest", "--p99-ttft", "0.6", "--lang", lang)
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


def test_the_fewest_of_several_kinds_of_replicas(load_file, terminal):
    asked = ("--fewest", "--p99-ttft", "0.6", "--sweep", "tp=1,2,7")
    done = terminal("simulate", load_file, *FLEET, *asked)
    assert done.code == 0
    for tp in (1, 2):
        found = fewest(TRACE, partial(MAKE, tp=tp), Target(0.6))
        assert re.search(rf"^ +{tp} +{found.replicas} +{found.gpus} ", done.out, re.MULTILINE)
    assert "tp=7: " in done.out
    rows = told(terminal("simulate", load_file, *FLEET, *asked, "--json"))
    assert [row["answers"] is None for row in rows] == [False, False, True]


def test_a_promise_that_cannot_be_kept_says_why(load_file, terminal):
    done = terminal("simulate", load_file, *FLEET, "--fewest", "--p99-ttft", "0.001")
    assert is_one_sentence(done)
    assert "even with a replica to itself" in done.err


RUNS = [("--replicas", "2"), ("--sweep", "replicas=1,2"), ("--fewest", "--p99-ttft", "60")]


@pytest.mark.parametrize("asked", RUNS, ids=lambda asked: asked[0])
def test_a_run_shows_how_far_it_is_on_a_terminal_alone(asked, load_file, terminal):
    piped = terminal("simulate", load_file, *FLEET, *asked)
    assert piped.err == ""
    shown = terminal("simulate", load_file, *FLEET, *asked, is_terminal=True, TERM="xterm")
    assert f"{len(TRACE)}/{len(TRACE)}" in shown.err
    assert "tokens/s" not in shown.err
    assert shown.out == piped.out
    assert terminal("simulate", load_file, *FLEET, *asked, "--json").err == ""
