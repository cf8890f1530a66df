"""Lesson 18: its exercises, predictions and questions do what a learner relies on."""

import heapq
import math
import random
from itertools import accumulate

import pytest
import torch

from minikv import LLM
from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l11a.load import random_load, run_load
from minikv.course.lessons.l18.admission import enter
from minikv.course.lessons.l18.admission_rules import compare_doors, door, groups_load
from minikv.course.lessons.l18.best_plan import Served, allowed, best_plan, run_best
from minikv.course.lessons.l18.plan_bytes import room
from minikv.course.lessons.l18.time_floor import floor_seconds
from minikv.engine import EvictionConfig
from minikv.models import load
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("18")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


# Right answers, written otherwise ---------------------------------------------------------------------------


def room_step_by_step(kv_bytes, seats, token, block_size, longest, keeps):
    left = kv_bytes
    if keeps:
        for _ in range(seats):
            left -= token["layers"] * token["kv_heads"] * keeps["places"] * (8 + 4 * keeps["fields"])
        longest = min(longest, keeps["places"])
    row = token["head_dim"] * token["itemsize"] + token["scale"]
    blocks = 0
    while left >= (blocks + 1) * block_size * row * 2 * token["kv_heads"] * token["layers"]:
        blocks += 1
    each = math.ceil(longest / block_size)
    return blocks, sum(1 for seat in range(1, seats + 1) if seat * each <= blocks)


def room_by_division(kv_bytes, seats, token, block_size, longest, keeps):
    rows = 2 * token["layers"] * token["kv_heads"]  # of K and of V
    records = 0 if keeps is None else rows // 2 * seats * keeps["places"] * 4 * (2 + keeps["fields"])
    blocks, _ = divmod(
        max(kv_bytes - records, 0),
        rows * block_size * (token["head_dim"] * token["itemsize"] + token["scale"]),
    )
    held = longest if keeps is None or longest < keeps["places"] else keeps["places"]
    most = blocks // ((held + block_size - 1) // block_size)
    return [blocks, most if most < seats else seats]


def enter_with_a_set(running, waiting, num_blocks, block_size, seats):
    there, owed, count = set(), 0, 0
    for number, sequence in enumerate([*running, *waiting]):
        new = set(sequence["blocks"]) - there
        more = (sequence["stored"] + block_size - 1) // block_size - len(sequence["blocks"])
        if number >= len(running):
            if number == seats or len(there) + len(new) + owed + more > num_blocks:
                return count
            count += 1
        there |= new
        owed += more
    return count


def enter_by_sums(running, waiting, num_blocks, block_size, seats):
    """How much each moment would need, first; then the longest row of newcomers that all fit."""

    def need(sequences):
        table = {block for each in sequences for block in each["blocks"]}
        return len(table) + sum(math.ceil(e["stored"] / block_size) - len(e["blocks"]) for e in sequences)

    needs = [need([*running, *waiting[: count + 1]]) for count in range(len(waiting))]
    highest = list(accumulate(needs, max))
    free = max(0, seats - len(running))
    return min(free, sum(1 for each in highest if each <= num_blocks))


def floor_backwards(requests, weights, token, overhead, drafts):
    """From the last moment to the first; what was known before a moment is what those before it have brought."""
    moments = sorted({each["arrival"] for each in requests}, reverse=True)
    best = 0.0
    for moment in moments:
        known = {each["group"] for each in requests if each["arrival"] < moment}
        work, longest = 0, 1
        for each in requests:
            if each["arrival"] < moment:
                continue
            work += each["prompt"] - (each["prefix"] if each["group"] in known else 0) + each["new"] - 1
            known.add(each["group"])
            if each["arrival"] == moment:
                longest = max(longest, 1 + math.ceil((each["new"] - 1) / (drafts + 1)))
        best = max(best, moment + max(work * token, longest * weights) + longest * overhead)
    return best


