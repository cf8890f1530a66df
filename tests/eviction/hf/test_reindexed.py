"""positions="reindexed": the kept tokens count 0, 1, 2, ..., as StreamingLLM does it."""

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import PyramidKV, install_kv_eviction
from minikv.eviction.hf.rotary import find_rotary
from tests.eviction.hf.masking import small, tiny

ONE_LAYER = {"num_hidden_layers": 1}
ROTARY = {
    "llama": {},
    "llama 3": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                 "original_max_position_embeddings": 64}},
    "qwen3": {"use_sliding_window": False},
    "gemma": {},
    "phi3": {"sliding_window": None},
    "gpt_neox": {},
    "deepseek_v3": {"first_k_dense_replace": 1},
}  # fmt: skip


def made(name):
    changes = {
        key: value if not isinstance(value, dict) else dict(value) for key, value in ROTARY[name].items()
    }
    return small({"llama 3": "llama", "yarn": "llama"}.get(name, name), **ONE_LAYER, **freeze(changes))


def freeze(changes):
    """Hashable, for the cache of models."""
    return {key: Frozen(value) if isinstance(value, dict) else value for key, value in changes.items()}


class Frozen(dict):
    def __hash__(self):
        return hash(tuple(sorted(self.items())))


@torch.no_grad()
@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("policy", ["streaming", "h2o"])
def test_one_layer_says_what_the_model_says_of_the_kept_tokens_alone(name, policy):
    """K and V of a first layer depend on the token alone, so a text of the kept tokens is the same thing."""
    model = made(name)
    ids = torch.randint(1, 97, (1, 40), generator=torch.Generator().manual_seed(1))
    chunks = [20, 1, 1, 1, 4, 1, 1, 1, 1]
    with install_kv_eviction(
        model, policy=policy, n_sink=2, n_recent=5, budget=4, positions="reindexed"
    ) as eviction:
        held, start, answers = eviction.new_cache(), 0, []
        for size in chunks:
            end = start + size
            kept = held.layers[0].positions[0, 0].tolist() if start else []
            logits = model(ids[:, start:end], past_key_values=held).logits
            answers.append((kept + list(range(start, end)), size, logits))
            assert held.layers[0].resident <= 11
            start = end
    for tokens, size, logits in answers:
        alone = model(ids[:, tokens]).logits[:, -size:]
        assert (logits - alone).abs().max() < 2e-5


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@pytest.mark.parametrize("policy", ["streaming", "h2o", "tova"])
def test_with_room_for_all_nothing_changes(name, policy):
    model = tiny(name)
    ids = torch.randint(4, 190, (2, 40), generator=torch.Generator().manual_seed(2))
    options = {
        "max_new_tokens": 15,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
        "eos_token_id": None,
    }
    expected = model.generate(ids, **options)
    with install_kv_eviction(model, policy=policy, budget=100, positions="reindexed"):
        assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_positions_stay_below_the_bound_however_long_the_text(name):
    model, used = tiny(name), []
    options = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.randint(4, 190, (1, 10), generator=torch.Generator().manual_seed(3))
    own = {"policy": "streaming", "budget": 0, "n_recent": 16, "positions": "reindexed"}
    with install_kv_eviction(model, **own) as eviction:
        hook = model.model.register_forward_pre_hook(
            lambda module, args, kwargs: used.append(int(kwargs["position_ids"].max())), with_kwargs=True
        )
        try:
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        finally:
            hook.remove()
    assert max(used) == eviction.peak_resident


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_a_padded_row_says_what_the_row_alone_says(name):
    model = tiny(name)
    ids = torch.randint(4, 190, (2, 40), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :33] = 0
    options = {"max_new_tokens": 25, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with install_kv_eviction(model, policy="streaming", budget=4, n_recent=8, positions="reindexed"):
        together = model.generate(ids, attention_mask=mask, **options)
        alone = model.generate(ids[1:, 33:], attention_mask=mask[1:, 33:], **options)
    assert together[1, 40:].tolist() == alone[0, 7:].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turning_back_and_on_again_loses_one_rounding(dtype):
    rotary = find_rotary(tiny("tiny-gqa"), latent=False)
    key = torch.randn(2, 2, 50, 32, generator=torch.Generator().manual_seed(5))
    places = torch.arange(50).expand(2, 50)
    cached = rotary.turn(rotary.turn(key, places).to(dtype), places, back=True)
    eps = torch.finfo(dtype).eps
    assert (cached.float() - key).abs().max() <= 2 * eps * key.abs().max()
    assert torch.allclose(rotary.turn(key, places).norm(dim=-1), key.norm(dim=-1), rtol=1e-5)


DYNAMIC = Frozen(rope_type="dynamic", rope_theta=1e4, factor=2.0)


@pytest.mark.parametrize(
    ("make", "options", "code"),
    [
        (lambda: small("gpt2"), {}, "eviction_not_rotary"),
        (lambda: small("deepseek_v2"), {}, "eviction_not_rotary"),
        (lambda: small("llama", rope_parameters=DYNAMIC), {}, "eviction_not_rotary"),
        (lambda: small("gpt_oss"), {}, "eviction_reindexed_layers"),
        (lambda: tiny("tiny-gqa"), {"policy": "snapkv"}, "eviction_reindexed_window"),
        (lambda: tiny("tiny-gqa"), {"policy": PyramidKV(queries=1)}, "eviction_reindexed_uneven"),
    ],
)
def test_what_cannot_be_counted_anew_is_refused(make, options, code):
    model = make()
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(
            model, **({"policy": "streaming", "budget": 8, "positions": "reindexed"} | options)
        )
    assert refused.value.code == code
    assert refused.value.text("zh")
    assert not hasattr(model, "_minikv_eviction")
