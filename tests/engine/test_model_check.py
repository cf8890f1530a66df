"""``check_model``: each kind of cache beside ``generate()``, and a model that is unchanged afterwards."""

import pytest
import torch
from transformers import Step3p7Config, Step3p7ForConditionalGeneration

from minikv.engine import model_check
from minikv.engine.model_check import check_model
from minikv.models import Loaded
from tests.models.running import World
from tests.plan.small_models import SIZES

STEP = """vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim n_routed_experts
    max_position_embeddings num_local_experts num_experts_per_tok moe_intermediate_size sliding_window
    pad_token_id""".split()


def found_of(model):
    return {check.key: check for check in check_model(Loaded(model, None, "mine"))}


@pytest.mark.parametrize("model_type", ["gemma2", "deepseek_v3", "qwen3_next", "mamba2", "jamba", "bloom"])
def test_every_kind_of_cache_is_held_against_generate(model_type):
    mine = World.bare(model_type)
    mine.config.dtype = torch.float32
    before = mine.generation_config, mine.config._attn_implementation
    found = found_of(mine)
    assert {"known", "bytes"} < found.keys()
    assert {check.state for check in found.values()} == {"ok"}
    told = (found.get("tokens") or found["tied"]).values
    assert told["difference"] < 1e-3
    assert bool(told["preempted"]) == (model_type != "mamba2")
    assert told["reads"] == ("gather" if model_type == "bloom" else "paged")
    assert (mine.generation_config, mine.config._attn_implementation) == before


def test_a_window_that_no_text_passed_is_a_note():
    found = found_of(World.bare("mistral", sliding_window=500, max_position_embeddings=1000))
    assert found["window"].state == "note"
    assert found["window"].values["window"] == 499


def test_a_cache_with_other_bytes_than_planned_fails(monkeypatch):
    held = model_check._held
    monkeypatch.setattr(model_check, "_held", lambda layer: [*held(layer), torch.zeros(3)])
    found = found_of(World.bare("llama"))["bytes"]
    assert (found.state, found.line("en").startswith("[FAIL] ")) == ("failed", True)
    assert found.values["held"] == found.values["planned"] + 6 * 12


def test_a_config_that_says_another_dtype_than_the_model_has_is_outdated():
    mine = World.bare("mamba2")
    mine.config.dtype = torch.bfloat16
    assert found_of(mine)["bytes"].state == "ok"


def test_texts_that_part_at_a_tie_are_not_compared_behind_it(monkeypatch):
    answer = model_check._answer

    def tied(model, prompt):
        own = answer(model, prompt)
        own.tokens[2] = int(own.logits[2].argsort()[-2])
        own.logits[2] *= 1e-9
        return own

    monkeypatch.setattr(model_check, "_answer", tied)
    found = found_of(World.bare("llama"))["tied"]
    assert (found.state, found.values["ties"], found.values["equal"]) == ("ok", 4, 8)


def test_a_model_of_text_and_images_is_held_when_it_is_handed_over():
    """transformers lists Step-3.7 among no causal decoders, so its name is refused; its text runs all the same."""
    text = {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "share_expert_dim": 24,
        "dtype": "float32",
    }
    sizes = {name: size for name, size in SIZES.items() if name in STEP} | text
    vision = {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 1, "num_attention_heads": 6}
    vision |= {"image_size": 28, "patch_size": 14, "max_position_embeddings": 4}
    torch.manual_seed(0)
    config = Step3p7Config(text_config=sizes, vision_config=vision, image_token_id=96)
    found = found_of(Step3p7ForConditionalGeneration(config).eval())
    assert found["measured"].values["model_type"] == "step3p5"
    assert {check.state for check in found.values()} == {"ok"}
    assert found["tokens"].values["reads"] == "paged"