def floor_from_tables(requests, weights, token, overhead, drafts):
    """Who brings each group's prefix is settled first; then a sum for each moment."""
    ends = []
    for this in requests:
        later = [each for each in requests if not each["arrival"] < this["arrival"]]
        before = [each["group"] for each in requests if each["arrival"] < this["arrival"]]
        firsts = {each["group"]: each["prefix"] for each in later if each["group"] not in before}
        own = sum(each["prompt"] - each["prefix"] + each["new"] for each in later) - len(later)
        steps = 1 + (this["new"] + drafts - 1) // (drafts + 1)
        work = (own + sum(firsts.values())) * token
        ends.append(
            steps * overhead + (work if work > steps * weights else steps * weights) + this["arrival"]
        )
    return max(ends)


def best_with_a_heap(plans, paper, run, bar):
    heap = [(paper(plan), plan) for plan in range(plans)]
    heapq.heapify(heap)
    best = (math.inf, None)
    while heap and heap[0][0] < best[0]:
        _, plan = heapq.heappop(heap)
        served = run(plan)
        if served.quality >= bar:
            best = min(best, (served.seconds, plan))
    return best[1]


def best_by_asking_again(plans, paper, run, bar):
    left, best, seconds = set(range(plans)), None, math.inf
    while left:
        plan = min(left, key=lambda each: (paper(each), each))
        if best is not None and paper(plan) >= seconds:
            break
        left.remove(plan)
        taken, share = run(plan)
        if not share < bar and taken < seconds:
            best, seconds = plan, taken
    return best


# What a learner relies on -----------------------------------------------------------------------------------


def test_room():
    assert_exercise(EXERCISES["18.1"], right=[room_step_by_step, room_by_division])


def test_enter():
    assert_exercise(EXERCISES["18.2"], right=[enter_with_a_set, enter_by_sums], sequences="waiting")


def test_floor_seconds():
    assert_exercise(EXERCISES["18.3"], right=[floor_backwards, floor_from_tables], sequences="requests")


def test_best_plan():
    def stub(plans, paper, run, bar):
        raise NotImplementedError

    right = [best_with_a_heap, best_by_asking_again]
    assert_exercise(EXERCISES["18.4"], right=right, stub=stub)


def test_a_plan_that_is_not_there_is_an_error_of_the_learner():
    verdict = run_check(EXERCISES["18.4"], lambda plans, paper, run, bar: run(plans).seconds)
    assert verdict.kind == "raised"


