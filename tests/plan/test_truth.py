"""The truth test: what CacheSpec says equals what transformers really holds, to the byte, for every architecture."""

from itertools import chain

import pytest
import torch
import transformers
from packaging.version import Version

from minikv.plan import CacheSpec
from tests.plan.small_models import DECODERS, ENCODER_DECODERS, small_config, small_model

PROMPT, STEPS, BATCH = 13, 3, 2
CACHED = ("keys", "values", "indexer_keys", "idx_keys")
# DeepSeek-V4's, each a dict of tensors
COMPRESSED = ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")


# As models name what they cache: the first from transformers 5.24 on, until then Mamba and xLSTM the third.
# RWKV the last, a list of tensors.
CACHES = {"cache", "past_key_values", "cache_params", "state"}


def cached_tensors(cache):
    """Every tensor that what a model of transformers caches keeps for its sequences."""
    if isinstance(cache, list) or hasattr(cache, "rnn_state"):  # xLSTM's
        yield from cache if isinstance(cache, list) else chain(*cache.rnn_state.values())
        return
    for layer in getattr(cache, "self_attention_cache", cache).layers:
        states = [getattr(layer, name, None) for name in ("conv_states", "recurrent_states")]
        tensors = [getattr(layer, name, None) for name in CACHED]
        states += [getattr(layer, name, None) for name in COMPRESSED]
        for held in states:
            tensors += list(held.values() if isinstance(held, dict) else held or ())
        if tensors[0] is tensors[1]:
            tensors = tensors[1:]  # K is V
        yield from (tensor for tensor in tensors if tensor is not None)


def numel_bytes(cache) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in cached_tensors(cache))


def storage_bytes(cache) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in cached_tensors(cache)}
    return sum(storages.values())


def run(model, batch: int):
    """A prefill and three decode steps; yields (tokens so far, tokens of this step, cache)."""
    tokens = torch.randint(3, 90, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    held, length = {}, 0
    for ids in [tokens, *[tokens[:, :1]] * STEPS]:
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=True, **held)
        held = {name: out[name] for name in CACHES.intersection(out)}
        length += ids.shape[1]
        yield length, ids.shape[1], *held.values()


# From this release on, transformers caches the latents of these two as well.
SPARSE_LATENTS_SINCE = Version("5.18")
SPARSE_MLA = ("deepseek_v32", "glm_moe_dsa")


def spec_of(config, dtype: torch.dtype, **arguments) -> CacheSpec:
    config.dtype = dtype
    if config.model_type in SPARSE_MLA and Version(transformers.__version__) < SPARSE_LATENTS_SINCE:
        arguments |= {"layout": "hf-expanded"}
    return CacheSpec.from_config(config, **arguments)


@pytest.mark.parametrize("model_type", DECODERS)
def test_spec_equals_the_bytes_that_transformers_holds(model_type):
    config = small_config(model_type)
    spec = spec_of(config, torch.float32)
    assert spec.kv_dtype == "fp32"
    for length, step, cache in run(small_model(config), BATCH):
        assert numel_bytes(cache) == spec.bytes_for(length, BATCH), (length, spec.explain())
        assert storage_bytes(cache) == spec.held_bytes_for(length, step, BATCH), (length, spec.explain())


# bf16 tells the model's dtype from the float32 of recurrent states; these cover each kind of layer. DeepSeek-V4 keeps
# some parameters in float32 when it is loaded: tests/engine/test_llm_compressed.py loads one.
@pytest.mark.parametrize(
    "model_type",
    [
        "deepseek_v32",
        "gemma3n_text",
        "jamba",
        "lfm2",
        "llama",
        "mamba2",
        "nemotron_h",
        "qwen3_next",
    ],
)
def test_spec_equals_the_bytes_in_bf16(model_type):
    config = small_config(model_type)
    spec = spec_of(config, torch.bfloat16)
    for length, step, cache in run(small_model(config, torch.bfloat16), BATCH):
        assert numel_bytes(cache) == spec.bytes_for(length, BATCH), (length, spec.explain())
        assert storage_bytes(cache) == spec.held_bytes_for(length, step, BATCH)


@pytest.mark.parametrize("model_type", ENCODER_DECODERS)
def test_encoder_decoder_holds_what_the_spec_says(model_type):
    config = small_config(model_type)
    frames = config.max_source_positions if model_type == "whisper" else 17
    spec = spec_of(config, torch.float32, encoder_tokens=frames)
    model, tokens = small_model(config), torch.randint(3, 90, (BATCH, PROMPT))
    if model_type == "whisper":
        inputs = {"input_features": torch.randn(BATCH, config.num_mel_bins, 2 * frames)}
    else:
        inputs = {"input_ids": torch.randint(3, 90, (BATCH, frames))}
    with torch.no_grad():
        out = model(**inputs, decoder_input_ids=tokens, use_cache=True)
    cache = out.past_key_values
    held = numel_bytes(cache.self_attention_cache) + numel_bytes(cache.cross_attention_cache)
    assert held == spec.bytes_for(PROMPT, BATCH), spec.explain()
