"""Every architecture that minikv knows: built with the planner's bytes, or refused with the layer named."""

import pytest
import torch

from minikv.cache.codec import CODECS
from minikv.cache.paged import PagedKVCache
from minikv.errors import MiniKVError
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups
from tests.in_turn import in_turn
from tests.plan.small_models import DECODERS, ENCODER_DECODERS, small_config

# What keeps more than K and V of tokens, by what it keeps. Everything else has to be built.
RECURRENT = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 mamba mamba2 nemotron_h qwen3_5_moe_text "
    "qwen3_5_text qwen3_next"
).split()
INDEXED = ["deepseek_v32", "glm_moe_dsa"]
COMPRESSED = ["deepseek_v4"]  # tests/engine/test_llm_compressed.py has more of it
REFUSED = {
    **dict.fromkeys(RECURRENT, "state_bytes"),
    **dict.fromkeys(ENCODER_DECODERS, "state_bytes"),
    **dict.fromkeys(INDEXED, "index_bytes"),
    **dict.fromkeys(COMPRESSED, "waiting_bytes"),
}


# States have slots of their own beside the blocks; a model with nothing but states has no blocks.
WITHOUT_KV = ["falcon_mamba", "mamba", "mamba2"]
NOT_PAGED = {
    name: field for name, field in REFUSED.items() if name not in [*RECURRENT, *INDEXED, *COMPRESSED]
}


def small_spec(model_type, **options):
    encoder_tokens = 5 if model_type in ENCODER_DECODERS else None
    return CacheSpec.from_config(small_config(model_type), encoder_tokens=encoder_tokens, **options)


@in_turn("layout", ["hf", "vllm"])
@in_turn("model_type", [*DECODERS, *ENCODER_DECODERS])
def test_an_architecture_is_built_as_planned_or_refused_by_layer(model_type, layout):
    layout = "hf" if model_type in COMPRESSED else layout  # no other is known of it
    size = 8 if model_type in COMPRESSED else 4
    for dtype in ("bf16", "fp8", "int8"):
        spec = small_spec(model_type, kv_dtype=dtype, layout=layout)
        blocks = [3 + group for group in range(len(kv_cache_groups(spec)))]
        if model_type in WITHOUT_KV:
            with pytest.raises(MiniKVError) as caught:
                PagedKVCache(spec, 3, 4)
            assert caught.value.code == "paged_empty"
            continue
        if model_type in NOT_PAGED or (model_type in INDEXED and layout == "vllm"):
            with pytest.raises(MiniKVError) as caught:
                PagedKVCache(spec, blocks, 4)
            number = caught.value.values["layer"]
            assert caught.value.code == "paged_layer"
            assert caught.value.values["field"] == REFUSED[model_type]
            assert getattr(spec.layers[number], REFUSED[model_type]) > 0
            assert f"Layer {number}" in str(caught.value)
            continue
        cache = PagedKVCache(spec, blocks, size)
        planned = [
            group.block_bytes(size) * count
            for group, count in zip(kv_cache_groups(spec), blocks, strict=True)
        ]
        measured = [sum(p.tensor.nbytes for p in cache.parts(group)) for group in range(len(blocks))]
        assert measured == planned
        assert cache.nbytes == sum(planned)


@in_turn("model_type", [name for name in DECODERS if name not in [*NOT_PAGED, *WITHOUT_KV, *COMPRESSED]])
def test_every_layer_of_an_architecture_holds_its_own_tokens(model_type):
    """One token in each layer at the same slot: no two layers share a byte, and shared ones read what they should."""
    spec = small_spec(model_type, kv_dtype="fp32")
    cache = PagedKVCache(spec, 2, 4)
    for number, layer in enumerate(spec.layers):
        if layer.token_bytes:
            k = torch.full((1, layer.kv_heads, layer.k_dim), float(number + 1))
            cache.write(number, k, -torch.ones(1, layer.kv_heads, layer.v_dim) * (number + 1), [5])
    for number, layer in enumerate(spec.layers):
        source = number if layer.reads_layer is None else layer.reads_layer
        if spec.layers[source].token_bytes:
            k, v = cache.gather(number, [0, 1], 6)
            assert k[5].eq(source + 1).all()
            assert v[5].eq(-source - 1).all()
            assert not k[:5].any()
            assert not v[:5].any()


def test_deepseek_s_format_in_vllm_is_refused():
    spec = CacheSpec.from_config("DeepSeek-V3.2", kv_dtype="fp8", layout="vllm")
    with pytest.raises(MiniKVError, match="Layer 0"):
        PagedKVCache(spec, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_spec_built_for_a_codec_takes_it_by_default(codec):
    spec = CacheSpec.from_config(small_config("llama"), kv_dtype=codec)
    assert PagedKVCache(spec, 1).codec.name == codec
    assert PagedKVCache(spec, 1, codec=codec).codec.name == codec