# What the exercises claim -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "kv_dtype"), [("h2o", None), ("streaming", "int8")])
def test_the_room_of_18_1_is_the_engines_to_the_byte(policy, kv_dtype):
    """An LLM of so many blocks is within the budget, records included; one block more is not."""
    params = EvictionConfig(policy, n_sink=4, budget=44, n_recent=16, prefill_chunk=32)
    options = {"max_num_seqs": 6, "max_batched_tokens": 64, "max_model_len": 200, "block_size": 16}
    with LLM(tiny(), num_blocks=16, eviction=params, kv_dtype=kv_dtype, **options) as llm:
        records = llm.memory_report().record_bytes
        places = llm.eviction.peak
    head = {"layers": 2, "kv_heads": 2, "head_dim": 32}
    token = head | ({"itemsize": 4, "scale": 0} if kv_dtype is None else {"itemsize": 1, "scale": 4})
    fields = records // (2 * 2 * 6 * places) // 4 - 2
    keeps = {"places": places, "fields": fields}
    budget = 600_000
    blocks, at_once = room(budget, 6, token, 16, 199, keeps)
    assert at_once == min(6, blocks // -(-places // 16))
    for number, fits in ((blocks, True), (blocks + 1, False)):
        with LLM(tiny(), num_blocks=number, eviction=params, kv_dtype=kv_dtype, **options) as llm:
            memory = llm.memory_report()
        assert (memory.kv_bytes + memory.record_bytes <= budget) is fits


def tiny():
    torch.set_num_threads(1)
    return load("tiny-gqa", device="cpu")


@pytest.mark.parametrize(("seed", "num_blocks"), [(0, 24), (1, 45), (2, 45), (3, 90)])
def test_whoever_comes_in_by_18_2_never_has_to_leave(seed, num_blocks):
    """With the engine's own scheduler, on loads that share documents and on loads that share nothing."""
    for asks in (groups_load(seed), random_load(30, (4, 120), (1, 150), seed)):
        ran = run_load(asks, num_blocks, rules=door(enter))
        assert ran.preemptions == ran.recomputed == 0
        assert ran.generated == sum(ask.new for ask in asks), "everybody gets an answer"


def test_the_doors_differ_where_blocks_are_short_and_not_where_they_are_many():
    short = compare_doors(enter)
    assert short["fits now"].preemptions > short["engine"].preemptions > short["yours"].preemptions == 0
    assert short["yours"].computed < short["engine"].computed < short["fits now"].computed
    assert short["yours"].steps > short["engine"].steps
    wide = compare_doors(enter, num_blocks=400)
    assert len({ran.steps for ran in wide.values()}) == 1


def test_a_door_that_is_not_written_yet_is_no_error():
    def stub(running, waiting, num_blocks, block_size, seats):
        raise NotImplementedError

    found = compare_doors(stub, load=groups_load(0, 6))
    assert found["yours"] is None
    assert found["engine"].generated > 0


@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_comes_below_the_floor_of_18_3(seed):
    """A machine that serves steps of at most so many tokens, in some order of its own, on the same clock."""
    rng = random.Random(seed)
    for case in EXERCISES["18.3"].draw(seed):
        ends = [any_schedule(case, rng) for _ in range(4)]
        assert min(ends) >= floor_seconds(**case) - 1e-9


def any_schedule(case, rng) -> float:
    """Seconds of a run with luck: prefixes are found, drafts are right."""
    now, left, known = 0.0, [], set()
    waiting = list(case["requests"])
    most = rng.choice([16, 64, 400])
    while waiting or left:
        if not left:
            now = max(now, waiting[0]["arrival"])
        while waiting and waiting[0]["arrival"] <= now:
            request = waiting.pop(0)
            found = request["prefix"] if request["group"] in known else 0
            known.add(request["group"])  # as if the first were done at once: luck that no run has
            left.append([request["prompt"] - found, request["new"], False])
        budget, tokens = most, 0
        for sequence in rng.sample(left, len(left)):
            if not budget:
                break
            taken = min(budget, sequence[0])
            sequence[0] -= taken
            tokens, budget = tokens + taken, budget - taken
            if sequence[0] == 0:
                guessed = min(sequence[1] - 1, rng.randint(0, case["drafts"])) if sequence[2] else 0
                tokens += guessed
                sequence[:] = 1, sequence[1] - 1 - guessed, True
        now += max(case["weights"], tokens * case["token"]) + case["overhead"]
        left = [sequence for sequence in left if sequence[1]]
    return now


@pytest.mark.parametrize("seed", range(3))
def test_the_paper_of_18_4_is_a_bound_and_the_answer_is_the_best(seed):
    for case in EXERCISES["18.4"].draw(seed):
        paper, seconds, quality, bar = (case[each] for each in ("paper", "seconds", "quality", "bar"))
        assert all(low <= real for low, real in zip(paper, seconds, strict=True))
        kept = [plan for plan, share in enumerate(quality) if share >= bar]
        expected = min(kept, key=seconds.__getitem__, default=None)
        assert run_best(best_plan, **case) == {"plan": expected, "ran_too_many": False}
        assert allowed(**case) <= len(paper)


def test_there_are_cases_where_few_runs_are_enough_and_cases_without_an_answer():
    cases = EXERCISES["18.4"].draw(0)
    spared = [len(case["paper"]) - allowed(**case) for case in cases]
    assert max(spared) >= 5
    answers = [run_best(best_plan, **case)["plan"] for case in cases]
    assert None in answers
    assert len({each for each in answers if each is not None}) > 3


def test_what_a_run_returns_can_be_taken_apart():
    seconds, quality = Served(1.5, 0.9)
    assert (seconds, quality) == (1.5, 0.9)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "18")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "18")
