"""``LLM(spec=...)``: layers that were described by hand are held against the model's own cache before they count."""

import json
from dataclasses import replace

import pytest
import torch

from minikv.cli.plan import spec_dict
from minikv.errors import ArgumentError, ConfigError
from minikv.models.measured import check_described, measure
from minikv.plan import CacheSpec
from tests.engine.llm_world import Reference, greedy, make
from tests.in_turn import in_turn
from tests.models.running import World

KINDS = (
    "gemma2",
    "gemma3n_text",
    "deepseek_v3",
    "qwen3_next",
    "mamba2",
    "nemotron_h",
    "llama4_text",
    "apertus",
)


def described(spec: CacheSpec) -> dict:
    """The spec as a file describes it."""
    return json.loads(json.dumps(spec_dict(spec)))


@in_turn("model_type", KINDS)
def test_what_the_planner_prints_of_a_model_is_a_description_of_it(model_type):
    model = World.bare(model_type)
    model.config.dtype = torch.float32  # of the states
    spec = CacheSpec.from_layers(described(measure(model, kv_dtype="fp32")))
    check_described(model, spec)


def test_a_description_in_a_file_gives_what_generate_gives(tmp_path):
    mine = Reference("apertus", num_hidden_layers=3)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described(measure(mine.model, kv_dtype="fp32")) | {"max_positions": 50}))
    for spec in (path, str(path), json.loads(path.read_text()), CacheSpec.from_layers(path)):
        with make(mine.model, spec=spec) as llm:
            assert llm.scheduler.max_model_len == 50
            mine.check(llm.generate(mine.prompts[:1], greedy(), progress=False)[0], greedy())


def test_the_dtype_of_a_description_counts_where_none_is_given():
    model = World.bare("llama", num_hidden_layers=2)
    told = described(measure(model, kv_dtype="bf16"))
    with make(model, spec=told) as llm:
        assert llm.cache.spec.kv_dtype == "bf16"
    with make(model, spec=told, kv_dtype="fp32") as llm:
        assert llm.cache.spec.kv_dtype == "fp32"


@pytest.mark.parametrize(
    ("model_type", "layer", "changes", "held"),
    [
        ("llama", 1, {"kv_heads": 6}, 2),
        ("gemma2", 0, {"window": 99}, None),
        ("qwen3_next", 0, {"state_bytes": 4}, None),
        ("mamba2", 0, {"kv_heads": 1, "k_dim": 8, "v_dim": 8}, 0),
    ],
)
def test_what_the_model_does_not_hold_is_refused_with_both_figures(model_type, layer, changes, held):
    model = World.bare(model_type)
    spec = measure(model, kv_dtype="fp32")
    layers = list(spec.layers)
    layers[layer] = replace(layers[layer], **changes)
    with pytest.raises(ConfigError) as caught:
        make(model, spec=replace(spec, layers=tuple(layers)))
    values = caught.value.values
    field, told = next(iter(changes.items()))
    assert (caught.value.code, values["layer"], values["field"]) == ("spec_layer", layer, field)
    assert values["described"] == told + (field == "window")
    assert held in (None, values["held"])
    assert caught.value.text("zh") != caught.value.text("en")


def test_other_layers_and_a_file_that_is_not_there_are_refused(tmp_path):
    model = World.bare("llama")
    spec = measure(model)
    with pytest.raises(ConfigError) as caught:
        make(model, spec=replace(spec, layers=spec.layers[1:]))
    assert caught.value.code == "spec_layers"
    with pytest.raises(ConfigError) as caught:
        make(model, spec=tmp_path / "none.json")
    assert caught.value.code == "no_file"
    with pytest.raises(ArgumentError) as caught:
        make(World.bare("llama"), spec=replace(spec, tp=2))
    assert caught.value.code == "spec_one_process"
