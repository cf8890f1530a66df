"""Perplexity by position: that of one forward, equal up to the budget, and what its interval says."""

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction.evaluate.perplexity import (
    CHUNK,
    Reading,
    bootstrap,
    counts,
    curves,
    excerpts,
    judged,
    read_text,
)
from minikv.eviction.evaluate.settings import Settings
from minikv.eviction.evaluate.ways import Way
from minikv.models import load, recall_documents
from tests.eviction.evaluate.small import random_llama

PROSE = "\n".join(document.text for document in recall_documents(6))


@pytest.fixture(scope="module")
def tiny():
    return load("tiny-gqa", device="cpu")


def some(**changes):
    given = {
        "lengths": (129,),
        "policies": ("streaming",),
        "kept": (0.5,),
        "kv_dtypes": ("int8",),
        "texts": 4,
    }
    return Settings((), **(given | changes))


def test_the_full_cache_has_the_perplexity_of_one_forward_and_eviction_begins_behind_the_budget(tiny):
    model, tokenizer = tiny
    full, evicted, rounded = read_text(model, tokenizer, PROSE, some())
    pieces = excerpts(tokenizer, PROSE, 129, 4)
    with torch.no_grad():
        ids = torch.tensor([piece.tokens for piece in pieces])
        logs = model(ids).logits.log_softmax(-1)
    due = -logs[:, :-1].gather(-1, ids[:, 1:, None]).double().sum((1, 2))
    assert np.allclose([sum(piece) for piece in full.nats], due, rtol=1e-4)
    whole = 64 // CHUNK  # the budget is half of 129
    assert np.allclose(
        [piece[:whole] for piece in evicted.nats], [piece[:whole] for piece in full.nats], rtol=1e-4
    )
    assert not np.allclose(evicted.nats, full.nats, rtol=1e-2)
    (found,) = curves([full, evicted, rounded])
    assert found.curves[0].verdict == "reference"
    assert found.curves[0].perplexity == pytest.approx(float(torch.exp(due.sum() / (4 * 128))), rel=1e-4)
    assert list(found.curves[0].by_position) == list(range(0, 128, CHUNK))
    assert found.curves[1].perplexity > found.curves[2].perplexity
    for lang in ("en", "zh"):
        shown = found.shown(lang)
        assert len({len(row) for row in (shown.head, *shown.rows)}) == 1
    assert Reading.from_dict(full.as_dict()) == full


def test_known_readings_are_taken_and_those_of_another_text_are_not(tiny):
    model, tokenizer = tiny
    known = [
        Reading(each.digest, 129, Way(), ((1.0,) * 8,) * 4) for each in excerpts(tokenizer, PROSE, 129, 4)[:1]
    ]
    assert next(read_text(model, tokenizer, PROSE, some(), known)) is known[0]
    other = PROSE.partition("\n")[2]
    assert next(read_text(model, tokenizer, other, some(), known)).digest != known[0].digest


def test_any_model_with_a_tokenizer_reads_a_text():
    model, tokenizer = random_llama()
    readings = list(read_text(model, tokenizer, PROSE, some(policies=("h2o",))))
    assert [len(reading.nats) for reading in readings] == [4, 4, 4]
    with pytest.raises(ArgumentError) as caught:
        next(read_text(model, None, PROSE, some()))
    assert caught.value.code == "evaluate_no_tokenizer"


@pytest.mark.parametrize(
    ("prose", "lengths", "code"),
    [
        ("ada paris", (129,), "evaluate_short_text"),
        (PROSE, (129, 20), "evaluate_short_text"),
        ("what is this " * 99, (129,), "evaluate_unknown_words"),
        (PROSE, (10**6,), "context_too_long"),
    ],
)
def test_what_cannot_be_read_raises_before_the_first_reading(tiny, prose, lengths, code):
    with pytest.raises(ArgumentError) as caught:
        next(read_text(*tiny, prose, some(lengths=lengths)))
    assert caught.value.code == code


def test_the_interval_and_what_it_says():
    assert counts(33) == [16, 16]
    assert counts(20) == [16, 3]
    tokens = np.full(200, 16)
    noise = np.random.default_rng(1).normal(size=200)
    low, high = bootstrap(noise, tokens)
    assert low < np.exp(noise.sum() / tokens.sum()) < high
    assert bootstrap(np.zeros(200), tokens) == (1, 1)
    assert judged((1, 1), 200) == "near"
    assert judged((1, 1), 5) == "few"
    assert judged((1.05, 1.2), 200) == "higher"
    assert judged((0.8, 0.9), 200) == "lower"
    assert judged((0.9, 1.1), 200) == "few"
    assert curves([Reading("", 33, Way("h2o", 0.5), ((1.0, 1.0),))]) == []
