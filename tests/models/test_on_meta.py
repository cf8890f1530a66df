"""A decoder on no list, planned from its config alone: measured without weights, equal to what transformers holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from minikv.errors import ArgumentError, ConfigError
from minikv.plan import CacheSpec, plan_memory
from minikv.plan.decoders import decoder_outcomes
from minikv.plan.spec import measured
from tests.in_turn import in_turn
from tests.longer import usual_if
from tests.plan.small_models import small_config, small_decoder, small_model
from tests.plan.test_truth import BATCH, numel_bytes, run
from tests.tools.without import environment_without

# Their classes read values while they are built or run, and a meta tensor has none.
READ_VALUES = {"big_bird", "biogpt", "jetmoe", "megatron-bert", "rembert", "roformer"}
MEASURED = [each.model_type for each in decoder_outcomes() if each.outcome == "measured"]
# The cache that they hand out is without their states: tests/models/test_lender.py.
ELSEWHERE = {"minimax", "recurrent_gemma"}
PLANNED = [name for name in MEASURED if name not in READ_VALUES | ELSEWHERE]
USUAL = ("apertus", "kimi_linear", "minimax_m3_vl_text", "rwkv", "zamba2")
ROOT = Path(__file__).resolve().parents[2]


def on_disk(folder, config, dtype: str = "float32") -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict() | {"dtype": dtype}, default=str))
    return str(folder)


@pytest.mark.parametrize("model_type", usual_if(USUAL.__contains__, PLANNED))
def test_the_plan_of_a_config_is_what_transformers_holds(model_type, tmp_path):
    config = small_decoder(model_type)
    spec = CacheSpec.from_config(on_disk(tmp_path, config))
    assert spec.kv_dtype == "fp32"
    assert "measured, not known" in spec.explain()
    assert "measured, not known" in spec.text()
    for length, _step, cache in run(small_model(config), BATCH):
        assert numel_bytes(cache) == spec.bytes_for(length, BATCH), (length, spec.explain())


@pytest.mark.parametrize("model_type", ["kimi_linear", "rwkv", "xlstm"])
def test_in_bf16_states_keep_the_dtype_that_their_class_gives_them(model_type, tmp_path):
    config = small_config(model_type)
    spec = CacheSpec.from_config(on_disk(tmp_path, config, "bfloat16"))
    for length, _step, cache in run(small_model(config, torch.bfloat16), BATCH):
        assert numel_bytes(cache) == spec.bytes_for(length, BATCH), (length, spec.explain())


def test_the_decoder_inside_a_model_of_images_and_text_is_planned(tmp_path):
    types = ["full_attention", "sliding_attention", "sliding_attention"] * 2
    text = small_config("step3p5", layer_types=types, share_expert_dim=24).to_dict()
    vision = {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 1, "num_attention_heads": 6}
    vision |= {"image_size": 28, "patch_size": 14, "max_position_embeddings": 4}
    config = CONFIG_MAPPING["step3p7"](text_config=text, vision_config=vision, image_token_id=96)
    spec = CacheSpec.from_config(on_disk(tmp_path, config))
    assert spec.model_type == "step3p5"
    assert {layer.kind for layer in spec.layers} == {"full", "sliding"}
    for length, _step, cache in run(AutoModelForImageTextToText.from_config(config).eval(), BATCH):
        assert numel_bytes(cache) == spec.bytes_for(length, BATCH), (length, spec.explain())


def test_what_cannot_be_measured_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(measured, "_MEASURED", {})  # another test may have measured a model of this config
    with pytest.raises(ConfigError, match="meta") as caught:
        CacheSpec.from_config(small_config("biogpt").to_dict())
    assert caught.value.code == "measured_failed"


@in_turn("field", ["num_hidden_layers", "hidden_size"])
def test_no_size_is_taken_from_a_class(field):
    fields = {name: value for name, value in small_config("apertus").to_dict().items() if name != field}
    with pytest.raises(ConfigError, match=field):
        CacheSpec.from_config(fields)


@pytest.mark.parametrize("field", ["num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"])
def test_a_count_that_is_none_is_refused_before_torch_sees_it(field):
    with pytest.raises(ConfigError, match=f"{field}.*-2") as caught:
        CacheSpec.from_config(small_config("apertus").to_dict() | {field: -2})
    assert caught.value.code == "bad_field"


def test_a_flat_config_of_a_composite_is_that_of_its_decoder():
    text = small_config("step3p5", share_expert_dim=24, num_hidden_layers=5).to_dict()
    spec = CacheSpec.from_config(text | {"model_type": "step3p7", "dtype": "float32"})
    assert [layer.kv_heads for layer in spec.layers] == [2] * 5


def test_a_card_is_planned_with_the_weights_of_the_model_that_was_built():
    config = small_config("apertus", num_hidden_layers=5)
    given = {"gpu": "H200", "activation_bytes": 2**20, "context": 64}
    budget = plan_memory(config, **given)
    assert budget.weights.num_parameters == small_model(config).num_parameters()
    assert budget.weight_bytes == budget.weights.num_parameters * 2
    assert f"{budget.weights.num_parameters:,}" in budget.text()
    with pytest.raises(ArgumentError, match="activation") as caught:
        plan_memory(config, gpu="H200", context=64)
    assert caught.value.text("zh") != caught.value.text("en")
    quantized = config.to_dict() | {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(ConfigError) as caught:
        plan_memory(quantized, **given)
    assert caught.value.code == "weights_unknown"


@in_turn("lang", ["en", "zh"])
def test_without_torch_it_says_what_to_install(tmp_path, lang):
    packages = ("torch", "transformers")
    path = on_disk(tmp_path, small_config("apertus"))
    command = [sys.executable, "-m", "minikv", "plan", path, "--lang", lang]
    env = environment_without(tmp_path, ROOT, packages, packages)
    done = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, "minikv[engine]" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
