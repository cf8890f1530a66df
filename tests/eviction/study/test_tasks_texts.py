"""Texts of the eviction tasks: as long as asked, with every needle in them, and answers that only they give."""

import re
from collections import Counter

import pytest

from minikv.errors import ArgumentError
from minikv.eviction.study.text_tasks import HAY, TEXT_TASKS, WORDS, Text, make_text


def words_in(text):
    return len(re.findall(r"\w+|[^\w\s]", text))


def make(task, length=900, **given):
    return make_text(task, length=length, count_tokens=words_in, **given)


@pytest.mark.parametrize("task", TEXT_TASKS)
@pytest.mark.parametrize("length", [700, 1_111, 20_000])
def test_a_text_is_as_long_as_asked_and_tells_its_answers(task, length):
    for number in range(3):
        text = make(task, length, number=number)
        took = words_in(text.context + text.question)
        assert length - 12 < took <= length
        assert text.answers
        assert len(set(text.answers)) == len(text.answers)
        assert all(answer in text.context for answer in text.answers)
        assert not any(answer in text.question for answer in text.answers)


def test_needles_stand_anywhere_and_say_what_they_say_once():
    places = []
    for number in range(40):
        text = make("niah", number=number)
        (answer,) = text.answers
        needle = re.findall(r'The number for the word "(\w+)" is (\d+)\.', text.context)
        assert [value for _, value in needle] == [answer]
        assert needle[0][0] in text.question
        places.append(text.context.index(answer) / len(text.context))
    assert min(places) < 0.15
    assert max(places) > 0.85


def test_many_keys_and_many_values():
    text = make("multikey", 2_000)
    told = dict(re.findall(r'word "(\w+)" is (\d+)\.', text.context))
    (asked,) = {word for word in told if f'"{word}"' in text.question}
    assert len(told) == len(set(told.values())) == 24
    assert text.answers == (told[asked],)
    text = make("multivalue", 2_000)
    told = re.findall(r'word "(\w+)" is (\d+)\.', text.context)
    assert len({word for word, _ in told}) == 1
    assert {value for _, value in told} == set(text.answers)
    assert len(text.answers) == 4


def test_chains_lead_to_the_number_that_is_asked_for():
    for number in range(5):
        text = make("tracking", number=number)
        given = dict(re.findall(r"The value of (\w+) is (?:the value of )?(\w+)\.", text.context))
        (asked,) = re.findall(r"\d+", text.question.split("value")[1])[:1]

        def value(word, given=given):
            return value(given[word]) if given[word] in given else given[word]

        assert {word for word in given if value(word) == asked} == set(text.answers)
        assert len(given) == 2 * len(text.answers)


@pytest.mark.parametrize("length", [700, 20_000])
def test_the_frequent_words_are_the_most_frequent(length):
    text = make("aggregation", length)
    counts = Counter(text.context.split("\n\n")[1].split())
    most = counts.most_common(6)
    assert {word for word, _ in most[:5]} == set(text.answers)
    assert most[5][1] < most[4][1]


def test_no_word_stands_in_another_or_in_the_hay():
    hay = " ".join(HAY).lower()
    for word in WORDS:
        assert word not in hay
        assert [other for other in WORDS if word in other] == [word]


def test_a_text_depends_on_seed_and_number():
    assert make("multikey", seed=3, number=4) == make("multikey", seed=3, number=4)
    texts = {make("multikey", seed=seed, number=number).context for seed in range(3) for number in range(3)}
    assert len(texts) == 9


def test_the_share_of_answers_that_were_said():
    text = Text("", "", ("Amber", "12345"))
    assert (text.share("amber, 12345."), text.share("AMBER"), text.share("12354")) == (1, 0.5, 0)
    with pytest.raises(ArgumentError):
        Text("", "", ()).share("amber")


@pytest.mark.parametrize(
    ("given", "code"),
    [({"task": "single"}, "unknown_choice"), ({"length": 20}, "out_of_range"), ({"length": 0}, "bad_count")],
)
def test_what_cannot_be_made_is_refused(given, code):
    with pytest.raises(ArgumentError) as error:
        make(**{"task": "niah"} | given)
    assert error.value.code == code


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_the_least_length_that_is_named_is_enough(task):
    with pytest.raises(ArgumentError) as error:
        make(task, 5)
    least = error.value.values["low"] + 1
    assert words_in("".join((lambda text: (text.context, text.question))(make(task, least)))) <= least
    with pytest.raises(ArgumentError):
        make(task, least - 1)
