"""Tokens and logits through a paged cache are those of the model's own ``generate``, whatever the batch looks like."""

import pytest
import torch
import transformers
from packaging.version import Version

from minikv.cache import PagedKVCache
from minikv.models import ATTENTION, bind_model
from minikv.plan import CacheSpec
from tests.cache.test_paged_architectures import REFUSED
from tests.in_turn import in_turn
from tests.longer import every_value, usual_if
from tests.models.running import NEW_TOKENS, Result, World, poison, world
from tests.plan.small_models import DECODERS, TEXT_ONLY

# The architectures that stand for the others, each with something of its own: windows in all or some layers, softcap,
# sinks, shared layers, experts, latents, learned positions, attention inside the class (Falcon, Bloom).
MODELS = (
    "llama qwen2 qwen3 qwen3_moe mistral mixtral gemma2 gemma3_text gemma3n_text phi3 gpt_oss deepseek_v2 "
    "deepseek_v3 gpt2 opt falcon bloom"
).split()
# What `reads="auto"` runs on copies: (see `bind_model`). All others read their blocks in place.
GATHERED = "bloom falcon gptj llama4_text mpt nemotron phimoe stablelm".split()
if Version(transformers.__version__) >= Version("5.24"):
    GATHERED.remove("gptj")  # its class calls the attention function of the config
OF_OTHERS = [[5, 61], [3, 88, 2, 7, 31, 8, 54, 6, 42, 7, 19, 96, 11, 70, 23, 9]]
OTHERS = [name for name in DECODERS if name not in [*MODELS, *REFUSED] and not name.endswith(TEXT_ONLY)]


@pytest.mark.parametrize(
    ("model_type", "sizes"), every_value(list(MODELS), [(1, 5), (16, None), (256, 7)]), ids=str
)
def test_prompts_of_mixed_length_give_what_generate_gives(model_type, sizes):
    mine, (block_size, chunk) = world(model_type), sizes
    result = mine.run(block_size, chunk=chunk)
    prompts = len(mine.prompts)
    assert result.ties < prompts
    if not result.ties:
        assert result.computed == sum(map(len, mine.prompts)) + prompts * (NEW_TOKENS - 1)


@pytest.mark.parametrize("model_type", OTHERS)
def test_every_other_decoder_on_the_list_too(model_type):
    """A short prompt beside one that comes in three chunks and is longer than the windows."""
    mine = World(model_type, prompts=OF_OTHERS)
    assert mine.run(4, chunk=6).ties < len(mine.prompts)


@pytest.mark.parametrize(
    "model_type", ["llama", "gemma3_text", "gemma3n_text", "gpt_oss", "mistral", "deepseek_v3"]
)
def test_copies_of_the_history_give_it_too(model_type):
    """Windows and shared layers, though "auto" reads these models in place."""
    assert not world(model_type).run(4, reads="gather", chunk=6).ties


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("model_type", usual_if(lambda name: name == "gpt_oss", ["gpt_oss", "deepseek_v3"]))
def test_the_triton_kernels_give_it_too(model_type, monkeypatch):
    """Interpreted: the same strides, tables and options as on a GPU."""
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    mine = World(model_type, prompts=[[5], [3, 9, 2, 7, 1, 8, 4, 6, 2]], num_hidden_layers=2)
    assert not mine.run(4, chunk=8).ties


def test_a_cap_that_bends_the_logits():
    """Gemma 2's own cap of 50 is too far away for a small random model to feel it."""
    mine = World("gemma2", attn_logit_softcapping=0.5, attn_implementation="eager")
    assert not mine.run(4, chunk=6).ties
    free = World("gemma2").reference[2][1][0]
    assert (mine.reference[2][1][0] - free).abs().max() > 1e-2


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "qwen3"])
def test_a_cache_that_keeps_a_token_more_gives_the_same(model_type):
    """The layout "vllm" keeps the query's own token of a window too."""
    mine = world(model_type)
    assert not mine.run(
        4, chunk=6, spec=CacheSpec.from_config(mine.model.config, kv_dtype="fp32", layout="vllm")
    ).ties


@pytest.mark.parametrize("model_type", MODELS)
def test_a_cached_prefix_is_not_computed_again(model_type):
    mine, block_size = world(model_type), 4
    kv = PagedKVCache(mine.spec, 120, block_size)
    poison(kv)
    manager, adapter = mine.manager(kv), bind_model(mine.model, kv)
    try:
        first, second = Result(), Result()
        mine.steps(adapter, manager, None, first)
        mine.steps(adapter, manager, 9, second)
    finally:
        adapter.unbind()
    hits = [(len(prompt) - 1) // block_size * block_size for prompt in mine.prompts]
    assert sum(hits) > 40
    assert first.computed - second.computed == sum(hits)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3"])
def test_a_forked_sequence_goes_its_own_way(model_type):
    """Two continuations of one prompt; the block that both would write is copied, and neither sees the other's."""
    mine = world(model_type)
    prompt = mine.prompts[2]
    ends = [[*prompt, 3, 5], [*prompt, 4, 6]]
    forked = World(model_type, prompts=ends)
    kv = PagedKVCache(forked.spec, 60, 16)
    poison(kv)
    manager, adapter = forked.manager(kv), bind_model(forked.model, kv)
    try:
        forked.fork_and_step(adapter, manager, prompt)
    finally:
        adapter.unbind()


def test_a_preempted_sequence_is_computed_anew():
    """Freed in the middle of its answer, its blocks overwritten, and begun again with what it had said."""
    mine = world("qwen3")
    said = [[*prompt, *tokens[:3]] for prompt, (tokens, _) in zip(mine.prompts, mine.reference, strict=True)]
    kv = PagedKVCache(mine.spec, 60, 4)
    manager, adapter = mine.manager(kv), bind_model(mine.model, kv)
    try:
        mine.steps(adapter, manager, None, Result())
        poison(kv)
        for seq in range(len(said)):  # under another salt: nothing of the first run may be found
            manager.allocate(seq, said[seq], salt="again")
        mine.resume(adapter, manager, said)
    finally:
        adapter.unbind()


@pytest.mark.parametrize(
    ("model_type", "dtype"), every_value(["llama", "gemma3_text", "gpt_oss"], ["int8", "fp8", "bf16"])
)
def test_a_narrower_cache_reads_the_same_in_place_and_as_a_copy(model_type, dtype):
    mine = world(model_type)
    spec = CacheSpec.from_config(mine.model.config, kv_dtype=dtype)
    logits = []
    for reads in ("paged", "gather"):
        adapter = bind_model(mine.model, PagedKVCache(spec, 60, 4), reads=reads)
        try:
            logits.append(mine.prefill_in_chunks(adapter))
        finally:
            adapter.unbind()
    exact = torch.stack([expected[0] for _, expected in mine.reference])
    rounding = (logits[0] - exact).abs().max()
    assert 1e-4 < rounding < 1.0
    # A last bit of a query can still turn the rounding of a later layer's key.
    assert (logits[0] - logits[1]).abs().max() < rounding / 4


@in_turn("model_type", [name for name in DECODERS if name in [*MODELS, *OTHERS]])
def test_who_reads_in_place(model_type):
    mine = world(model_type) if model_type in MODELS else None
    model = mine.model if mine else World.bare(model_type)
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    was = model.config._attn_implementation
    adapter = bind_model(model, PagedKVCache(spec, 2, 4))
    assert adapter.reads == ("gather" if model_type in GATHERED else "paged")
    assert (model.config._attn_implementation == ATTENTION) == (adapter.reads == "paged")
    adapter.unbind()
    assert model.config._attn_implementation == was
