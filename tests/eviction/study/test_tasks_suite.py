"""Scores of cases: right parts, perplexity, the interval; the full cache; and an eviction beside its masks."""

from dataclasses import dataclass, field, replace
from math import isnan, log

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from minikv.errors import ArgumentError
from minikv.eviction.policies.budget import Budget
from minikv.eviction.study.suite import Score, answer, answers, wilson
from minikv.eviction.study.tasks import TASKS, make_cases, stream_cases
from minikv.models import load
from minikv.models.recall import WORDS
from tests.eviction.study.task_masks import Masked


@pytest.fixture(scope="module")
def tiny():
    return load("tiny-gqa", device="cpu").model


@dataclass
class Scripted:
    """Stands for a model: its logits behind every token of ``cases`` are given, [B, n, vocabulary]."""

    logits: torch.Tensor
    forwards: list[torch.Tensor] = field(default_factory=list)
    device = torch.device("cpu")

    def forward(self, input_ids, past_key_values, use_cache, logits_to_keep):
        start = past_key_values or 0
        end = start + input_ids.shape[1]
        self.forwards.append(input_ids)
        told = self.logits[:, end - logits_to_keep : end]
        return CausalLMOutputWithPast(logits=told, past_key_values=end)

    __call__ = forward


def knowing(cases, wrong=()):
    """Logits that name every answer, but at the positions of ``wrong``: (case, position)."""
    logits = torch.zeros(len(cases), len(cases[0].tokens), len(WORDS))
    for row, case in enumerate(cases):
        for asked in case.asked:
            for position, right in zip(asked.positions, asked.answers, strict=True):
                if (row, position) not in wrong:
                    logits[row, position, list(right)] = 5.0
                else:
                    logits[row, position, [word for word in range(40) if word not in right][: len(right)]] = (
                        5.0
                    )
    return logits


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_who_knows_every_answer_has_all(task, decode):
    cases = make_cases(task, 3, length=65)
    model = Scripted(knowing(cases))
    score = answer(model, cases, decode=decode)
    assert (score.right, score.share) == (score.asked, 1)
    assert score.asked == sum(len(case.asked) for case in cases)
    assert (torch.cat(model.forwards, 1).numpy() == np.stack([case.tokens for case in cases])).all()
    assert len(model.forwards) == (len(cases[0].tokens) if decode else 2)


@pytest.mark.parametrize("task", TASKS)
def test_one_wrong_step_makes_one_question_wrong(task):
    cases = make_cases(task, 3, length=65)
    for asked in cases[1].asked:
        for position in asked.positions:
            each = answers(Scripted(knowing(cases, wrong={(1, position)})), cases)
            assert [score.asked - score.right for score in each] == [0, 1, 0]


def test_a_part_of_several_answers_is_a_part_of_a_question():
    cases = make_cases("multivalue", 2)
    logits = knowing(cases)
    asked = cases[0].asked[2]
    logits[0, asked.positions[0], asked.answers[0][1]] = -1.0
    each = answers(Scripted(logits), cases)
    assert [score.asked - score.right for score in each] == [0.5, 0]


def test_perplexity_is_that_of_the_fillers_alone():
    cases = make_cases("multikey", 2, length=65)
    flat = answer(Scripted(torch.zeros(2, len(cases[0].tokens), len(WORDS))), cases)
    assert flat.perplexity == pytest.approx(len(WORDS))
    assert flat.words == sum(len(case.plain) for case in cases)
    logits = torch.zeros(2, len(cases[0].tokens), len(WORDS))
    for row, case in enumerate(cases):
        logits[row, case.plain, case.tokens[case.plain + 1]] = 50.0
    assert answer(Scripted(logits), cases).perplexity == pytest.approx(1)
    (seen,) = make_cases("multikey", 1, length=65, seen=True)
    assert isnan(answer(Scripted(knowing([seen])), [seen]).perplexity)


