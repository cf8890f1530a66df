"""The models of the catalogue whose layers were measured: planned without torch, equal to what transformers builds."""

import subprocess
import sys

import pytest

from minikv.errors import ArgumentError, ConfigError
from minikv.models.on_meta import measure_config
from minikv.plan import CacheSpec, find_model, model_names, plan_memory, weight_bytes
from minikv.plan.spec.architectures import ARCHITECTURES
from minikv.plan.spec.config import Config
from minikv.plan.spec.measured import measured_parameters
from tests.in_turn import in_turn
from tests.longer import usual_if

MEASURED = [name for name in model_names() if find_model(name).layers]
USUAL = ("LFM3-1.7B", "Mistral-Small-4-119B")
TOKEN_BYTES = {
    "Hy3-preview": 327_680,
    "Kimi-Linear-48B-A3B": 6_912,
    "Laguna-XS.2": 163_840,
    "MiniMax-M3": 137_472,
    "Mistral-Large-4-1T-A52B": 99_072,
    "Mistral-Small-4-119B": 23_040,
    "Muse-Glimmer-30B": 53_248,
    "Step-3.7-Flash": 184_320,
}


def described(name: str) -> CacheSpec:
    return CacheSpec.from_layers({"layers": list(find_model(name).layers)})


@in_turn("name", MEASURED)
def test_an_entry_s_layers_are_those_of_its_name_in_any_dtype_and_layout(name):
    spec = CacheSpec.from_config(name)
    assert spec.layers == described(name).layers
    assert spec.model_type not in ARCHITECTURES
    assert all("measured" in spec.explain(lang) or "测得" in spec.explain(lang) for lang in ("en", "zh"))
    assert CacheSpec.from_config(name, kv_dtype="fp8").layers == tuple(
        CacheSpec.from_layers({"layers": list(find_model(name).layers)}, kv_dtype="fp8").layers
    )
    windows = {layer.window for layer in spec.layers if layer.window}
    kept = {layer.window for layer in CacheSpec.from_config(name, layout="vllm").layers if layer.window}
    assert kept == {window + 1 for window in windows}, "vLLM's window counts the query"


@in_turn("name, token_bytes", TOKEN_BYTES.items())
def test_bytes_of_a_token(name, token_bytes):
    assert CacheSpec.from_config(name).slope(0) == token_bytes


@pytest.mark.parametrize("name", usual_if(USUAL.__contains__, MEASURED))
def test_transformers_builds_these_layers_and_parameters(name):
    model = find_model(name)
    config = Config(model.config, name)
    assert measure_config(config)
    assert CacheSpec.from_config(model.config).layers == described(name).layers
    assert model.parameters in (None, measured_parameters(config))


def test_no_torch_is_needed():
    code = f"""
import sys
from minikv.errors import ConfigError
from minikv.plan import CacheSpec, plan_memory
specs = [CacheSpec.from_config(name) for name in {MEASURED}]
plan_memory("Muse-Glimmer-30B", gpu="H200", activation_bytes=2**30)
try:
    plan_memory("Step-3.7-Flash", gpu="H200", activation_bytes=2**30)
except ConfigError as refused:  # no source counts its parameters
    print(refused.code, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "weights_unknown []"


def test_weights_are_the_parameters_and_asked_for_where_ranks_share_them():
    weights = weight_bytes("Laguna-XS.2")
    assert (weights.total, weights.num_parameters) == (2 * 33_442_617_088, 33_442_617_088)
    with pytest.raises(ConfigError) as caught:
        weight_bytes("Laguna-XS.2", tp=8)
    assert caught.value.code == "weights_unknown"
    assert "--weight-bytes" in caught.value.text("zh")
    with pytest.raises(ArgumentError, match="--activation-bytes"):
        plan_memory("Laguna-XS.2", gpu="H200")


def test_a_rank_has_its_share_of_the_heads_and_whole_latents():
    whole, rank = (CacheSpec.from_config("MiniMax-M3", tp=tp) for tp in (1, 8))
    indexer = 57 * 128 * 2  # an indexer's key is on every rank
    assert rank.slope(0) - indexer == (whole.slope(0) - indexer) // 4, "4 heads, so two ranks have the same"
    latents = {CacheSpec.from_config("Mistral-Small-4-119B", tp=tp).slope(0) for tp in (1, 8)}
    assert latents == {23_040}
    with pytest.raises(ConfigError) as caught:
        CacheSpec.from_config("Kimi-Linear-48B-A3B", tp=2)
    assert caught.value.code == "measured_tp"
    with pytest.raises(ConfigError, match="48 attention heads"):
        CacheSpec.from_config("Laguna-XS.2", tp=5)
