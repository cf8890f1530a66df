"""Diagrams of batches: seats and what idles on them, blocks against the pool's limit, tokens below a budget."""

import re
from xml.etree import ElementTree

import pytest

from minikv.blocks import BlockManager
from minikv.course.diagrams import engine_parts, packed_step, preemptions, seats, step_tokens
from minikv.course.diagrams.engine_parts import callers_of
from minikv.course.diagrams.seats import seat_table
from minikv.course.lessons.l11a.load import Ask, random_load, run_batches, run_load
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.engine import SamplingParams, Scheduler
from minikv.look import look

SVG = "{http://www.w3.org/2000/svg}"


def asks(*answers, prompt=6):
    return [Ask(tuple(range(100 * i, 100 * i + prompt)), new) for i, new in enumerate(answers)]


def both(answers=(2, 5, 3, 4), size=2):
    load = asks(*answers)
    options = {"num_blocks": 64, "max_num_seqs": size, "max_batched_tokens": 64}
    return {"one": run_batches(load, size, **options), "two": run_load(load, **options)}


def crowded(num_blocks=9, requests=3):
    return run_load(asks(*[12] * requests), num_blocks, block_size=4, max_batched_tokens=64)


def chunked(*budgets):
    load = [*asks(8, 8, prompt=2), Ask(tuple(range(5000, 5040)), 2, arrival=2)]
    return {budget: run_load(load, 64, max_num_seqs=8, max_batched_tokens=budget) for budget in budgets}


def seats_drawn(lang):
    return seats(both(), 2, lang)


def preemptions_drawn(lang):
    return preemptions(crowded(), lang)


def tokens_drawn(lang):
    return step_tokens(chunked(64, 16), lang)


def mixed(budget=9):
    """A decode, a prompt with a prefix that is found, and as much of a long prompt as the budget leaves."""
    scheduler = Scheduler(BlockManager(32, block_size=4), max_num_seqs=8, max_batched_tokens=budget)
    scheduler.add("A", range(5), SamplingParams(max_tokens=4))
    scheduler.finish(scheduler.schedule(), [7])
    scheduler.add("B", [*range(4), 50, 51], SamplingParams(max_tokens=4))
    scheduler.add("C", range(100, 120), SamplingParams(max_tokens=4))
    return scheduler.schedule()


def packed_drawn(lang):
    return packed_step(mixed(), lang)


BATCHING = {
    "engine parts": engine_parts,
    "packed step": packed_drawn,
    "seats": seats_drawn,
    "preemptions": preemptions_drawn,
    "step tokens": tokens_drawn,
}


def rects(diagram):
    return list(ElementTree.fromstring(diagram.svg).iter(SVG + "rect"))


@pytest.mark.parametrize("answers", [(2, 5, 3, 4), (1, 9, 1, 9, 2)])
def test_a_cell_is_idle_or_gives_a_token(answers):
    runs = both(answers)
    for ran, title in zip(
        runs.values(), re.findall(r"(\d+) of (\d+) cells idle", seats(runs, 2).text()), strict=True
    ):
        idle, cells = map(int, title)
        assert cells == 2 * ran.steps
        assert cells - idle == ran.generated
    assert runs["two"].steps <= runs["one"].steps


def test_a_request_keeps_its_seat_and_no_two_share_one():
    table = seat_table(run_load(asks(3, 7, 2, 4, 5), 64, max_num_seqs=3), 3)
    for number in range(5):
        assert sum(number in row for row in table) == 1
    for row in table:
        order = [number for number in row if number is not None]
        assert order == sorted(order)


def test_the_blocks_of_all_requests_stay_below_the_limit_and_reach_it():
    ran = crowded()
    totals = [sum(row[step] for row in ran.held) for step in range(ran.steps)]
    assert ran.preemptions
    assert max(totals) == ran.num_blocks
    assert f"blocks held, step by step: {' '.join(map(str, totals))}" in preemptions(ran).text()


@pytest.mark.parametrize("num_blocks", [9, 40])
def test_each_preemption_is_a_mark(num_blocks):
    ran = crowded(num_blocks)
    diagram = preemptions(ran)
    warning = {"fill": look("warning").fill}
    pattern = [
        one
        for one in ElementTree.fromstring(diagram.svg).iter(SVG + "pattern")
        if one[0].get("fill") == warning["fill"]
    ]
    marks = [one for one in rects(diagram) if one.get("fill") == f"url(#{pattern[0].get('id')})"]
    assert len(marks) == ran.preemptions + 1  # and the legend
    assert f"{ran.preemptions} preemptions, {ran.recomputed} tokens computed again" in diagram.text()


def test_no_step_is_over_its_budget_and_all_tokens_are_drawn():
    runs = chunked(64, 16)
    text = step_tokens(runs).text()
    for budget, ran in runs.items():
        assert max(ran.tokens) <= budget
        assert f"tokens, step by step: {' '.join(map(str, ran.tokens))}" in text
        assert [sum(row[step] for row in ran.parts) for step in range(ran.steps)] == list(ran.tokens)
    assert "chunks of the long prompt: 1;" in text
    assert "chunks of the long prompt: 3;" in text


def test_heights_of_all_budgets_are_to_one_scale():
    diagram = step_tokens(chunked(64, 16))
    heights = sorted(
        {float(one.get("height")) for one in rects(diagram) if one.get("fill", "").startswith("url")}
    )
    assert heights[-1] / 160 == pytest.approx(40 / 42, abs=0.01)  # 40 of the 42 tokens of the largest step


def test_what_a_run_held_is_what_the_scheduler_counts():
    ran = run_load(random_load(12, (4, 30), (4, 30), seed=3), 14, block_size=8)
    for row, ends in zip(ran.held, ran.ends, strict=True):
        assert [blocks * 8 >= end for blocks, end in zip(row, ends, strict=True)] == [True] * ran.steps
    assert max(sum(row[step] for row in ran.held) for step in range(ran.steps)) <= 14


@pytest.mark.parametrize("budget", [9, 14])
def test_a_packed_step_shows_the_arrays_of_its_forward(budget):
    step = mixed(budget)
    *sequences, total = packed_step(step).text().splitlines()
    batch = step.batch
    found = [re.search(r"positions ([\d ]+);.*slots ([\d ]+);", line) for line in sequences]
    assert [int(n) for each in found for n in each[1].split()] == batch.positions.tolist()
    assert [int(n) for each in found for n in each[2].split()] == batch.slot_mapping[0].tolist()
    for line, length, item in zip(sequences, batch.lengths.tolist(), step.items, strict=True):
        assert f"sees {length}, samples {len(item.samples)}" in line
    assert total.startswith(f"query_starts ends with {budget}:")


def test_every_part_is_drawn_with_its_exercise_and_what_uses_it():
    text = engine_parts().text()
    for part in PARTS:
        assert callers_of(part)
        assert f"{part.qualname}, exercise {part.task}: used by {', '.join(callers_of(part))}" in text


@pytest.mark.parametrize(
    ("task", "callers"),
    [
        ("02.1", ["LLM.measure_num_blocks"]),  # and no function that has an argument of that name
        ("09.7", ["Scheduler.make_room"]),  # and no list that something is appended to
        ("10.5", ["attend"]),
        ("11a.4", ["Scheduler.schedule"]),
    ],
)
def test_a_use_is_one_in_the_source_of_nano(task, callers):
    assert callers_of(PART_OF[task]) == callers
