"""The trace of an eviction: what it keeps, what it saw, and that forgetting a token equals masking it."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from minikv.errors import MiniKVError
from minikv.eviction.hf.install import install_kv_eviction
from minikv.eviction.policies.literature import H2O, POLICIES, PyramidKV, SnapKV, policy_of
from minikv.eviction.policies.policy import Needs
from minikv.eviction.study.trace import trace_eviction
from minikv.i18n import LANGUAGES
from minikv.models import load, recall_documents
from tests.longer import every_value

DOCUMENT = recall_documents(1, seed=3, facts=5, context=30, queries=3, span=11)[0]
TOKENS = DOCUMENT.tokens
TRACED = [name for name, kind in POLICIES.items() if not kind.needs & Needs.QUERIES]
MODELS = ("tiny-gqa", "tiny-mla")
KEPT = dict(budget=6, n_sink=3, n_recent=5, prompt=20)


@pytest.fixture(scope="module")
def models():
    return {name: load(name, device="cpu", dtype="fp32").model for name in MODELS}


@contextmanager
def masks(model, allowed):
    """Attention of layer i sees what ``allowed[i]`` [query heads, n, n] says, whatever mask the model makes."""
    hooks = []
    for layer, seen in zip(model.model.layers, allowed, strict=True):
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None]

        def put(module, args, kwargs, mask=mask):
            return args, {**kwargs, "attention_mask": mask}

        hooks.append(layer.self_attn.register_forward_pre_hook(put, with_kwargs=True))
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(own)
        for hook in hooks:
            hook.remove()


def allowed_by(trace, query_heads):
    """[L, query heads, n, n] bool: a query sees itself and what was kept before it; the prompt sees all before it."""
    length = trace.length
    allowed = torch.ones(length, length).tril().bool().repeat(len(trace.layers), query_heads, 1, 1)
    group = query_heads // trace.heads
    for step in range(1, trace.steps):
        at = trace.prompt - 1 + step
        kept = torch.from_numpy(trace.kept[:, :, step - 1]).repeat_interleave(group, 1)
        allowed[:, :, at] = kept
        allowed[:, :, at, at] = True
    return allowed


@pytest.mark.parametrize("policy", TRACED)
@pytest.mark.parametrize(
    ("name", "scope"), [("tiny-gqa", "head"), ("tiny-gqa", "layer"), ("tiny-mla", "layer")]
)
def test_forgetting_equals_masking(models, name, scope, policy):
    model = models[name]
    trace = trace_eviction(model, TOKENS, policy=policy, scope=scope, **KEPT)
    with torch.no_grad(), masks(model, allowed_by(trace, 4)):
        out = model(torch.from_numpy(TOKENS)[None], output_attentions=True)
    behind = out.logits[0, trace.prompt - 1 :].argmax(-1).numpy()
    np.testing.assert_array_equal(trace.predicted, behind)
    if policy == "h2o":
        for layer, probs in enumerate(out.attentions):
            sums = probs[0].cumsum(1).unflatten(0, (trace.heads, -1)).sum(1)[:, trace.prompt - 1 :].numpy()
            seen = ~np.isnan(trace.scores[layer])
            np.testing.assert_allclose(trace.scores[layer][seen], sums[seen], atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_room_for_all_is_the_model_itself(models, name):
    model = models[name]
    trace = trace_eviction(model, TOKENS, policy="h2o", budget=len(TOKENS), prompt=10)
    with torch.no_grad():
        logits = model(torch.from_numpy(TOKENS)[None]).logits[0, 9:]
    np.testing.assert_array_equal(trace.predicted, logits.argmax(-1).numpy())
    for step in range(trace.steps):
        assert trace.kept[:, :, step].sum(-1).tolist() == [[10 + step] * trace.heads] * 2
        assert trace.bytes_held[step] == (10 + step) * trace.token_bytes
    assert trace.token_bytes == {"tiny-gqa": 2 * 2 * 2 * 32 * 4, "tiny-mla": 2 * (64 + 16) * 4}[name]
    mass = np.nansum(trace.scores[..., -1, :], axis=-1)
    np.testing.assert_allclose(mass, 4 / trace.heads * len(TOKENS), rtol=1e-5)


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("every", [1, 4, 9])
def test_a_step_never_leaves_more_than_the_peak_and_protects_both_ends(models, scope, every):
    for policy in ("h2o", "pyramidkv", "knorm"):
        trace = trace_eviction(
            models["tiny-gqa"], TOKENS, policy=policy, scope=scope, evict_every=every, **KEPT
        )
        peak = {layer: trace.capacity[layer] + every - 1 for layer in trace.layers}
        gone = np.zeros((*trace.kept.shape[:2], trace.length), bool)
        for step in range(trace.steps):
            seen = trace.prompt + step
            kept, scores = trace.kept[:, :, step], trace.scores[:, :, step]
            before = ~np.isnan(scores)
            assert not (kept & ~before).any(), "what is kept was there"
            assert not (before & gone).any(), "what is gone stays gone"
            assert (before | gone)[..., :seen].all()
            assert not before[..., seen:].any()
            gone |= before & ~kept
            assert kept[..., :3].all()
            assert kept[..., seen - 5 : seen].all()
            for layer in trace.layers:
                counts = kept[layer].sum(-1).tolist()
                assert len(set(counts)) == 1, "every head holds as many"
                assert counts[0] <= peak[layer]
                if (before[layer] & ~kept[layer]).any():
                    assert counts[0] == trace.capacity[layer]
                if scope == "layer":
                    assert (kept[layer] == kept[layer, 0]).all()
            per_head = trace.token_bytes // (len(trace.layers) * trace.heads)
            assert trace.bytes_held[step] == kept.sum() * per_head, "the storage shrinks"


def test_the_best_scores_stay(models):
    """Of the tokens that nothing protects, none that went had a larger score than one that stayed."""
    trace = trace_eviction(models["tiny-gqa"], TOKENS, policy="keydiff", scope="head", **KEPT)
    compared = 0
    for layer, head, step in np.ndindex(*trace.kept.shape[:3]):
        seen = trace.prompt + step
        free = np.arange(3, seen - 5)
        scores, kept = trace.scores[layer, head, step, free], trace.kept[layer, head, step, free]
        went = ~np.isnan(scores) & ~kept
        if went.any():
            compared += 1
            assert scores[went].max() <= scores[kept].min()
    assert compared == 2 * 2 * trace.steps


@pytest.mark.parametrize(
    "policy",
    [
        *(H2O(reduce=reduce) for reduce in ("sum", "mean", "decay")),
        H2O("max", group="max"),  # the maximum of a sum is not the sum of maxima
        SnapKV(6),
        policy_of("tova"),
    ],
    ids=str,
)
def test_scores_do_not_depend_on_how_the_text_was_cut(models, policy):
    model = models["tiny-gqa"]
    cuts = (1, 7, len(TOKENS))
    last = [
        trace_eviction(model, TOKENS, policy=policy, budget=99, prompt=cut).scores[:, :, -1] for cut in cuts
    ]
    for other in last[1:]:
        np.testing.assert_allclose(other, last[0], atol=1e-5)


def test_layers_with_budgets_of_their_own_run_in_one_forward(models):
    trace = trace_eviction(models["tiny-gqa"], TOKENS, policy=PyramidKV(steepness=0.5), **KEPT)
    assert trace.capacity == (3 + 9 + 5, 3 + 3 + 5)
    assert trace.kept[:, 0, -1].sum(-1).tolist() == list(trace.capacity)


def test_a_choice_of_layers_is_recorded_and_all_evict(models):
    whole = trace_eviction(models["tiny-gqa"], TOKENS, policy="h2o", **KEPT)
    one = trace_eviction(models["tiny-gqa"], TOKENS, layers=[1], policy="h2o", **KEPT)
    assert one.layers == (1,)
    np.testing.assert_array_equal(one.kept[0], whole.kept[1])
    np.testing.assert_array_equal(one.scores[0], whole.scores[1])
    np.testing.assert_array_equal(one.predicted, whole.predicted)
    np.testing.assert_array_equal(one.bytes_held, whole.bytes_held)


def test_the_model_is_as_it_was_even_after_an_error(models):
    class Broken(type(policy_of("knorm"))):
        def score(self, view):
            if view.positions.amax() > 30:
                raise RuntimeError("as a learner's policy may")
            return super().score(view)

    model = models["tiny-gqa"]
    ids, own = torch.from_numpy(TOKENS)[None], model.config._attn_implementation
    with torch.no_grad():
        before = model(ids).logits
        trace_eviction(model, TOKENS, policy="h2o", **KEPT)
        with pytest.raises(RuntimeError, match="learner"):
            trace_eviction(model, TOKENS, policy=Broken(), **KEPT)
        assert model.config._attn_implementation == own
        assert torch.equal(model(ids).logits, before)


def small(**values):
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes = dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
    )
    return MistralForCausalLM(MistralConfig(**{**sizes, "num_key_value_heads": 1, **values})).eval()


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"tokens": [[1, 2]]}, "cache_shape"),
        ({"tokens": []}, "cache_shape"),
        ({"tokens": [1.5, 2.0]}, "cache_not_whole"),
        ({"tokens": [1, 196]}, "llm_token"),
        ({"tokens": [-1, 3]}, "llm_token"),
        ({"prompt": 0}, "bad_count"),
        ({"prompt": 43}, "out_of_range"),
        ({"budget": -1}, "bad_count"),
        ({"n_recent": 0}, "bad_count"),
        ({"evict_every": 0}, "bad_count"),
        ({"policy": "h3o"}, "unknown_choice"),
        ({"scope": "row"}, "unknown_choice"),
        ({"layers": [2]}, "unknown_choice"),
        ({"layers": []}, "bad_count"),
    ],
)
def test_what_cannot_be_is_refused(models, bad, code):
    with pytest.raises(MiniKVError) as refused:
        trace_eviction(models["tiny-gqa"], **{"tokens": TOKENS, "policy": "h2o", **KEPT, **bad})
    assert refused.value.code == code
    assert all(refused.value.text(lang) for lang in LANGUAGES)


def test_models_that_cannot_be_traced_are_refused(models):
    for model, values, code in (
        (models["tiny-mla"], {"scope": "head"}, "eviction_head_latent"),
        (small(sliding_window=16), {}, "trace_layer_kind"),
        (small(sliding_window=None).train(), {}, "models_training"),
    ):
        with pytest.raises(MiniKVError) as refused:
            trace_eviction(model, [1, 2, 3], **{"policy": "h2o", "budget": 4, **values})
        assert refused.value.code == code
        assert all(refused.value.text(lang) for lang in LANGUAGES)
    whole = trace_eviction(
        small(sliding_window=None), list(range(40)), policy="h2o", budget=4, n_sink=2, n_recent=4
    )
    assert whole.capacity == (10, 10)


@pytest.mark.parametrize(
    ("layers", "policy", "attention"),
    every_value(
        [("tiny-gqa", "head"), ("tiny-gqa", "layer"), ("tiny-mla", "layer")],
        TRACED,
        [("sdpa", 1), ("eager", 5)],
    ),
    ids=str,
)
def test_the_kept_sets_are_those_of_an_installed_eviction(models, layers, policy, attention):
    """Another way to compute the same: from tiles beside the model's own attention, with slots that are reused."""
    (name, scope), (attention, every) = layers, attention
    model = models[name]
    options = dict(policy=policy, scope=scope, evict_every=every, budget=6, n_sink=3, n_recent=5)
    trace = trace_eviction(model, TOKENS, prompt=20, **options)
    model.set_attn_implementation(attention)
    with torch.no_grad(), install_kv_eviction(model, **options) as installed:
        cache = installed.new_cache()
        for step, (start, end) in enumerate([(0, 20), *((at, at + 1) for at in range(20, len(TOKENS)))]):
            out = model(torch.from_numpy(TOKENS[start:end])[None], past_key_values=cache)
            assert int(out.logits[0, -1].argmax()) == trace.predicted[step]
            for layer, evicting in enumerate(cache.layers):
                places = evicting.positions[0].expand(trace.heads, -1)
                here = torch.zeros(trace.heads, len(TOKENS), dtype=torch.bool).scatter_(-1, places, True)
                np.testing.assert_array_equal(here.numpy(), trace.kept[layer, :, step])


def test_a_model_with_eviction_installed_is_refused(models):
    model = models["tiny-gqa"]
    with install_kv_eviction(model, policy="h2o", budget=6), pytest.raises(MiniKVError) as refused:
        trace_eviction(model, TOKENS, policy="h2o", **KEPT)
    assert refused.value.code == "trace_installed"
    assert all(refused.value.text(lang) for lang in LANGUAGES)
