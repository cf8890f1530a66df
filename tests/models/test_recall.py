"""Documents of the recall task: what they promise, at any size, and what is refused."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from minikv.errors import ArgumentError
from minikv.models import recall_documents, recall_prompt
from minikv.models.recall import (
    _SUCCESSORS,
    BOS,
    CITIES,
    FILLERS,
    FIRST_CITY,
    FIRST_FILLER,
    FIRST_NAME,
    MARK,
    NAMES,
    WORDS,
)

SIZES = [
    {},
    {"facts": 1, "context": 2, "queries": 1, "span": 3},  # not one filler
    # Every name; each fact asked twice, two thrice.
    {"facts": 64, "context": 128, "queries": 130, "span": 390},
    {"facts": 3, "context": 40, "queries": 7, "span": 22},
    {"facts": 24, "context": 960, "queries": 16, "span": 64},
]
DEFAULTS = {"facts": 24, "context": 192, "queries": 16, "span": 64}


@pytest.mark.parametrize("given", SIZES)
def test_every_question_is_answered_by_one_fact_of_the_context(given):
    sizes = DEFAULTS | given
    for document in recall_documents(5, seed=11, **given):
        tokens = document.tokens
        assert (tokens.dtype, len(tokens)) == (np.int64, 1 + sizes["context"] + sizes["span"])
        context, span = tokens[: 1 + sizes["context"]].tolist(), tokens[1 + sizes["context"] :].tolist()
        assert (context[0], tokens.tolist().count(BOS), span.count(MARK)) == (BOS, 1, sizes["queries"])
        names = [place for place, token in enumerate(context) if FIRST_NAME <= token < FIRST_CITY]
        cities = [place for place, token in enumerate(context) if FIRST_CITY <= token < FIRST_FILLER]
        assert cities == [place + 1 for place in names]
        assert len(names) == sizes["facts"] == len({context[place] for place in names})
        assert len({context[place] for place in cities}) == sizes["facts"]
        assert len(document.questions) == sizes["queries"]
        for question in document.questions:
            asked, said = tokens[question.source - 1], tokens[question.source]
            assert question.source < len(context) < question.position
            assert (tokens[question.position - 1], tokens[question.position]) == (MARK, asked)
            assert tokens[question.position + 1] == said == question.answer_id
            assert (WORDS[asked], WORDS[said]) == (question.name, question.answer)
        assert document.positions.tolist() == [question.position for question in document.questions]


@pytest.mark.parametrize("given", SIZES)
def test_every_fact_is_asked_for_once_before_any_is_asked_twice(given):
    facts = (DEFAULTS | given)["facts"]
    for document in recall_documents(3, seed=2, **given):
        asked = [question.source for question in document.questions]
        for start in range(0, len(asked), facts):
            turn = asked[start : start + facts]
            assert len(set(turn)) == len(turn)


def test_fillers_follow_each_other_by_the_rule_facts_or_not():
    for document in recall_documents(4, seed=5):
        fillers = [token - FIRST_FILLER for token in document.tokens if token >= FIRST_FILLER]
        assert all(after in _SUCCESSORS[before] for before, after in pairwise(fillers))


def test_all_words_are_used_and_none_twice():
    assert len(set(WORDS)) == len(WORDS) == 4 + 3 * 64 == 4 + len(NAMES) + len(CITIES) + len(FILLERS)
    assert all(word.isalpha() and word.islower() for word in WORDS[4:])
    seen = {token for document in recall_documents(60, seed=1) for token in document.tokens.tolist()}
    assert seen == set(range(BOS, len(WORDS)))
    assert {after for row in _SUCCESSORS for after in row} == set(range(len(FILLERS)))


def test_a_seed_gives_the_same_documents_however_many_are_asked_for():
    few, many = recall_documents(2, seed=9), recall_documents(5, seed=9)
    assert all((a.tokens == b.tokens).all() for a, b in zip(few, many, strict=False))
    texts = {document.text for seed in range(4) for document in recall_documents(5, seed=seed)}
    assert len(texts) == 20


def test_a_prompt_ends_with_its_question_and_says_not_the_answer_twice():
    for seed in range(20):
        prompt = recall_prompt(seed)
        words = prompt.text.split()
        assert words[-2] == "?"
        assert words.count(prompt.answer) == 1
        assert words[words.index(words[-1]) + 1] == prompt.answer
        assert len(words) == 24 + 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"facts": 65, "context": 400}, "out_of_range"),  # more than there are names
        ({"facts": 24, "context": 47}, "recall_room"),
        ({"queries": 22}, "recall_room"),
        ({"facts": 0}, "bad_count"),
        ({"queries": 0}, "bad_count"),
        ({"seed": -1}, "bad_count"),
        ({"span": 3.0}, "bad_count"),
    ],
)
def test_sizes_that_no_document_can_have_are_refused(given, code):
    with pytest.raises(ArgumentError) as caught:
        recall_documents(1, **given)
    assert caught.value.code == code
    assert caught.value.text("zh") != caught.value.text("en")


def test_documents_need_no_torch():
    code = "from minikv.models import recall_documents; recall_documents(1); import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
