"""Decoders that are on no list: measured, and token for token what ``generate`` gives; or refused by name."""

import functools
from typing import Dict, Optional  # noqa: UP035

import pytest
import torch
import transformers

from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError, ConfigError
from minikv.models import GatheredCache, bind_model, measure
from minikv.models.cache_argument import cache_in, cache_keyword
from minikv.models.measured import layers_of
from minikv.plan import CacheSpec
from minikv.plan.decoders import decoder_outcomes, transformers_release
from minikv.plan.spec.architectures import ARCHITECTURES
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.in_turn import in_turn
from tests.longer import usual_if
from tests.models.running import World
from tests.models.test_adapter import OF_OTHERS
from tests.plan.small_models import small_config, small_decoder, small_model

# Those that no state goes along with; the others are in tests/engine/test_llm_states.py.
STATES = ("linear", "conv", "hybrid")
MEASURED = [
    each
    for each in decoder_outcomes()
    if each.outcome == "measured" and not any(kind in each.layers for kind in STATES)
]
IN_PLACE = [each.model_type for each in MEASURED if each.reads == "paged"]
AS_COPIES = [each.model_type for each in MEASURED if each.reads == "gather"]
# The code of the refusal, and a word of what the sentence names.
REFUSED = {
    "mistral_large4_text": ("measured_layer", "v_dim 0"),
    "moshi": ("measured_own_cache", "moshi"),
    "openai-gpt": ("measured_no_cache", "OpenAIGPTLMHeadModel"),
    "roberta": ("measured_own_cache", "roberta"),
}


@pytest.mark.parametrize("model_type", usual_if(lambda name: name in ("cwm", "doge"), IN_PLACE + AS_COPIES))
def test_a_decoder_on_no_list_gives_what_generate_gives(model_type):
    assert model_type not in ARCHITECTURES
    mine = World(small_decoder(model_type), prompts=OF_OTHERS)
    assert "measured, not known" in mine.spec.explain()
    adapter = bind_model(mine.model, PagedKVCache(mine.spec, 8, 4))
    adapter.unbind()
    if transformers.__version__ == transformers_release():
        assert adapter.reads == ("paged" if model_type in IN_PLACE else "gather")
    assert mine.run(4, chunk=6).ties < len(mine.prompts)


