"""The four ways in which eviction goes wrong: each happens here, does its damage, and is named by eviction_report."""

from dataclasses import dataclass

import pytest
import torch
from transformers import StaticCache

from minikv.errors import ArgumentError
from minikv.eviction import H2O, eviction_report, install_kv_eviction
from minikv.eviction.hf.report import Finding
from minikv.models import recall_documents
from tests.eviction.hf.masking import small, tiny


def codes(report):
    return {finding.code for finding in report.findings}


@torch.no_grad()
def perplexity(model, ids, *, prompt=24, **options):
    """Of ``ids`` [B, n] from ``prompt`` on, read token by token with eviction; and the report."""
    logits = []
    with install_kv_eviction(model, **options) as eviction:
        held = eviction.new_cache()
        for start, end in ((0, prompt), *((i, i + 1) for i in range(prompt, ids.shape[1] - 1))):
            logits.append(model(ids[:, start:end], past_key_values=held).logits[:, -1])
        report = eviction_report(model)
    logits = torch.stack(logits, 1).log_softmax(-1)
    return float((-logits.gather(-1, ids[:, prompt:, None])).mean().exp()), report


def documents(count=2, facts=12, context=72):
    made = recall_documents(count, seed=11, facts=facts, context=context, queries=8, span=30)
    return torch.stack([torch.from_numpy(document.tokens) for document in made])


def model_with_a_sink():
    """A Qwen2 whose queries all look at token 1, which says nothing: attention is parked there, as in large models.

    The last pair of dimensions turns least with the position. Every query has the same large element there, by its
    bias; of the embeddings only that of token 1 has its first element, and K reads that element into this dimension.
    """
    model = small("qwen2", number=7, use_sliding_window=False, num_hidden_layers=1, rope_theta=1e6)
    attention = model.model.layers[0].self_attn
    width = attention.head_dim
    embedding = model.get_input_embeddings().weight.data
    embedding[:, 0] = 0.0
    embedding[1] = 0.0
    embedding[1, 0] = 4.0
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.data[:, 0] = 0.0
        projection.bias.data.zero_()
    attention.q_proj.bias.data[width - 1 :: width] = 6.0
    attention.k_proj.weight.data[width - 1 :: width, 0] = 1.5
    return model


