"""What lesson 18 shows: its runs say what its prose says of them, and its paper is never above a run."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from minikv.course.capstone import Plan, floor, serve, tiny_task
from minikv.course.diagrams import plan_room
from minikv.course.lessons.l18.shown import runs_table, score_chart, where_chart
from minikv.course.lessons.l18.time_split import paper_seconds, where_it_went
from minikv.engine import EvictionConfig
from tests.course.diagrams.test_diagrams import NUMBERS

KEPT = EvictionConfig("keydiff", n_sink=4, budget=76, n_recent=16, prefill_chunk=64)


def little(chunk: int) -> EvictionConfig:
    return EvictionConfig("streaming", n_sink=4, budget=0, n_recent=23, prefill_chunk=chunk)


PLANS = {
    "naive": Plan(),
    "4 seats": Plan(max_num_seqs=4),
    "host": Plan(cpu_kv_bytes=2**21),
    "drafts": Plan(prompt_lookup=4),
    "keydiff": Plan(eviction=KEPT, max_num_seqs=16),
    "int8": Plan(kv_dtype="int8"),
    "int8, drafts": Plan(kv_dtype="int8", prompt_lookup=4),
    "int8, keydiff": Plan(kv_dtype="int8", eviction=KEPT, max_num_seqs=16),
    "eager": Plan(kv_dtype="int8", eviction=little(64), max_num_seqs=24),
    "late": Plan(kv_dtype="int8", eviction=little(512), max_num_seqs=24),
}


@cache
def task():
    torch.set_num_threads(1)
    return tiny_task()


@cache
def run(name: str):
    return serve(task(), replace(PLANS[name], label=name))


def test_room_counted_and_not_reading():
    naive, int8 = run("naive"), run("int8")
    share = where_it_went(task(), naive)["cache"] / naive.seconds
    only_reading = 1 / (1 - share * (1 - 288 / 1024))
    assert only_reading < 1.2 < 3 < naive.seconds / int8.seconds
    assert 3 < naive.steps / int8.steps < 4
    assert int8.quality == 1


@pytest.mark.parametrize("name", ["4 seats", "host"])
def test_a_lever_that_has_nothing_to_act_on_changes_nothing(name):
    assert run("naive").preemptions == 0
    assert run(name).seconds == run("naive").seconds


def test_levers_do_not_add_up():
    def saved(name, beside):
        return 1 - run(name).seconds / run(beside).seconds

    assert saved("drafts", "naive") == pytest.approx(0.25, abs=0.05)
    assert saved("keydiff", "naive") == pytest.approx(0.25, abs=0.05)
    assert saved("int8, drafts", "int8") > 0.15
    assert saved("int8, keydiff", "int8") < 0.1
    assert run("int8, drafts").score == max(run(name).score for name in PLANS)


def test_eviction_pays_with_records_and_with_what_is_found():
    found = run("keydiff")
    assert found.num_blocks < run("naive").num_blocks
    assert found.hit_rate == 0 < run("naive").hit_rate
    assert found.computed_tokens > run("naive").computed_tokens
    assert found.quality == 1


def test_forgetting_early_is_fast_and_worth_nothing_and_the_bar_sees_only_what_it_asks():
    eager, late = run("eager"), run("late")
    assert eager.seconds < min(run("int8").seconds, run("int8, keydiff").seconds)
    assert eager.quality < 0.4 < task().quality
    assert eager.score == 0
    assert late.quality == 1
    assert late.seconds < eager.seconds


@pytest.mark.parametrize("name", PLANS)
def test_paper_is_a_bound_of_every_plan_and_never_below_the_floor(name):
    paper = paper_seconds(task(), PLANS[name])
    assert floor(task()).seconds <= paper <= run(name).seconds


@pytest.mark.parametrize("name", ["naive", "int8, drafts", "keydiff"])
def test_the_parts_of_a_run_are_its_seconds(name):
    parts = where_it_went(task(), run(name))
    assert sum(parts.values()) == pytest.approx(run(name).seconds)
    assert min(parts.values()) >= 0


def test_tables_and_charts_say_the_runs():
    runs = [run("naive"), run("eager")]
    table = runs_table(runs).text().splitlines()
    head = ["seconds", "quality", "score", "steps", "preemptions", "prompt tokens found", "tokens computed"]
    assert re.split(r" {2,}", table[0].strip()) == head
    assert f"{runs[0].seconds:.3f}" in table[1]
    assert "% x " in table[2], "below the bar"
    chart = where_chart(task(), runs)
    assert [len(bar.x) for bar in chart.figure.data] == [2] * 6
    for column, each in enumerate(runs):  # a faster run has a shorter bar
        assert sum(bar.x[column] for bar in chart.figure.data) == pytest.approx(each.seconds, abs=0.003)
        shares = [int(bar.text[column].rstrip("%")) for bar in chart.figure.data]
        assert sum(shares) == pytest.approx(100, abs=3)
    board = score_chart(runs, 0.5)
    assert [list(bar.y) for bar in board.figure.data] == [["naive"], ["eager"]]
    assert board.figure.layout.shapes[0].x0 == 0.5
    assert f"naive: {runs[0].seconds:.3f} s, {runs[0].score:.1f}" in board.text()


@pytest.mark.parametrize("dtype", [None, "bf16", "int8"])
@pytest.mark.parametrize("size", [16, 64])
def test_the_room_of_a_plan_is_as_many_requests_as_its_blocks_hold(dtype, size):
    plan = Plan(kv_dtype=dtype, block_size=size)
    english, chinese = (plan_room(task(), [plan], lang) for lang in ("en", "zh"))
    blocks, needed = plan.num_blocks_for(task()), -(-(task().max_model_len - 1) // size)
    row = english.text().splitlines()[-1].split()
    assert [int(one.replace(",", "")) for one in row[-4:]] == [
        task().spec(dtype).slope(),
        blocks,
        needed,
        blocks // needed,
    ]
    assert english.svg.count(">1</text>") == 1
    assert f">{blocks // needed}</text>" in english.svg
    assert sorted(NUMBERS.findall(english.alt)) == sorted(NUMBERS.findall(chinese.alt))
