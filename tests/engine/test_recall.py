"""Recall asked through an LLM: the same answers as the model alone gives, counted right."""

from dataclasses import replace

import pytest

from minikv import LLM
from minikv.engine.recall import Recall, measure_recall
from minikv.errors import ArgumentError
from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, Document
from tools.train_tiny.measure import recall

SEED = 31_000


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_an_engine_answers_as_the_model_alone(name):
    model = load(name, device="cpu").model
    documents = recall_documents(6, seed=SEED, facts=6, context=24, queries=8, span=32)
    alone = recall(model, documents)
    with LLM(model, num_blocks=200, max_num_seqs=6) as llm:
        found = measure_recall(llm, documents)
        assert found.asked == 6 * 8
        assert found.share == pytest.approx(alone, abs=0.03)
        assert llm.manager.stats().hit_rate > 0.4, "the questions of a document share what they begin with"
        assert measure_recall(llm, iter(documents)) == found, "asked again, from what is cached"


def test_a_wrong_answer_counts_as_wrong():
    documents = recall_documents(4, seed=SEED, facts=3, context=12, queries=3, span=9)
    with LLM("tiny-gqa", device="cpu", num_blocks=64) as llm:
        right = measure_recall(llm, documents)
        wrong = [
            Document(each.tokens, tuple(replace(q, answer_id=FIRST_FILLER) for q in each.questions))
            for each in documents
        ]
        assert measure_recall(llm, wrong) == Recall(0, right.asked)
        mixed = measure_recall(llm, [*documents, *wrong])
        assert mixed == Recall(right.right, 2 * right.asked)
        assert mixed.share == right.right / (2 * right.asked)
        with pytest.raises(ArgumentError) as caught:
            measure_recall(llm, recall_documents(2, queries=0, span=0))
        assert caught.value.code == "bad_count"
