"""A picture's tokens see each other, later ones too, and go on doing so after an eviction."""

import copy
from functools import cache

import pytest
import torch
from transformers import DynamicCache, Gemma3Config, Gemma3ForConditionalGeneration

from minikv.eviction import install_kv_eviction
from minikv.eviction.hf.cache import evicting_layers
from tests.eviction.hf.masking import TOLERANCE, hidden, kept_columns
from tests.models.running import sharpen

# Tokens: before, of the forward that brings the picture, of the picture
TEXT, NEW, PICTURE = 40, 20, slice(45, 52)
SMALL = {"budget": 6, "n_sink": 2, "n_recent": 9}


@cache
def viewer():
    """A small random Gemma 3 that takes pictures; its layers are all of full attention."""
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"head_dim": 8, "intermediate_size": 64, "vocab_size": 200}
    text |= {"layer_types": ["full_attention", "full_attention"]}
    seen = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = Gemma3Config(
        text_config=text,
        vision_config=seen | {"image_size": 28, "patch_size": 14},
        image_token_id=199,
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    sharpen(model)
    return model


def tokens(seed=0):
    return torch.randint(4, 190, (1, TEXT + NEW), generator=torch.Generator().manual_seed(seed))


def of_picture(padding=0):
    types = torch.zeros(1, padding + TEXT + NEW, dtype=torch.int64)
    types[:, padding + PICTURE.start : padding + PICTURE.stop] = 1
    return types


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("policy", ["streaming", "h2o", "keydiff", "pyramidkv"])
def test_a_picture_after_an_eviction_is_seen_whole(policy, attention):
    """As the same model says it with the whole cache and a mask that hides what is gone, and nothing of the picture."""
    model, reference = viewer(), copy.deepcopy(viewer())
    model.set_attn_implementation(attention)
    reference.set_attn_implementation(attention)
    ids, plain = tokens(), DynamicCache(config=reference.config)
    reference(ids[:, :TEXT], past_key_values=plain)
    again = copy.deepcopy(plain)
    among = torch.ones(NEW, NEW, dtype=torch.bool).tril()
    inside = of_picture()[0, TEXT:].bool()
    among |= inside[:, None] & inside
    with install_kv_eviction(model, policy=policy, scope="head", **SMALL) as eviction:
        held = eviction.new_cache()
        model(ids[:, :TEXT], past_key_values=held)
        kept = {layer.rules.layer: kept_columns(layer, TEXT, None) for layer in evicting_layers(held)}
        assert not all(columns.all() for columns in kept.values())
        ours = model(ids[:, TEXT:], past_key_values=held, token_type_ids=of_picture()).logits
    with hidden(reference, kept, TEXT, among):
        expected = reference(ids[:, TEXT:], past_key_values=plain, token_type_ids=of_picture()).logits
    assert (ours - expected).abs().max() <= TOLERANCE
    with hidden(reference, kept, TEXT):
        causal = reference(ids[:, TEXT:], past_key_values=again).logits
    assert (ours - causal).abs().max() > 1e-3, "the comparison would notice"


@torch.no_grad()
def test_so_is_one_in_a_padded_row():
    model, padding = viewer(), 13
    model.set_attn_implementation("sdpa")
    alone = tokens()
    row = torch.cat((torch.zeros(1, padding, dtype=torch.int64), alone), 1)
    full = torch.cat((tokens(seed=1)[:, :padding], tokens(seed=2)), 1)
    mask = torch.ones(2, padding + TEXT + NEW, dtype=torch.int64)
    mask[0, :padding] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)

    def read(ids, mask, places, types, cut):
        with install_kv_eviction(model, policy="h2o", **SMALL) as eviction:
            held = eviction.new_cache()
            for part in (slice(0, cut), slice(cut, None)):
                seen = mask[:, : part.stop]
                options = {"token_type_ids": types} if part.stop is None else {}
                at = places[:, part]
                out = model(
                    ids[:, part], attention_mask=seen, position_ids=at, past_key_values=held, **options
                )
            return out.logits

    types = of_picture(padding).repeat(2, 1)
    together = read(torch.cat((row, full)), mask, places, types, padding + TEXT)[0]
    by_itself = read(alone, torch.ones_like(alone), torch.arange(TEXT + NEW)[None], of_picture(), TEXT)[0]
    assert (together - by_itself).abs().max() <= TOLERANCE
