"""A dtype has the same names wherever one is asked for: those of config.json, of vLLM, of torch, and the short ones."""

import pytest
import torch

from minikv import LLM, CacheSpec, SamplingParams
from minikv.cache import find_codec
from minikv.errors import ArgumentError
from minikv.models import load
from minikv.plan.dtypes import KV_DTYPES, find_dtype, find_kv_dtype

WEIGHTS = {
    torch.float32: ("fp32", "float32", "float", "torch.float32"),
    torch.bfloat16: ("bf16", "bfloat16", "torch.bfloat16", "BF16"),
    torch.float16: ("fp16", "float16", "half", "torch.half"),
}
SPELLED = [(dtype, name) for dtype, names in WEIGHTS.items() for name in (dtype, *names)]


@pytest.mark.parametrize(("dtype", "name"), SPELLED)
def test_weights_and_caches_take_every_name(dtype, name):
    assert load("tiny-gqa", dtype=name, device="cpu").model.dtype is dtype
    spec = CacheSpec.from_config("Qwen3-0.6B", kv_dtype=name)
    assert spec.kv_dtype == find_kv_dtype(name).name == find_dtype(name) == WEIGHTS[dtype][0]
    assert find_codec(name).dtype is dtype


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float32", "bfloat16"), ("float", torch.float16)])
def test_an_llm_takes_them_for_its_weights_and_for_its_cache(dtype, kv_dtype):
    with LLM("tiny-gqa", dtype=dtype, kv_dtype=kv_dtype, num_blocks=16, block_size=4) as llm:
        assert llm.model.dtype is torch.float32
        assert llm.cache.codec is find_codec(kv_dtype)
        assert llm.generate("ada paris ben oslo ? ada", SamplingParams(max_tokens=1), progress=False)[0].text


def test_the_other_names_of_eight_bits():
    for name in ("fp8", "fp8_e4m3", "float8_e4m3fn", torch.float8_e4m3fn):
        assert find_kv_dtype(name) is KV_DTYPES["fp8"]
    for name in ("fp8_e5m2", "float8_e5m2", torch.float8_e5m2):
        assert find_kv_dtype(name) is KV_DTYPES["fp8_e5m2"]


@pytest.mark.parametrize("name", ["int8", "fp8", "double", "torch.", "autos", "", None, 16, torch.float64])
def test_what_weights_cannot_be_is_refused_with_the_names(name):
    with pytest.raises(ArgumentError) as refused:
        find_dtype(name)
    assert refused.value.values["known"] == "auto, fp32, bf16, fp16"
