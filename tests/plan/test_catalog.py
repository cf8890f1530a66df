"""The catalogue: every figure has a source, and none contradicts another."""

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from importlib.resources import files

import pytest

from minikv.errors import DoesNotFitError, UnknownNameError
from minikv.plan.budget import plan_memory
from minikv.plan.catalog import GPU, Model, find_gpu, find_model, gpu_names, model_names
from minikv.plan.spec.config import Config
from minikv.units import GIB, MIB
from tests.in_turn import in_turn

GPUS = [find_gpu(name) for name in gpu_names()]
MODELS = [find_model(name) for name in model_names()]
ENTRIES = [*GPUS, *MODELS]


def named(entry: GPU | Model) -> str:
    return entry.name


def data_texts() -> dict[str, str]:
    folder = files("minikv.plan") / "data"
    paths = [folder / "gpus.json", *(folder / "models").iterdir()]
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


# ---- every entry


@in_turn("entry", ENTRIES)
def test_every_entry_has_public_sources(entry):
    assert entry.sources
    for source in entry.sources:
        assert source.strip() == source != ""
        if source.startswith("github:"):  # owner/repo@commit:path, so that anyone can look it up
            assert re.match(r"github:[\w.-]+/[\w.-]+@[0-9a-f]{7,40}:\S+", source), source


@in_turn("gpu", GPUS)
def test_a_gpus_figures_are_plausible_and_say_where_the_total_comes_from(gpu):
    assert gpu.bandwidth_gb_s > 0
    assert (gpu.total_bytes is None) == (gpu.total_source == "")
    if gpu.total_bytes is not None:
        # At most the label read as GiB, hardly less than the label read as GB: a wrong unit shows either way.
        assert 0.97 * gpu.nominal_gb * 10**9 < gpu.total_bytes <= gpu.nominal_gb * GIB
        # What nvidia-smi counts in MiB is more than torch sees.
        assert "nvidia-smi" not in gpu.total_source
    if gpu.bf16_tflops and gpu.fp8_tflops:
        assert gpu.fp8_tflops == pytest.approx(2 * gpu.bf16_tflops, rel=0.02)
    if gpu.vendor == "NVIDIA":
        assert re.fullmatch(r"\d+\.\d", gpu.compute_capability)
        # No NVIDIA card computes in fp8 before 8.9, nor in bf16 before 8.0.
        capability = float(gpu.compute_capability)
        assert gpu.fp8_tflops is None or capability >= 8.9
        assert gpu.bf16_tflops is None or capability >= 8.0


@in_turn("gpu", GPUS)
def test_a_total_is_the_printed_figure_and_says_how_far_that_was_rounded(gpu):
    assert (gpu.total_rounded_to is None) == (gpu.total_bytes is None)
    if gpu.total_bytes is None:
        return
    if gpu.total_rounded_to == MIB:
        printed = re.search(r"total_memory=(\d+)MB|, (\d+) MiB", gpu.total_source)
        assert gpu.total_bytes == int(printed[1] or printed[2]) * MIB
    else:
        assert gpu.total_rounded_to == GIB // 100
        printed = re.search(r"(\d+\.\d\d) GiB", gpu.total_source)[1]
        assert abs(gpu.total_bytes - float(printed) * GIB) < 1


# MiB that nvidia-smi prints (aiconfigurator's comments; modal-labs/modal-client#2797; antirez/ds4#431;
# NVIDIA/TensorRT-LLM#10278): more than torch can see, so a plan must never count with them.
NVIDIA_SMI = {
    "GB300": 284_208, "B300 SXM": 275_040, "GB200": 189_471, "B200 SXM": 183_359, "H100 SXM 80GB": 81_559,
    "RTX PRO 6000 Blackwell Server": 97_887, "L40S": 46_068, "A40": 46_068, "L4": 23_034,
}  # fmt: skip


@in_turn("name, mib", NVIDIA_SMI.items())
def test_no_total_is_that_of_nvidia_smi(name, mib):
    gpu = find_gpu(name)
    assert gpu.total_bytes is None or gpu.total_bytes < 0.999 * mib * MIB
    assert "nvidia-smi" in gpu.note
    assert f"{mib:,} MiB" in gpu.note


@in_turn("model", MODELS)
def test_a_models_config_is_what_it_claims_to_be(model):
    config = Config(model.config, model.name)
    layers = config.require(
        "num_hidden_layers" if model.config["model_type"] != "whisper" else "decoder_layers"
    )
    assert layers > 0
    listed = config.fields.get("layer_types")
    assert listed is None or len(listed) == layers
    assert model.complete == (not model.missing)
    for path in model.missing:  # a field that is called missing has to be
        inner = model.config
        for key in path.split("."):
            inner = inner.get(key, {})
        assert inner == {}, path


@in_turn("model", [m for m in MODELS if m.complete])
def test_a_complete_model_has_the_sizes_that_weights_depend_on(model):
    config = Config(model.config, model.name)
    for field in ("vocab_size", "hidden_size", "num_attention_heads"):
        assert config.require(field) > 0
    assert any(
        config.get(field) for field in ("intermediate_size", "moe_intermediate_size", "decoder_ffn_dim")
    )
    assert "architectures" in model.config


