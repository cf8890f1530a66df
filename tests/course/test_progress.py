"""Progress as data: what is solved stays solved, merging is safe to repeat, and only what we wrote is read."""

import json
import random

import pytest

import minikv
from minikv.course.progress import FORMAT, Attempts, Progress, parse_progress
from minikv.errors import LARGEST_COUNT, ConfigError

TASKS = [f"{lesson}.{place}" for lesson in ("00", "01", "02b", "03") for place in range(1, 4)] + [
    "A.1",
    "B.12",
]


def some(rng: random.Random) -> Progress:
    chosen = rng.sample(TASKS, rng.randint(0, len(TASKS)))
    return Progress(
        {
            task: Attempts(
                rng.choice([1, 2, 7, LARGEST_COUNT]),
                rng.random() < 0.5,
                rng.choice([None, 0, -3, 41, LARGEST_COUNT]),
                rng.choice(["0.1.0", "1.0rc1+cpu"]),
            )
            for task in chosen
        }
    )


def test_what_is_written_is_read():
    for number in range(200):
        progress = some(random.Random(number))
        assert parse_progress(progress.as_json().encode(), "p") == progress


def test_attempts_are_counted_up_to_the_one_that_passes():
    rng = random.Random(0)
    progress, counted, solved = Progress(), dict.fromkeys(TASKS, 0), {}
    for number in range(400):
        task, passed = rng.choice(TASKS), rng.random() < 0.1
        before = progress
        progress = progress.after(task, passed, number)
        if task in solved:
            assert progress is before, "what is solved stays as it was solved"
            continue
        counted[task] += 1
        tried = progress.tasks[task]
        assert tried == Attempts(counted[task], passed, number, minikv.__version__)
        if passed:
            solved[task] = number
        assert progress.solved == set(solved)
    assert len(solved) > 5


@pytest.mark.parametrize("seed", ["a", None, 1.5, True, 10**5000, -(10**5000), [], object()], ids="abcdefgh")
def test_a_seed_that_is_no_number_of_this_machine_is_left_out(seed):
    progress = Progress().after("02.1", True, seed)
    assert progress.tasks["02.1"].seed is None
    assert parse_progress(progress.as_json().encode(), "p") == progress


def test_merging_loses_nothing_and_may_be_repeated():
    for number in range(200):
        rng = random.Random(number)
        mine, theirs, third = some(rng), some(rng), some(rng)
        both = mine.merged(theirs)
        assert both.solved == mine.solved | theirs.solved
        assert both.solved == theirs.merged(mine).solved
        assert set(both.tasks) == set(mine.tasks) | set(theirs.tasks)
        for task in mine.solved:
            assert both.tasks[task] == mine.tasks[task]
        for task in set(both.tasks) - mine.solved:
            counts = [one.tasks[task].attempts for one in (mine, theirs) if task in one.tasks]
            assert both.tasks[task].attempts == max(counts)
        assert both.merged(theirs) == both
        assert both.merged(both) == both
        assert mine.merged(Progress()) == mine
        assert Progress().merged(mine) == mine
        assert both.merged(third).solved == mine.merged(theirs.merged(third)).solved


def test_nothing_that_a_learner_wrote_is_in_it():
    def my_secret_function(lengths, block_size):
        return "my secret"

    data = json.loads(Progress().after("02.1", False, my_secret_function).as_json())
    assert data == {
        "format": FORMAT,
        "tasks": {
            "02.1": {"attempts": 1, "passed": False, "seed": None, "version": minikv.__version__},
        },
    }


GOOD = {"attempts": 3, "passed": False, "seed": 0, "version": "0.1.0"}
DAMAGED = {
    "empty": b"",
    "half": Progress({"02.1": Attempts(1, True, 0, "0.1.0")}).as_json().encode()[:-20],
    "bytes": b"\xff\xfe\x00\x01",
    "deep": b"[" * 100_000,
    "long": b'{"format": 1, "tasks": {"02.1": ' + b"9" * 10_000 + b"}}",
    "list": b"[]",
    "none": b"null",
    "no format": b'{"tasks": {}}',
    "format true": b'{"format": true, "tasks": {}}',
    "format zero": b'{"format": 0, "tasks": {}}',
    "tasks list": b'{"format": 1, "tasks": []}',
    "notebook": json.dumps({"cells": [], "nbformat": 4}).encode(),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_record_is_refused_by_name(content):
    with pytest.raises(ConfigError) as refused:
        parse_progress(content, "some/file.json")
    assert refused.value.code == "progress_damaged"
    for lang in ("en", "zh"):
        assert "some/file.json" in refused.value.text(lang)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("02.1", {"attempts": 0}),
        ("02.1", {"attempts": True}),
        ("02.1", {"attempts": 1.0}),
        ("02.1", {"attempts": 2**63}),
        ("02.1", {"passed": 1}),
        ("02.1", {"passed": None}),
        ("02.1", {"seed": "0"}),
        ("02.1", {"seed": 2**63}),
        ("02.1", {"version": 1}),
        ("02.1", {"version": "<script>"}),
        ("02.1", {"version": ""}),
        ("", {}),
        ("02", {}),
        ("../../etc", {}),
        ("02.1\n", {}),
        ("\ud800.1", {}),
    ],
)
def test_a_single_wrong_field_is_found(task, changes):
    good = json.dumps({"format": 1, "tasks": {"02.1": GOOD, "02.2": GOOD}})
    assert len(parse_progress(good.encode(), "p").tasks) == 2
    bad = json.dumps({"format": 1, "tasks": {"02.2": GOOD, task: GOOD | changes}})
    with pytest.raises(ConfigError) as refused:
        parse_progress(bad.encode(), "p")
    assert refused.value.code == "progress_damaged"
    for name in changes:
        assert name in refused.value.text()


def test_a_missing_field_is_found_and_a_new_one_is_passed_over():
    for name in GOOD:
        left = {key: value for key, value in GOOD.items() if key != name}
        with pytest.raises(ConfigError):
            parse_progress(json.dumps({"format": 1, "tasks": {"02.1": left}}).encode(), "p")
    more = {"format": 1, "tasks": {"02.1": GOOD | {"note": "x"}}, "other": 1}
    assert parse_progress(json.dumps(more).encode(), "p").tasks["02.1"].attempts == 3


def test_a_newer_form_says_so():
    with pytest.raises(ConfigError) as refused:
        parse_progress(json.dumps({"format": FORMAT + 1, "anything": 0}).encode(), "p")
    assert refused.value.code == "progress_newer"
