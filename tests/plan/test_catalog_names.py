"""The names of the catalogue: one is found however it is spelled, and never by half."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.errors import UnknownNameError
from minikv.plan.catalog import GPU, find_gpu, find_model
from tests.in_turn import in_turn
from tests.plan.test_catalog import ENTRIES, GPUS, MODELS


@in_turn(
    "spelling, name",
    [
        ("H200", "H200 SXM"),
        ("h200-sxm", "H200 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("A100 SXM4 80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("L40", "L40"),
        ("l40s", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_gpu_is_found_however_it_is_spelled(spelling, name):
    assert find_gpu(spelling).name == name


@in_turn(
    "spelling, name",
    [
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Llama 3.1 8B", "Llama-3.1-8B"),
        ("LLAMA_3.1_8B_INSTRUCT", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
        ("google/gemma-4-31b-it", "Gemma-4-31B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("deepseek v3.2", "DeepSeek-V3.2"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B-Instruct"),
        ("microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini-4k"),
    ],
)
def test_a_model_is_found_however_it_is_spelled(spelling, name):
    assert find_model(spelling).name == name


@given(st.sampled_from(ENTRIES), st.data())
def test_case_spaces_and_dashes_change_nothing(entry, data):
    find = find_gpu if isinstance(entry, GPU) else find_model
    spelling = data.draw(st.sampled_from([entry.name, *entry.aliases]))
    separator = data.draw(st.sampled_from(["", " ", "-", "_", "  "]))
    spelling = re.sub(r"[ -]", lambda _: separator, spelling)
    upper = data.draw(st.lists(st.booleans(), min_size=len(spelling), max_size=len(spelling)))
    spelling = "".join(c.upper() if up else c.lower() for c, up in zip(spelling, upper, strict=True))
    assert find(spelling).name == entry.name


def test_no_two_entries_share_a_spelling():
    for entries in (GPUS, MODELS):
        owner: dict[str, str] = {}
        for entry in entries:
            for spelling in {re.sub(r"\W|_", "", s.lower()) for s in (entry.name, *entry.aliases)}:
                assert owner.setdefault(spelling, entry.name) == entry.name, spelling


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100", ["A100 SXM 80GB", "A100 PCIe 80GB", "A100 SXM 40GB"]),
        ("a100 80gb", ["A100 SXM 80GB", "A100 PCIe 80GB"]),
        ("H100", ["H100 SXM 80GB", "H100 PCIe 80GB"]),
        ("NVIDIA H100", ["H100 SXM 80GB", "H100 PCIe 80GB"]),
    ],
)
def test_an_ambiguous_gpu_name_lists_the_candidates(name, candidates):
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(name)
    assert caught.value.code == "ambiguous_gpu"
    for lang in ("en", "zh"):
        assert all(candidate in caught.value.text(lang) for candidate in (name, *candidates))


def test_an_ambiguous_model_name_lists_the_candidates():
    with pytest.raises(UnknownNameError) as caught:
        find_model("Llama-3.1")
    assert caught.value.code == "ambiguous_model"
    assert caught.value.values["candidates"] == "Llama-3.1-8B, Llama-3.1-70B, Llama-3.1-405B"
    assert "Llama-3.1-70B" in caught.value.text("zh")


@pytest.mark.parametrize(
    ("find", "name", "near"),
    [
        (find_gpu, "H300", "H200 SXM"),
        (find_gpu, "RTX 4900", "RTX 4090"),
        (find_gpu, "V100", "V100 SXM 32GB"),  # part of one name is still not a name: there is a 16 GB one
        (find_model, "Llama-3.1-9B", "Llama-3.1-8B"),
        (find_model, "Mistral-7B", "Mistral-7B-v0.1"),  # v0.1 slides, v0.3 does not
        (find_model, "Qwen3-8B-FP8", "Qwen3-8B"),  # half the weights
    ],
)
def test_an_unknown_name_suggests_the_nearest(find, name, near):
    with pytest.raises(UnknownNameError) as caught:
        find(name)
    assert caught.value.code == ("unknown_gpu" if find is find_gpu else "unknown_model")
    assert near in caught.value.values["nearest"].split(", ")
    for lang in ("en", "zh"):
        text = caught.value.text(lang)
        assert name in text
        assert near in text
        assert "minikv plan --list" in text


@pytest.mark.parametrize(
    "name", ["./DeepSeek-V3", "/models/DeepSeek-V3", "models/DeepSeek-V3", "../DeepSeek-V3/"]
)
def test_a_path_is_not_a_model_because_it_ends_like_one(name):
    with pytest.raises(UnknownNameError):
        find_model(name)


@given(st.text(max_size=20))
def test_any_text_is_found_or_refused_with_suggestions(name):
    for find in (find_gpu, find_model):
        try:
            answer = find(name).name
        except UnknownNameError as error:
            answer = error.values.get("nearest") or error.values.get("candidates")
        assert answer


@pytest.mark.parametrize("find", [find_gpu, find_model])
@pytest.mark.parametrize("name", [5, None, 1.5, ["H200"]])
def test_what_is_no_text_is_an_unknown_name(find, name):
    with pytest.raises(UnknownNameError):
        find(name)
