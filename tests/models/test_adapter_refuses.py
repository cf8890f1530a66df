"""What bind_model and Adapter refuse, before anything has changed."""

import copy
import pickle

import pytest
import torch

from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError, ConfigError, MiniKVError
from minikv.models import Batch, bind_model
from minikv.plan import CacheSpec
from minikv.plan.spec.layers import LayerSpec
from tests.models.running import World
from tests.plan.small_models import small_config, small_decoder, small_model


@pytest.fixture(scope="module")
def model():
    return World.bare("llama")


def cache_for(model, **options) -> PagedKVCache:
    spec = CacheSpec.from_config(model.config, **{"kv_dtype": "fp32", **options})
    return PagedKVCache(spec, 8, 4)


def refused(*args, **options) -> MiniKVError:
    with pytest.raises(ArgumentError) as caught:
        bind_model(*args, **options)
    assert caught.value.text("zh") != caught.value.text("en")
    return caught.value


def one_token(cache: PagedKVCache, position: int = 0) -> Batch:
    return Batch.build(cache, [[[0]]] * len(cache.kv_cache_groups), [1], [1], positions=[position])


def test_what_is_no_model_or_no_cache(model):
    cache = cache_for(model)
    assert refused(model, model).code == "bind_not_a_cache"
    assert refused(model, cache, reads="flash").code == "unknown_choice"
    for other in (None, torch.nn.Linear(2, 2), model.model, small_model(small_config("qwen3_vl_text"))):
        assert refused(other, cache).code == "models_not_a_decoder"
    training = World.bare("llama").train()
    assert refused(training, cache).code == "models_training"


def test_a_cache_of_another_model(model):
    other = refused(model, cache_for(World.bare("qwen3", num_hidden_layers=4)))
    assert (other.code, other.values["model"], other.values["cache"]) == ("models_layer_count", 6, 4)
    half = refused(model, cache_for(model, tp=2))
    assert (half.code, half.values["layer"], half.values["field"]) == ("models_layer", 0, "kv_heads")
    qwen3 = World.bare("qwen3")
    narrow = refused(qwen3, cache_for(World.bare("qwen3", sliding_window=5)))
    assert (narrow.code, narrow.values["model"], narrow.values["cache"]) == ("models_layer", 7, 5)
    latent = World.bare("deepseek_v3")
    assert refused(latent, cache_for(latent, layout="hf-expanded")).values["field"] == "kv_heads"


def test_an_architecture_that_is_not_on_the_list():
    unknown = small_model(small_decoder("openai-gpt"))
    like = LayerSpec("full", kv_heads=6, k_dim=8, v_dim=8, itemsize=4)
    cache = PagedKVCache(CacheSpec((like,) * 6, kv_dtype="fp32"), 8, 4)
    with pytest.raises(ConfigError, match="openai-gpt"):
        bind_model(unknown, cache)


def test_layers_with_vllm_s_index_are_refused_by_number():
    spec = CacheSpec.from_config(small_config("deepseek_v32"), kv_dtype="fp32", layout="vllm")
    with pytest.raises(ArgumentError) as caught:
        PagedKVCache(spec, 8, 4)
    number = next(i for i, layer in enumerate(spec.layers) if layer.index_bytes)
    assert (caught.value.code, caught.value.values["layer"]) == ("paged_layer", number)


@pytest.mark.parametrize(
    ("model_type", "why"),
    [("bloom", "attention"), ("llama4_text", "chunked"), ("nemotron", "arguments"), ("phimoe", "window")],
)
def test_models_that_cannot_read_in_place_say_why(model_type, why):
    mine = World.bare(model_type)
    before = mine.config._attn_implementation
    error = refused(mine, cache_for(mine), reads="paged")
    assert (error.code, error.values["why"]) == ("models_cannot_switch", why)
    assert mine.config._attn_implementation == before


