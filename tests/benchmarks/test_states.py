"""The benchmark of states: both engines answer the same, and only timed steps count."""

import itertools
from types import SimpleNamespace

import pytest

from benchmarks.states import SETTLE, measure, random_model

TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16}


@pytest.fixture(scope="module")
def model():
    return random_model("mamba2", **TINY, state_size=8)


def test_tokens_a_second_are_those_of_the_timed_steps(model):
    ticks = itertools.count()
    assert measure(model, 3, 2, lambda: float(next(ticks))) == (3.0, 3.0)  # a tick a step
    assert next(ticks) == 2 * (1 + SETTLE + 2) + 2 * 2


def test_answers_that_differ_are_no_figure(model, monkeypatch):
    other = random_model("mamba2", **TINY, state_size=8)
    other.lm_head.weight.data.neg_()
    monkeypatch.setattr("benchmarks.states.copy", SimpleNamespace(deepcopy=lambda model: other))
    with pytest.raises(RuntimeError, match="2 sequences"):
        measure(model, 2, 1)
