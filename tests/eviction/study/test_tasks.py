"""The cases of the eviction tasks: what they promise at any seed and length, and what is refused."""

from collections import Counter

import numpy as np
import pytest

from minikv.errors import ArgumentError
from minikv.eviction.study.tasks import SHORTEST, TASKS, make_cases, stream_cases
from minikv.models.recall import BOS, FIRST_CITY, FIRST_FILLER, FIRST_NAME, MARK, recall_documents
from tests.in_turn import in_turn

LENGTHS = (SHORTEST, 97, 193, 514)
EVERY = [(task, length, seen) for task in TASKS for length in LENGTHS for seen in (False, True)]


def kinds(tokens):
    return np.digitize(tokens, [FIRST_NAME, FIRST_CITY, FIRST_FILLER])  # 0 special, 1 name, 2 city, 3 filler


def facts_of(case, length):
    """(name, what it was given, its place) for each fact of the context: a name that another word of them follows."""
    tokens, found, place = case.tokens[:length].tolist(), [], 0
    while place < length - 1:
        if kinds(tokens[place]) == 1:
            found.append((tokens[place], tokens[place + 1], place + 1))
            place += 1
        place += 1
    return found


@in_turn("task, length, seen", EVERY)
def test_the_context_tells_every_answer_and_the_span_repeats_the_question(task, length, seen):
    for case in make_cases(task, 4, seed=3, length=length, seen=seen):
        tokens = case.tokens
        assert (tokens.dtype, tokens[0], tokens.tolist().count(BOS)) == (np.int64, BOS, 1)
        assert case.context == length + 3 * seen
        facts = facts_of(case, length)
        assert 2 * len(facts) == (np.isin(kinds(tokens[:length]), (1, 2))).sum()
        assert len(case.asked) == 1 or not seen
        assert {position for asked in case.asked for position in asked.positions} == {
            place + 1 for place in np.flatnonzero(tokens == MARK) if place + 1 >= case.context
        }
        for asked in case.asked:
            assert len(asked.positions) == len(asked.answers) == TASKS[task].steps
            assert all(case.context <= position < len(tokens) - 1 for position in asked.positions)
            told = {place for name, given, place in facts}
            assert set(asked.sources) <= told
            right = {answer for answers in asked.answers for answer in answers}
            assert {tokens[place] for place in asked.sources} == right
            for position, answers in zip(asked.positions, asked.answers, strict=True):
                assert tokens[position - 1] == MARK
                assert tokens[position + 1] in answers
                given = [given for name, given, _ in facts if name == tokens[position]]
                assert set(answers) <= set(given)
            if seen:
                assert tokens[length : length + 3].tolist() == [MARK, tokens[asked.positions[0]], MARK]


def given_by_name(case, length):
    found = {}
    for name, given, _ in facts_of(case, length):
        found.setdefault(name, []).append(given)
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_each_task_is_what_its_name_says(length):
    for seed in range(4):
        (single,) = make_cases("single", 1, seed=seed, length=length)
        assert len(facts_of(single, length)) == len(single.asked) == 1

        (multikey,) = make_cases("multikey", 1, seed=seed, length=length)
        assert all(len(given) == 1 for given in given_by_name(multikey, length).values())

        (multivalue,) = make_cases("multivalue", 1, seed=seed, length=length)
        given = given_by_name(multivalue, length)
        for asked in multivalue.asked:
            name = multivalue.tokens[asked.positions[0]]
            assert len(asked.answers[0]) == 2
            assert sorted(asked.answers[0]) == sorted(given[name])

        (tracking,) = make_cases("tracking", 1, seed=seed, length=length)
        given = given_by_name(tracking, length)
        for asked in tracking.asked:
            first, second = (tracking.tokens[position] for position in asked.positions)
            assert (given[first], asked.answers[0]) == ([second], (second,))
            assert given[second] == list(asked.answers[1])
            assert kinds(given[second][0]) == 2
            assert asked.sources[0] < asked.sources[1]

        (aggregation,) = make_cases("aggregation", 1, seed=seed, length=length)
        given = given_by_name(aggregation, length)
        for asked in aggregation.asked:
            name = aggregation.tokens[asked.positions[0]]
            times = Counter(given[name])
            assert sorted(times.values()) == [1, 3]
            assert asked.answers == ((times.most_common(1)[0][0],),)
            assert len(asked.sources) == 3


def test_the_rare_city_is_not_always_told_last():
    """Else whoever answers with the first would be right."""
    last = 0
    for case in make_cases("aggregation", 20):
        for asked in case.asked:
            name = case.tokens[asked.positions[0]]
            last += given_by_name(case, 193)[name][-1] not in asked.answers[0]
    assert 0.1 < last / 120 < 0.4  # a quarter is expected


def test_multikey_is_the_recall_task_itself():
    for case, document in zip(make_cases("multikey", 5, seed=8), recall_documents(5, seed=8), strict=True):
        assert (case.tokens == document.tokens).all()
        assert case.context == 193
        assert [asked.positions[0] for asked in case.asked] == document.positions.tolist()
        assert [asked.answers[0][0] for asked in case.asked] == [q.answer_id for q in document.questions]
        assert [asked.sources[0] for asked in case.asked] == [q.source for q in document.questions]


@pytest.mark.parametrize("task", TASKS)
def test_a_case_depends_on_its_seed_and_number_alone(task):
    few, more, other = (
        make_cases(task, 3, seed=5),
        make_cases(task, 6, seed=5),
        make_cases(task, 3, seed=6),
    )
    assert all((a.tokens == b.tokens).all() and a.asked == b.asked for a, b in zip(few, more, strict=False))
    assert not any((a.tokens == b.tokens).all() for a, b in zip(few, other, strict=True))


@in_turn("task, length, seen", EVERY)
def test_plain_positions_are_those_of_the_span_before_a_filler_and_behind_no_name(task, length, seen):
    (case,) = make_cases(task, 1, length=length, seen=seen)
    plain = set(case.plain.tolist())
    for position in range(len(case.tokens) - 1):
        here, then = kinds(case.tokens[position : position + 2]).tolist()
        assert (position in plain) == (position >= case.context and here >= 2 and then == 3)


def test_a_stream_asks_for_every_fact_again_and_again():
    for length, facts in ((257, 8), (129, 4), (513, 16)):
        for case in stream_cases(3, length=length, facts=facts):
            assert len(case.tokens) == length
            assert len(facts_of(case, case.context)) == facts
            names = [int(case.tokens[asked.positions[0]]) for asked in case.asked]
            assert len(names) == (length - 1 - 6 * facts) // 4
            for start in range(0, len(names) - facts + 1, facts):
                assert len(set(names[start : start + facts])) == facts


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"task": "niah"}, "unknown_choice"),
        ({"count": 0}, "bad_count"),
        ({"count": True}, "bad_count"),
        ({"length": SHORTEST - 1}, "bad_count"),
        ({"seed": -1}, "bad_count"),
    ],
)
def test_what_cannot_be_made_is_refused(given, code):
    with pytest.raises(ArgumentError) as error:
        make_cases(**{"task": "single", "count": 1} | given)
    assert error.value.code == code


def test_a_stream_without_room_is_refused():
    stream_cases(1, length=81, facts=8)
    with pytest.raises(ArgumentError) as error:
        stream_cases(1, length=80, facts=8)
    assert (error.value.code, error.value.values["most"]) == ("recall_room", 7)