@in_turn("model", [m for m in MODELS if m.expected])
def test_verified_bytes_do_not_contradict_each_other(model):
    hf, vllm = model.expected["hf_bf16"], model.expected["vllm_bf16_tp1"]
    assert 0 <= hf["bytes_per_token_beyond_window"] <= hf["bytes_per_token"]
    slides = hf["bytes_per_token_beyond_window"] < hf["bytes_per_token"]
    assert slides == (hf["window_tokens_kept"] is not None)
    # The two engines cache the same elements, except that transformers' figure holds indexer keys too.
    assert vllm["bytes_per_token"] == hf["bytes_per_token"] or "index_head_dim" in model.config
    assert hf.get("expanded_bytes_per_token", hf["bytes_per_token"]) >= hf["bytes_per_token"]


def test_figures_that_were_verified_elsewhere():
    totals = {
        "H200 SXM": 150_109_106_995,
        "H100 SXM 80GB": 85_061_827_297,
        "A100 SXM 80GB": 85_094_039_552,
        "A100 SXM 40GB": 42_412_802_048,
        "RTX 4090": 25_383_256_719,
        "T4": 15_633_680_957,
        "L40S": 47_695_611_822,
    }
    assert {name: find_gpu(name).total_bytes for name in totals} == totals
    assert [find_gpu(n).total_bytes for n in ("H100 PCIe", "L4", "A40", "GB200")] == [None] * 4
    bandwidths = {
        "H200": 4800,
        "H100 SXM": 3350,
        "A100 SXM 40GB": 1555,
        "L40S": 864,
        "B200": 7700,
        "MI300X": 5300,
    }
    assert {name: find_gpu(name).bandwidth_gb_s for name in bandwidths} == bandwidths
    assert (find_gpu("H200").bf16_tflops, find_gpu("H200").fp8_tflops) == (989, 1978)
    assert (find_gpu("T4").bf16_tflops, find_gpu("T4").fp16_tflops) == (None, 65)
    per_token = {
        "Llama-2-7B": 524_288,
        "Llama-3.1-8B": 131_072,
        "Qwen3-0.6B": 114_688,
        "Gemma-3-27B": 507_904,
        "Gemma-4-31B": 901_120,
        "gpt-oss-20b": 49_152,
        "DeepSeek-V3": 70_272,
        "Qwen3.5-27B": 65_536,
        "Jamba-v0.1": 16_384,
    }
    assert {n: find_model(n).expected["hf_bf16"]["bytes_per_token"] for n in per_token} == per_token
    assert find_model("DeepSeek-V3").expected["hf_bf16"]["expanded_bytes_per_token"] == 4_997_120
    assert find_model("Qwen3.5-27B").expected["hf_bf16"]["constant_state_bytes"] == 154_927_104


@in_turn("file, text", data_texts().items())
def test_the_data_names_no_path_of_a_machine(file, text):
    for forbidden in (
        r'"/',
        r"\b/(?:work|root|home|tmp|usr)/",
        r"[A-Z]:\\\\",
        r"file:",
        r"localhost",
        "search\\(",
    ):
        assert not re.search(forbidden, text), (file, forbidden)


def test_both_sizes_of_the_jetson_have_memory_and_the_bare_name_says_which_there_are():
    small, large = (find_gpu(f"Jetson AGX Orin {size}GB") for size in (32, 64))
    assert 2 * small.total_bytes < large.total_bytes < 2.1 * small.total_bytes
    assert small.bandwidth_gb_s == large.bandwidth_gb_s == 204.8
    with pytest.raises(UnknownNameError, match="Jetson AGX Orin 64GB, Jetson AGX Orin 32GB"):
        find_gpu("Jetson AGX Orin")
    with pytest.raises(DoesNotFitError):
        plan_memory("Qwen3-14B", gpu=small.name)
    assert plan_memory("Qwen3-14B", gpu=small.name, weight_dtype="int4").fits


# ---- the listings and the objects


def test_the_listings_are_stable_and_grouped():
    assert len(set(gpu_names())) == len(gpu_names()) == 29
    assert gpu_names()[0] == "GB300"
    names = model_names()
    assert len(set(names)) == len(names) == 88
    llamas = [name for name in names if name.startswith("Llama")]
    start = names.index(llamas[0])
    assert names[start : start + len(llamas)] == llamas
    sizes = [float(match[1]) for name in llamas if (match := re.search(r"-([\d.]+)B\b", name))]
    assert sizes[0] == 1
    assert sizes[-1] == 405


def test_entries_are_frozen_and_a_config_is_the_callers_own():
    with pytest.raises(FrozenInstanceError):
        find_gpu("H200").total_bytes = 0  # type: ignore[misc]
    mine = find_model("Llama-3.1-8B")
    mine.config["num_hidden_layers"] = 1
    assert find_model("Llama-3.1-8B").config["num_hidden_layers"] == 32


def test_the_catalogue_needs_no_torch():
    code = (
        "import sys; from minikv.plan.catalog import find_gpu, find_model;"
        "find_gpu('H200'); find_model('Qwen3-8B');"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