def test_latents_are_absorbed_from_plain_floats_only():
    mine = World.bare("deepseek_v3")
    for dtype in ("int8", "fp8"):
        error = refused(mine, cache_for(mine, kv_dtype=dtype), reads="paged")
        assert (error.code, error.values["why"]) == ("models_cannot_switch", "latent")
    cache = cache_for(mine, kv_dtype="int8")
    assert bind_model(mine, cache).forward([1], one_token(cache)).isfinite().all()
    projection = mine.model.layers[2].self_attn.kv_b_proj
    projection.weight = torch.nn.Parameter(projection.weight.to(torch.int8), requires_grad=False)
    assert bind_model(mine, cache_for(mine)).reads == "gather"


def test_a_bound_model_needs_its_batch(model):
    cache = cache_for(model)
    adapter = bind_model(model, cache)
    ids = torch.tensor([[1, 2]])
    try:
        with pytest.raises(ArgumentError) as caught:
            model(ids)
        assert caught.value.code == "models_no_batch"
        with pytest.raises(ArgumentError) as caught:
            model(ids[:, :1], attention_mask=torch.zeros(1, 1, 1, 1), batch=one_token(cache))
        assert caught.value.code == "models_mask"
    finally:
        adapter.unbind()
    assert model(ids).logits.shape == (1, 2, 97)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([1, 2], "cache_shape"),
        ([[1]], "cache_shape"),
        ([1.0], "cache_not_whole"),
        ([True], "cache_not_whole"),
    ],
)
def test_the_ids_of_a_forward(model, ids, code):
    cache = cache_for(model)
    adapter = bind_model(model, cache)
    try:
        with pytest.raises(ArgumentError) as caught:
            adapter.forward(ids, one_token(cache))
        assert caught.value.code == code
        assert not any(part.tensor.any() for part in cache.parts(0)), "nothing was stored"
        for other in (one_token(cache_for(model)), None):
            with pytest.raises(ArgumentError) as caught:
                adapter.forward([1], other)
            assert caught.value.code == "models_other_cache"
    finally:
        adapter.unbind()


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("model_type", "changes", "limit"),
    [
        ("gpt2", {"max_position_embeddings": 64}, 64),
        ("mpt", {"max_seq_len": 32}, 32),
        ("llama", {}, None),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, 512),
        (
            "phi3",
            {
                "rope_parameters": LONG,
                "original_max_position_embeddings": 40,
                "num_attention_heads": 6,
                "partial_rotary_factor": 1.0,
            },
            40,
        ),
    ],
)
def test_positions_that_would_change_what_other_sequences_cached_are_refused(model_type, changes, limit):
    mine = World.bare(model_type, **changes)
    cache = cache_for(mine)
    adapter = bind_model(mine, cache)
    try:
        assert adapter.position_limit == limit
        if limit is not None:
            assert adapter.forward([1], one_token(cache, limit - 1)).shape == (1, 97)
            with pytest.raises(ArgumentError) as caught:
                adapter.forward([1], one_token(cache, limit))
            assert (caught.value.code, caught.value.values["limit"]) == ("models_position", limit)
        else:
            assert adapter.forward([1], one_token(cache, 100_000)).isfinite().all()
    finally:
        adapter.unbind()


def test_a_copy_of_a_bound_model_is_bound_to_nothing(model):
    """It says what to do; bound and unbound, it has its own attention; and no cache was copied with it."""
    ids = torch.tensor([[1, 2, 3]])
    due, cache = model(ids).logits, cache_for(model)
    adapter = bind_model(model, cache)
    try:
        twin, other = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        with pytest.raises(ArgumentError, match="set_attn_implementation") as caught:
            twin(ids)
        assert caught.value.code == "models_no_batch"
        other.set_attn_implementation("sdpa")
        assert torch.allclose(other(ids).logits, due)
        mine = bind_model(twin, cache_for(twin))
        assert mine.forward([1], one_token(mine.cache)).isfinite().all()
        mine.unbind()
        assert torch.allclose(twin(ids).logits, due)
        assert adapter.forward([1], one_token(cache)).isfinite().all()
    finally:
        adapter.unbind()
    assert torch.equal(model(ids).logits, due)
