"""An evaluation: every way on the same questions, rows that are known, words and English, what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError, DoesNotFitError
from minikv.eviction.evaluate import rows as module
from minikv.eviction.evaluate.readers import TextReader, WordReader, reader_of
from minikv.eviction.evaluate.rows import Row, evaluate, fingerprint
from minikv.eviction.evaluate.settings import Question, Settings
from minikv.eviction.evaluate.ways import Way, rounding_to
from minikv.eviction.study.tasks import at_depth, make_cases
from minikv.eviction.study.text_tasks import make_text
from minikv.models import load, recall_documents
from minikv.models.fidelity import forced_logits
from tests.eviction.evaluate.small import random_llama

ALL_TASKS = ("niah", "multikey", "multivalue", "tracking", "aggregation")


@pytest.fixture(scope="module")
def llama():
    return random_llama()


def some(*tasks, **changes):
    given = {"lengths": (97,), "policies": ("keydiff",), "kept": (0.5,), "kv_dtypes": ("int8",), "texts": 2}
    return Settings(tasks, **(given | {"depths": (0.0, 1.0)} | changes))


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_a_tiny_model_is_asked_in_its_words_in_every_way(name):
    model, tokenizer = load(name, device="cpu")
    settings = some(*ALL_TASKS)
    rows = list(evaluate(model, tokenizer, settings))
    assert [(row.question, row.way) for row in rows] == [
        (question, way) for question in settings.questions() for way in settings.ways
    ]
    assert [str(way) for way in settings.ways] == ["full cache", "keydiff, 50 % kept", "int8"]
    assert len(list(settings.questions())) == 6  # the needle at two depths, and four more
    full = [row for row in rows if row.way == Way() and row.question.task in ("niah", "multikey")]
    assert all(row.right == row.asked for row in full)
    assert [Row.from_dict(row.as_dict()) for row in rows] == rows


def test_a_model_that_reads_english_is_asked_so_through_the_same_call(llama):
    settings = some("niah", lengths=(400,), new=4)
    assert isinstance(reader_of(*llama, settings), TextReader)
    rows = list(evaluate(*llama, settings))
    assert {(row.asked, len(row.said), len(row.said[0])) for row in rows} == {(2, 2, 4)}
    exact = list(evaluate(*llama, some("niah", lengths=(400,), new=4, policies=(), kv_dtypes=("fp32",))))
    assert [row.said for row in exact[::2]] == [row.said for row in exact[1::2]]  # nothing is rounded


@pytest.mark.parametrize("task", ALL_TASKS[1:])
def test_every_kind_of_question_is_asked_in_english(llama, task):
    settings = some(task, lengths=(1300,), new=4, texts=1)
    rows = list(evaluate(*llama, settings))
    assert [row.way for row in rows] == list(settings.ways)
    assert all(row.asked >= 1 and 0 <= row.right <= row.asked for row in rows)
    assert all(len(answer) == 4 for row in rows for answer in row.said)


def test_known_rows_are_not_measured_again(monkeypatch):
    model, tokenizer = load("tiny-gqa", device="cpu")
    settings = some("multikey", "tracking")
    rows = list(evaluate(model, tokenizer, settings))
    changed = [dataclasses.replace(rows[0], right=1.0), rows[1], rows[2]]
    asked = []
    ask = WordReader.ask
    monkeypatch.setattr(WordReader, "ask", lambda self, *what: asked.append(what) or ask(self, *what))
    assert list(evaluate(model, tokenizer, settings, changed)) == [*changed, *rows[3:]]
    assert asked == [(row.question, row.way) for row in rows[3:]]


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_rounded_cache_gives_the_logits_of_a_paged_cache_of_that_dtype(name, kv_dtype):
    model, _ = load(name, device="cpu")
    tokens = np.stack([document.tokens[:60] for document in recall_documents(2)])
    due = forced_logits(model, tokens, prefill=60, kv_dtype=kv_dtype)[:, 0]
    ids = torch.from_numpy(tokens)
    with torch.no_grad():
        full = model(ids).logits[:, -1]
        with rounding_to(kv_dtype)(model):
            found = model(ids, use_cache=True).logits[:, -1]
        torch.testing.assert_close(model(ids).logits[:, -1], full, rtol=0, atol=0)  # the hook is gone
    assert (found - full).abs().max() > 1e-3
    torch.testing.assert_close(found, due, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("depth", [0, 0.3, 1])
def test_a_needle_stands_at_its_depth(depth):
    for case in make_cases("single", 4, length=97):
        moved = at_depth(case, depth)
        (asked,) = moved.asked
        assert asked.sources[0] == 2 + round(depth * 94)
        assert moved.tokens[asked.sources[0]] == asked.answers[0][0]
        assert sorted(moved.tokens) == sorted(case.tokens)
        assert moved.tokens[97:].tolist() == case.tokens[97:].tolist()
    text = make_text("niah", length=900, count_tokens=lambda text: len(text.split()), depth=depth)
    place = text.context.index("The number for") / len(text.context)
    assert abs(place - depth) < 0.08


def test_what_cannot_be_asked_raises_before_the_first_row(llama, monkeypatch):
    model, tokenizer = llama
    monkeypatch.setattr(TextReader, "ask", lambda *_: pytest.fail("nothing is measured"))
    for settings, code in (
        (some("niah", lengths=(20,)), "out_of_range"),
        (some("niah", lengths=(400, 4000)), "context_too_long"),
    ):
        with pytest.raises(ArgumentError) as caught:
            next(evaluate(model, tokenizer, settings))
        assert caught.value.code == code
    with pytest.raises(ArgumentError) as caught:
        next(evaluate(model, None, some("niah")))
    assert caught.value.code == "evaluate_no_tokenizer"
    for changes in (
        {"kept": (0.0,)},
        {"kept": (1.5,)},
        {"kept": (float("nan"),)},
        {"depths": (-0.1,)},
        {"texts": 0},
        {"lengths": (0,)},
        {"seed": -1},
        {"policies": ("best",)},
        {"kv_dtypes": ("int3",)},
    ):
        with pytest.raises(ArgumentError):
            some("niah", **changes)
    with pytest.raises(ArgumentError):
        some("needles")


def test_a_full_device_is_said_with_the_length_of_the_text(llama, monkeypatch):
    def ask(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(TextReader, "ask", ask)
    with pytest.raises(DoesNotFitError) as caught:
        next(evaluate(*llama, some("niah", lengths=(400,))))
    assert caught.value.values["tokens"] == 400


def test_other_weights_have_another_fingerprint(llama):
    model, _ = llama
    before = module.fingerprint(model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
        changed = fingerprint(model)
        model.model.layers[0].mlp.up_proj.weight[0, 0] -= 1
    assert len({before, changed, fingerprint(load("tiny-gqa", device="cpu").model)}) == 3


def test_a_question_is_plain_data():
    assert Question("niah", 97, 0.5) == Question("niah", 97, 0.5)
    assert Settings().as_dict() == {"texts": 20, "new": 48, "seed": 0}
