"""A KV cache of fewer bytes: close to the model's own numbers, and the same ones however the requests are scheduled."""

import pytest
import torch

from minikv.engine import factory
from minikv.errors import ArgumentError
from tests.engine.llm_world import check_empty, greedy, make, reference
from tests.longer import usual_if

HEAD = 10  # elements
# Bytes of a head, a float32 scale included, and how far a log-probability may be off: 8, 4, 3, 4 and 7 bits are left.
SMALLER = {
    "bf16": (20, 0.02),
    "fp8_e4m3": (10, 0.3),
    "fp8_e5m2": (10, 0.6),
    "fp8_scaled": (14, 0.3),
    "int8": (14, 0.08),
}
# Blocks that are read in place, windows, latents, a gathered history; and a pool that is too small.
PAIRS = [
    *(("llama", kv_dtype, 14) for kv_dtype in SMALLER),
    ("mistral", "int8", 6),
    ("deepseek_v3", "int8", 14),
    ("bloom", "fp8_scaled", 14),
]


@pytest.mark.parametrize("kv_dtype", SMALLER)
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_a_smaller_cache_gives_nearly_the_same_numbers(model_type, kv_dtype):
    """Of the first token, since from then on one that was drawn otherwise changes all behind it."""
    model, (head_bytes, most) = reference(model_type), SMALLER[kv_dtype]
    with make(model.model) as llm:
        plain_bytes = llm.cache.nbytes
    with make(model.model, kv_dtype=kv_dtype) as llm:
        assert llm.cache.nbytes * 4 * HEAD == plain_bytes * head_bytes
        outputs = llm.generate(model.prompts, greedy(1, logprobs=97))
    off = []
    for prompt, out in zip(model.prompts, outputs, strict=True):
        due = model.answer(prompt)[1][0].log_softmax(-1)
        told = torch.tensor([value for _, value in sorted(out.logprobs[0].top)])
        off.append(float((told - due).abs().max()))
    assert 0 < max(off) < most, "stored with fewer bits, and not lost"


# A scaled and an unscaled dtype of every way to read; the others differ in how many bits a token keeps, and are
# compared above.
@pytest.mark.parametrize(
    ("model_type", "kv_dtype", "few"),
    usual_if(lambda pair: pair[0] != "llama" or pair[1] == "fp8_e4m3", PAIRS),
)
def test_chunks_forks_and_preemption_change_no_token(model_type, kv_dtype, few):
    """A token's K and V are rounded by themselves, scales included, so it does not matter in which step or block."""
    model = reference(model_type)
    prompts = model.prompts[::2]
    with make(model.model, kv_dtype=kv_dtype, num_blocks=200) as llm:
        alone = [out.token_ids for prompt in prompts for out in llm.generate(prompt, greedy(12))]
    sizes = {"num_blocks": few, "max_batched_tokens": 9, "max_num_seqs": 5}
    with make(model.model, kv_dtype=kv_dtype, **sizes) as llm:
        outputs = llm.generate(prompts, greedy(12, n=2))
        check_empty(llm)
    assert any(each.num_preemptions for out in outputs for each in out.completions)
    assert [[each.token_ids for each in out.completions] for out in outputs] == [[ids] * 2 for ids in alone]


@pytest.mark.parametrize("options", [{"cache": "linear", "kv_dtype": "int8"}, {"kv_dtype": "int3"}])
def test_what_cannot_be_stored_so_is_refused(options):
    model = reference("llama").model
    own = model.config._attn_implementation
    with pytest.raises(ArgumentError) as raised:
        make(model, **options)
    assert str(options["kv_dtype"]) in str(raised.value)
    assert model.config._attn_implementation == own


def test_latents_that_are_quantized_are_read_as_copies():
    """Absorbed MLA computes with the latents as they are stored; copies are decoded first."""
    model = reference("deepseek_v3").model
    with make(model, kv_dtype="int8") as llm:
        assert llm.adapter.reads == "gather"
    with pytest.raises(ArgumentError) as raised:
        make(model, kv_dtype="int8", reads="paged")
    assert raised.value.code == "models_cannot_switch"