def test_scores_add_up_and_batches_change_nothing(tiny):
    cases = make_cases("tracking", 5, length=65)
    each = answers(tiny, cases, batch=2)
    together = answer(tiny, cases)
    assert sum(each, Score(0, 0)).asked == together.asked == sum(len(case.asked) for case in cases)
    assert sum(score.right for score in each) == together.right
    assert sum(score.nats for score in each) == pytest.approx(together.nats, rel=1e-4)
    assert log(together.perplexity) == pytest.approx(together.nats / together.words)


def test_the_interval_is_wilson_s():
    assert wilson(0, 10) == pytest.approx((0, 0.27753), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.72247, 1), abs=1e-4)
    random = np.random.default_rng(0)
    for share in (0.03, 0.3, 0.5, 0.97):
        found = [wilson(right, 60) for right in random.binomial(60, share, 2000).tolist()]
        assert 0.92 < np.mean([low <= share <= high for low, high in found]) < 0.99
    for asked in (1, 7, 1000):
        for right in np.linspace(0, asked, 9).tolist():
            low, high = wilson(right, asked)
            assert 0 <= low <= right / asked <= high <= 1
            assert low < high
    with pytest.raises(ArgumentError):
        wilson(3, 2)
    with pytest.raises(ArgumentError):
        wilson(0, 0)


def test_cases_of_two_sizes_are_refused(tiny):
    cases = make_cases("single", 1, length=65) + make_cases("single", 1, length=66)
    with pytest.raises(ArgumentError) as error:
        answer(tiny, cases)
    assert error.value.code == "eviction_case_sizes"
    with pytest.raises(ArgumentError):
        answer(tiny, [])


def test_the_full_cache_knows_what_was_trained_however_it_is_read(tiny):
    cases = make_cases("multikey", 8)
    at_once, stepwise = answer(tiny, cases), answer(tiny, cases, decode=True)
    assert at_once.share > 0.97
    assert stepwise.right == at_once.right
    assert stepwise.perplexity == pytest.approx(at_once.perplexity, rel=1e-4)


def newest(layer, number):
    positions = torch.arange(layer.keys.shape[2]).float()
    return positions.expand(layer.keys.shape[0], 1, -1)


def masked(sizes, scored=newest):
    return lambda model: Masked(model, scored, sizes)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_what_is_hidden_is_lost_and_what_is_not_is_not(name):
    """The recent window alone: questions about facts inside it are answered, the others are not."""
    model = load(name, device="cpu").model
    cases = make_cases("multikey", 12, length=97, seed=2)
    full = answer(model, cases)
    wide = answer(model, cases, evicting=masked(Budget(4, 200, 8)))
    assert (wide.right, wide.nats) == (full.right, full.nats)
    inside, outside = [], []
    for case in cases:
        sides = (inside, outside)
        for side, far in zip(sides, (False, True), strict=True):
            some = tuple(asked for asked in case.asked if (asked.sources[0] < 97 - 40) == far)
            if some:
                side.append(replace(case, asked=some))
    evicting = masked(Budget(1, 0, 44))  # a fact's name, and a place before it, are kept with its city
    assert answer(model, inside, evicting=evicting).share > 0.9
    assert answer(model, outside, evicting=evicting).share < 0.2


@pytest.mark.parametrize("decode", [False, True])
def test_decoding_with_masks_keeps_the_capacity(tiny, decode):
    sizes = Budget(2, 20, 10, evict_every=4)
    cases, open_masks = stream_cases(2, length=97, facts=4), []

    def evicting(model):
        open_masks.append(Masked(model, newest, sizes))
        return open_masks[-1]

    answer(tiny, cases, evicting=evicting, decode=decode)
    for stays in open_masks[0].stays.values():
        assert stays.shape[-1] == 97
        assert sizes.capacity <= int(stays[0, 0].sum()) <= sizes.peak_resident
