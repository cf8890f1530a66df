"""Lesson 15b: what its prose says of its cells is what they show, on fewer texts than the lesson's own."""

import pytest
import torch

from minikv.course.lessons.l15.sink_model import FIRST, model_with_a_sink, texts
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction import H2O, eviction_report, install_kv_eviction
from minikv.eviction.study.tasks import stream_cases
from minikv.models import load
from tests.eviction.hf.test_report import OnlyPrompts


def test_drift_and_cliff_are_named_and_recall_alone_hides_them():
    model, cases, found = load("tiny-mla", device="cpu").model, stream_cases(4, length=193), {}
    for name, policy, n_recent in (
        ("fine", H2O("decay"), 16),
        ("window", H2O("decay"), 1),
        ("stale", OnlyPrompts("decay"), 16),
    ):
        logs, report = read(model, cases, policy, n_sink=4, budget=44 - n_recent, n_recent=n_recent)
        found[name] = (*graded(logs, cases, 100, 193), {finding.code for finding in report.findings})
    recall, perplexity, codes = zip(*found.values(), strict=True)
    assert codes[0] == set()
    assert "window_small" in codes[1]
    assert "scores_stale" in codes[2]
    assert min(perplexity[1:]) > 1.5 * perplexity[0]
    assert min(recall[1:]) > recall[0]


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_with_a_sink_writes_garbage_without_it(seed):
    model, ids = model_with_a_sink(seed), texts(3, 50, seed)
    assert set(ids[:, 0].tolist()) == {FIRST}
    model.set_attn_implementation("eager")
    out = model(ids, output_attentions=True)
    assert out.attentions[0][:, :, 20:, 0].mean() > 0.9
    model.set_attn_implementation("sdpa")
    right, same, codes = out.logits.argmax(-1), {}, {}
    for n_sink in (4, 0):
        with install_kv_eviction(model, policy="streaming", n_sink=n_sink, n_recent=24 - n_sink, budget=0):
            cache, found = None, []
            for start, end in ((0, 40), *((step, step + 1) for step in range(40, 50))):
                step = model(ids[:, start:end], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                found += (step.logits[:, -1].argmax(-1) == right[:, end - 1]).tolist()
            codes[n_sink] = {finding.code for finding in eviction_report(model).findings}
        same[n_sink] = sum(found) / len(found)
    assert same[4] > 0.85 > 0.2 > same[0]
    assert (codes[4], codes[0]) == (set(), {"sinks_gone"})


def test_the_made_model_leaves_the_random_numbers_alone():
    torch.manual_seed(7)
    want = torch.rand(1)
    torch.manual_seed(7)
    model_with_a_sink()
    assert torch.rand(1) == want
