"""Lesson 15b: its exercise and its questions do what a learner relies on, and agree with the package."""

import pytest
import torch

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.eviction import H2O
from minikv.eviction.hf.observe import Logits, column_stats
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("15b")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def scores_in_loops(state, q_latent, q_rope, latent, rope, scale):
    score = torch.zeros(len(latent), dtype=latent.dtype)
    score[: len(state)] = state
    for head in range(len(q_latent)):
        for query in range(q_latent.shape[1]):
            seen = len(state) + query + 1
            logits = latent[:seen] @ q_latent[head, query] + rope[:seen] @ q_rope[head, query]
            score[:seen] += torch.softmax(logits * scale, 0)
    return score


def scores_in_one_product(state, q_latent, q_rope, latent, rope, scale):
    query, row = torch.cat((q_latent, q_rope), -1), torch.cat((latent, rope), -1)
    logits = scale * torch.einsum("htd,sd->hts", query, row)
    queries, tokens = logits.shape[1:]
    hidden = torch.full((queries, tokens), -torch.inf, dtype=logits.dtype).triu(tokens - queries + 1)
    mass = (logits + hidden).softmax(2).flatten(0, 1).sum(0)
    return mass + torch.nn.functional.pad(state, (0, queries))


def test_latent_scores():
    assert_exercise(EXERCISES["15b.1"], right=[scores_in_loops, scores_in_one_product], seeds=(0, 1))


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "15b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "15b")


def test_the_scores_are_those_of_expanded_keys():
    """H2O's column sums of an MLA layer that unpacks its latents, with random projections."""
    for number, case in enumerate(EXERCISES["15b.1"].draw(1)[:12]):
        random = torch.Generator().manual_seed(number)
        heads, queries, rank_ = case["q_latent"].shape
        nope = 6
        to_key = torch.randn(heads, nope, rank_, generator=random, dtype=torch.float64)
        q_nope = torch.randn(heads, queries, nope, generator=random, dtype=torch.float64)
        case |= {"q_latent": q_nope @ to_key}
        keys = torch.cat((case["latent"] @ to_key.mT, case["rope"].expand(heads, -1, -1)), -1)
        query = torch.cat((q_nope, case["q_rope"]), -1)
        sums = column_stats(
            query[None], keys[None], Logits(case["scale"]), mask=None, counted=None, policy=H2O(), heads=1
        )[0, 0]
        before = REFERENCES["latent_scores"](**case | {"state": case["state"][:0]})
        torch.testing.assert_close(before.float(), sums, rtol=1e-4, atol=1e-5)
        gained = REFERENCES["latent_scores"](**case).sum() - case["state"].sum()
        assert abs(float(gained) - heads * queries) < 1e-9, "no attention is lost"