@pytest.mark.parametrize(("model_type", "num_blocks"), [("afmoe", 16), ("jetmoe", 16)])
def test_an_engine_runs_it_with_preemptions_chunks_prefix_hits_and_mixed_batches(model_type, num_blocks):
    mine = Reference(model_type, num_hidden_layers=5)
    with make(mine.model, num_blocks=num_blocks, max_batched_tokens=24) as llm:
        for number, prompt in enumerate(mine.prompts):
            llm.add_request(prompt, greedy(12), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
        for out in outputs.values():
            mine.check(out, greedy(12))
    assert sum(each.num_preemptions for out in outputs.values() for each in out.completions)
    assert any(out.num_cached for out in outputs.values())


@in_turn("model_type", sorted(REFUSED))
def test_what_the_measurement_cannot_explain_is_refused_by_name(model_type):
    model = small_model(small_config(model_type))
    code, word = REFUSED[model_type]
    with pytest.raises(ConfigError) as caught:
        bind_model(model, PagedKVCache(measure(model, kv_dtype="fp32"), 8, 4))
    assert (caught.value.code, word in str(caught.value)) == (code, True)
    assert caught.value.text("zh") != caught.value.text("en")


def test_a_model_that_returns_another_cache_is_refused_by_name():
    model = World.bare("apertus", num_hidden_layers=2)
    forward = model.forward

    @functools.wraps(forward)
    def other(*args, **options):
        out = forward(*args, **options)
        out.past_key_values = None
        return out

    model.forward = other
    with pytest.raises(ConfigError) as caught:
        measure(model)
    assert (caught.value.code, caught.value.values["kind"]) == ("measured_other_cache", "NoneType")


def test_a_keyword_called_state_is_no_cache_in_a_class_that_is_not_rwkv():
    model = World.bare("apertus", num_hidden_layers=2)
    model.forward = lambda input_ids, state=None: None
    with pytest.raises(ConfigError) as caught:
        measure(model)
    assert caught.value.code == "measured_no_cache"


def test_a_dictionary_under_a_name_of_a_cache_is_none():
    model = World.bare("apertus", num_hidden_layers=2)

    def forward(input_ids, cache: Optional[Dict[str, torch.Tensor]] = None):  # noqa: UP006, UP045
        raise AssertionError

    model.forward = forward
    assert cache_keyword(model) is None


def test_keys_of_several_heads_as_wide_as_a_rank_are_no_latent():
    model = World.bare("apertus", num_hidden_layers=2)
    attention = model.model.layers[1].self_attn
    attention.kv_b_proj = torch.nn.Linear(attention.head_dim, 4)
    assert attention.k_proj.out_features > attention.head_dim
    assert [layer.kind for layer in layers_of(model)] == ["full", "full"]


def test_a_measurement_holds_for_its_config_alone():
    model = World.bare("apertus", num_hidden_layers=3)
    spec = measure(model, kv_dtype="bf16")
    assert CacheSpec.from_config(model.config).layers == spec.layers
    assert CacheSpec.from_config(model.config, kv_dtype="int8").bytes_for(10) < spec.bytes_for(10)
    other = small_config("apertus", num_hidden_layers=3, num_key_value_heads=3)
    assert CacheSpec.from_config(other).layers != spec.layers
    assert CacheSpec.from_config(model.config, tp=2).bytes_for(10) == spec.bytes_for(10) // 2


def test_a_known_model_is_not_measured():
    model = World.bare("qwen3")

    def forward(*args, **options):
        raise AssertionError

    model.forward = forward
    assert measure(model).layers == CacheSpec.from_config(model.config, kv_dtype="fp32").layers


def test_a_model_that_computes_something_else_in_place_reads_copies():
    """Its keys depend on how many tokens a forward has: 7 are a decode beside a chunk of a prefill."""
    mine = World.bare("apertus", num_hidden_layers=2)
    keys = mine.model.layers[1].self_attn.k_proj
    keys.register_forward_hook(lambda module, args, out: out + 0.5 * (args[0].shape[1] == 7))
    cache = PagedKVCache(measure(mine, kv_dtype="fp32"), 8, 4)
    with pytest.raises(ArgumentError) as caught:
        bind_model(mine, cache, reads="paged")
    assert (caught.value.code, caught.value.values["why"]) == ("models_cannot_switch", "trial")
    adapter = bind_model(mine, cache)
    assert adapter.reads == "gather"


def test_a_model_that_computes_something_else_on_blocks_is_refused():
    """It looks at the class of its cache."""
    mine = World.bare("jetmoe", num_hidden_layers=2)
    cache, forward = PagedKVCache(measure(mine, kv_dtype="fp32"), 8, 4), mine.forward

    @functools.wraps(forward)
    def other(*args, **options):
        out = forward(*args, **options)
        out.logits[..., 3] += 0.1 * isinstance(cache_in(options), GatheredCache)
        return out

    mine.forward = other
    with pytest.raises(ConfigError) as caught:
        bind_model(mine, cache)
    assert caught.value.code == "measured_differs"
    assert caught.value.values["difference"] == pytest.approx(0.1, abs=0.01)


def test_one_config_in_two_dtypes_has_two_measurements():
    """Convolution states and indexer keys have the dtype of the model, which its config may not say."""
    model = World.bare("lfm3", num_hidden_layers=3)
    assert model.config.dtype is None
    wide = measure(model)
    narrow = measure(model.to(torch.bfloat16))
    assert 0 < narrow.constant_state_bytes < wide.constant_state_bytes
    assert measure(model.float()).constant_state_bytes == wide.constant_state_bytes


def test_rounding_in_bf16_is_told_from_a_cache_that_computes_something_else():
    right = World.bare("apertus", num_hidden_layers=2).to(torch.bfloat16)
    bind_model(right, PagedKVCache(measure(right), 8, 4)).unbind()
    wrong = World.bare("roberta", num_hidden_layers=2).to(torch.bfloat16)
    with pytest.raises(ConfigError) as caught:
        bind_model(wrong, PagedKVCache(measure(wrong), 8, 4))
    assert caught.value.code == "measured_own_cache"
    assert caught.value.values["difference"] > caught.value.values["spread"]
