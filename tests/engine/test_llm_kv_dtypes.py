"""A KV cache of fewer bytes: close to the model's own numbers, and the same ones however the requests are scheduled."""

import pytest
import torch

from minikv.errors import ArgumentError
from tests.engine.llm_world import check_empty, greedy, make, reference

HEAD = 10  # elements
# Bytes of a head, a float32 scale included, and how far a log-probability may be off: 8, 4, 4 and 7 bits are left.
SMALLER = {"bf16": (20, 0.02), "fp8": (10, 0.3), "fp8_scaled": (14, 0.3), "int8": (14, 0.08)}
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


@pytest.mark.parametrize(("model_type", "kv_dtype", "few"), PAIRS)
def test_chunks_forks_and_preemption_change_no_token(model_type, kv_dtype, few):
    """A token's K and V are rounded by themselves, scales included, so it does not matter in which step or block."""
    model = reference(model_type)
    with make(model.model, kv_dtype=kv_dtype, num_blocks=200) as llm:
        alone = [out.token_ids for prompt in model.prompts for out in llm.generate(prompt, greedy(12))]
    sizes = {"num_blocks": few, "max_batched_tokens": 9, "max_num_seqs": 5}
    with make(model.model, kv_dtype=kv_dtype, **sizes) as llm:
        outputs = llm.generate(model.prompts, greedy(12, n=2))
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