@torch.no_grad()
def test_garbage_when_the_sinks_go():
    """The trained tiny models have no sinks (3 to 11 % of their attention is on the first tokens), so one was made."""
    model = model_with_a_sink()
    ids = torch.randint(2, 97, (2, 60), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 1
    model.set_attn_implementation("eager")
    on_first = model(ids, output_attentions=True).attentions[0][..., 20:, 0].mean()
    model.set_attn_implementation("sdpa")
    assert on_first > 0.8
    full = model(ids).logits[:, -1].log_softmax(-1)

    def divergence(n_sink):
        with install_kv_eviction(model, policy="streaming", n_sink=n_sink, n_recent=24 - n_sink, budget=0):
            held = model(ids[:, :40], use_cache=True).past_key_values
            for token in range(40, 60):
                logits = model(ids[:, token : token + 1], past_key_values=held).logits[:, -1]
            return float((full.exp() * (full - logits.log_softmax(-1))).sum(-1).mean()), eviction_report(
                model
            )

    (kept, fine), (lost, report) = divergence(4), divergence(0)
    assert lost > 20 * kept
    assert "sinks_gone" in codes(report)
    assert "sinks_gone" not in codes(fine)
    assert all("n_sink=4" in report.text(lang) for lang in ("en", "zh"))


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_drift_when_the_window_is_small(name):
    ids = documents()
    capacity = {"policy": "h2o", "n_sink": 4}
    small_window, report = perplexity(tiny(name), ids, budget=23, n_recent=1, **capacity)
    larger, _ = perplexity(tiny(name), ids, budget=8, n_recent=16, **capacity)
    assert small_window > 1.5 * larger
    assert "window_small" in codes(report)
    _, fine = perplexity(tiny(name), ids, policy="streaming", budget=8, n_recent=16, n_sink=4)
    assert codes(fine) == set()


@dataclass(frozen=True)
class OnlyPrompts(H2O):
    """The scores of decode steps are not taken in."""

    def observe(self, sums, seen):
        return seen.state if seen.queries == 1 else super().observe(sums, seen)


@torch.no_grad()
def coverage(model, ids, attention, **options):
    """The share of the whole cache's attention in the last layer that goes to what is kept, over the second half."""
    shares = []
    with install_kv_eviction(model, **options) as eviction:
        held = eviction.new_cache()
        for start, end in ((0, 24), *((i, i + 1) for i in range(24, ids.shape[1] - 1))):
            if start > ids.shape[1] // 2:
                layer = held.layers[-1]
                places = layer.positions.expand(*layer.keys.shape[:3])
                places = places.repeat_interleave(attention.shape[1] // places.shape[1], 1)
                row = attention[:, :, start]
                shares.append((row.gather(-1, places).sum(-1) / row[..., :start].sum(-1)).mean())
            model(ids[:, start:end], past_key_values=held)
        return float(torch.stack(shares).mean()), eviction_report(model)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_a_cliff_when_the_scores_stop(name):
    """What is kept was looked at in the prompt; attention has gone elsewhere since."""
    model, reference = tiny(name), tiny(name, 1)
    ids = documents(2, facts=24, context=150)
    own = reference.config._attn_implementation
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        attention = reference(ids, output_attentions=True).attentions[-1]
    reference.set_attn_implementation(own)
    options = {"budget": 24, "n_sink": 4, "n_recent": 12}
    follows, fine = coverage(model, ids, attention, policy=H2O("mean"), **options)
    stopped, report = coverage(model, ids, attention, policy=OnlyPrompts("mean"), **options)
    assert stopped < follows - 0.1
    assert "scores_stale" in codes(report)
    assert "scores_stale" not in codes(fine)


@dataclass(frozen=True)
class SometimesNaN(H2O):
    """0 / 0 for the tokens at odd positions, once the text has 60."""

    def score(self, view):
        bad = (view.positions % 2 == 1) & (view.positions.amax() >= 60)
        return view.state.masked_fill(bad, torch.nan)


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_a_score_that_is_no_number_is_told(scope):
    """In a decode step nobody waits to look; the report says it."""
    options = {"budget": 10, "n_sink": 2, "n_recent": 12, "scope": scope}
    _, report = perplexity(tiny("tiny-gqa"), documents(), policy=SometimesNaN(), **options)
    finding = next(finding for finding in report.findings if finding.code == "scores_nan")
    assert finding.layers == (0, 1)
    assert finding.values == {"evictions": documents().shape[1] - 1 - 60, "policy": "SometimesNaN"}
    assert all("SometimesNaN" in report.text(lang) for lang in ("en", "zh"))
    _, fine = perplexity(tiny("tiny-gqa"), documents(), policy="h2o", **options)
    assert "scores_nan" not in codes(fine)
    with pytest.raises(ArgumentError) as refused:
        perplexity(tiny("tiny-gqa"), documents(), policy=SometimesNaN(), prompt=61, **options)
    assert refused.value.code == "eviction_nan"


@torch.no_grad()
def test_memory_grows_with_a_cache_of_another_class():
    model, ids = tiny("tiny-gqa"), documents(1)
    options = {"policy": "h2o", "budget": 8, "n_recent": 8}
    with install_kv_eviction(model, other_caches="pass", **options):
        held = StaticCache(config=model.config, max_cache_len=200)
        for start in range(0, 80, 8):
            model(ids[:, start : start + 8], past_key_values=held)
        report = eviction_report(model)
        finding = next(finding for finding in report.findings if finding.code == "cache_grows")
        assert finding.values == {"kind": "StaticCache", "tokens": 80}
        assert int(held.get_seq_length()) == 80, "nothing was forgotten"
        assert all("StaticCache" in report.text(lang) for lang in ("en", "zh"))
    with install_kv_eviction(model, **options), pytest.raises(ArgumentError) as refused:
        model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=200))
    assert refused.value.code == "eviction_cache_kind"


@torch.no_grad()
def test_memory_grows_while_eviction_is_paused():
    model, ids = tiny("tiny-gqa"), documents(1)
    with install_kv_eviction(model, policy="h2o", budget=8, n_recent=8) as eviction:
        held = model(ids[:, :40], use_cache=True).past_key_values
        assert codes(eviction_report(eviction)) == set()
        with eviction.paused():
            model(ids[:, 40:60], past_key_values=held)
    finding = next(f for f in eviction_report(eviction).findings if f.code == "layer_grows")
    assert finding.values == {"resident": 40, "bound": 20}
    assert finding.layers == (0, 1)


def test_the_numbers_of_a_text_and_a_report_without_an_install():
    model = tiny("tiny-gqa")
    _, report = perplexity(model, documents(), policy="streaming", budget=8, n_recent=16, n_sink=4)
    assert report.capacity == report.peak_resident == 28
    tokens = documents().shape[1] - 1
    for values in report.layers.values():
        assert values["dropped"] == tokens - 28
        assert values["forwards"] == 1 + tokens - 24
        assert values["peak_resident"] == 28
    assert f"{2 * (tokens - 28)}" in report.text()
    assert report.text("zh-CN") == report.text("zh") != report.text()
    with pytest.raises(ArgumentError) as refused:
        report.text("fr")
    assert refused.value.code == "unknown_language"
    with pytest.raises(ArgumentError) as refused:
        eviction_report(model)
    assert refused.value.code == "eviction_not_installed"


@pytest.mark.parametrize(
    ("layers", "lang", "where"),
    [
        ((0,), "en", "in layer 0, 95% of"),
        ((0, 3), "en", "in layers 0, 3, 95% of"),
        ((0,), "zh", "第 0 层有 95%"),
        ((0, 3), "zh", "第 0、3 层有 95%"),
    ],
)
def test_a_finding_names_one_layer_or_several(layers, lang, where):
    assert where in Finding("window_small", layers, {"share": 0.95, "n_recent": 12}).text(lang)