def test_each_name_stores_what_it_says():
    model = reference("llama").model
    names = {
        "fp8_e4m3": torch.float8_e4m3fn,
        "fp8": torch.float8_e4m3fn,
        "fp8_e5m2": torch.float8_e5m2,
        "fp8_scaled": torch.float8_e4m3fn,
        "int8": torch.int8,
    }
    for name, dtype in names.items():
        with make(model, kv_dtype=name) as llm:
            assert (llm.cache.codec.dtype, llm.cache.layer(0).k.dtype) == (dtype, dtype)
            assert llm.cache.codec.scaled == (name in ("fp8_scaled", "int8"))


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "gemma3_text"])
def test_the_same_bytes_hold_as_many_more_tokens_as_a_token_takes_fewer(model_type):
    """Counted in what is allocated, scales and windows included."""
    model, kv_bytes, blocks, token = reference(model_type).model, 2**18, {}, {}
    for kv_dtype in ("fp32", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_scaled", "int8"):
        with make(model, kv_dtype=kv_dtype, kv_bytes=kv_bytes) as llm:
            cache = llm.cache
            groups = zip(cache.kv_cache_groups, cache.num_blocks, strict=True)
            assert cache.nbytes == sum(group.block_bytes(4) * count for group, count in groups)
            assert (
                cache.nbytes
                <= kv_bytes
                < cache.nbytes + sum(group.block_bytes(4) for group in cache.kv_cache_groups)
            )
            assert cache.arena.capacity - cache.nbytes == cache.arena.report().padding
            blocks[kv_dtype] = cache.num_blocks[0]
            token[kv_dtype] = sum(layer.token_bytes for layer in cache.spec.layers)
    for kv_dtype in blocks:
        due = blocks["fp32"] * token["fp32"] / token[kv_dtype]
        assert abs(blocks[kv_dtype] - due) <= token["fp32"] / token[kv_dtype] + 1
    assert blocks["fp8_e4m3"] == blocks["fp8_e5m2"] >= 2 * blocks["bf16"] >= 4 * blocks["fp32"]


def on_a_gpu_of(capability, monkeypatch):
    """The Triton kernels would run, on a GPU of that compute capability; none is started."""
    pytest.importorskip("triton")
    from minikv.kernels.gpu import common

    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    monkeypatch.setattr(common, "device_of", lambda device: common.Device(capability, 108))


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_scaled"])
@pytest.mark.parametrize("capability", [75, 80, 86])
def test_a_gpu_that_cannot_read_e4m3_refuses_it_when_the_llm_is_made(capability, kv_dtype, monkeypatch):
    model, made = reference("llama").model, []
    own = model.config._attn_implementation
    on_a_gpu_of(capability, monkeypatch)
    build = factory.build_cache
    monkeypatch.setattr(factory, "build_cache", lambda *args: made.append(build(*args)) or made[-1])
    with pytest.raises(ArgumentError) as raised:
        make(model, kv_dtype=kv_dtype)
    assert raised.value.code == "kernel_fp8"
    assert str(capability / 10) in str(raised.value)
    assert model.config._attn_implementation == own
    with pytest.raises(ArgumentError, match="closed"):  # though the traceback still holds the LLM
        made[0][0].parts(0)


@pytest.mark.parametrize(
    ("model_type", "capability", "options"),
    [
        ("llama", 89, {"kv_dtype": "fp8_e4m3"}),
        ("llama", 75, {"kv_dtype": "fp8_e5m2"}),
        ("llama", 75, {"kv_dtype": "int8"}),
        ("llama", 75, {"kv_dtype": "fp8_e4m3", "reads": "gather"}),
        ("deepseek_v3", 75, {"kv_dtype": "fp8_e4m3"}),  # quantized latents are read as copies
        ("bloom", 75, {"kv_dtype": "fp8_e4m3"}),
    ],
)
def test_what_another_format_or_another_way_of_reading_can_do_is_not_refused(
    model_type, capability, options, monkeypatch
):
    on_a_gpu_of(capability, monkeypatch)
    with make(reference(model_type).model, **options) as llm:
        assert llm.cache.codec.itemsize == 1


def test_an_unknown_dtype_is_refused_before_any_weight_is_read(tmp_path):
    with pytest.raises(ArgumentError) as raised:
        make(tmp_path / "absent", kv_dtype="int3")
    assert raised.value.code == "unknown_choice"
