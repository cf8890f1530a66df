"""Tokens and logits through a linear cache are those of ``generate``, whatever lies behind the end of a row."""

import math
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minikv.cache import LinearKVCache, LinearPages, PagedKVCache
from minikv.models import bind_model
from minikv.plan import CacheSpec
from tests.longer import every_value
from tests.models.running import NEW_TOKENS, Result, World, forward, poison, world

# Windows in all or some layers, softcap, sinks, shared layers, latents, learned positions, attention inside the class.
MODELS = (
    "llama qwen3 mistral gemma2 gemma3_text gemma3n_text gpt_oss deepseek_v2 deepseek_v3 gpt2 bloom falcon"
).split()
LONG = os.environ.get("MINIKV_LONG", "0") not in ("", "0")
STORED = 37 + NEW_TOKENS - 1  # tokens of the longest sequence: the last one made is never stored


def pages_for(mine: World, rows: int, max_seq: int, dtype: str | None = None) -> LinearPages:
    spec = mine.spec if dtype is None else CacheSpec.from_config(mine.model.config, kv_dtype=dtype)
    return LinearPages(LinearKVCache(spec, rows, max_seq))


@pytest.mark.parametrize(
    ("model_type", "sizes", "junk"), every_value(MODELS, [(STORED, 5), (100, None)], [1e4, math.nan]), ids=str
)
def test_prompts_of_mixed_length_give_what_generate_gives(model_type, sizes, junk):
    """A row each: the longest sequence fills its own to the last place, or everyone leaves most of it."""
    mine, (max_seq, chunk) = world(model_type), sizes
    prompts = len(mine.prompts)
    result = mine.run_on(pages_for(mine, prompts, max_seq), chunk=chunk, junk=junk)
    assert result.ties < prompts
    if not result.ties:
        assert result.computed == sum(map(len, mine.prompts)) + prompts * (NEW_TOKENS - 1)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "bloom"])
def test_sequences_that_pass_from_row_to_row(model_type):
    """Rows of 16 tokens: then a linear cache is a paged one of large blocks."""
    mine = world(model_type)
    assert not mine.run_on(pages_for(mine, 8, 16), chunk=7, junk=math.nan).ties


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma3n_text", "gpt_oss", "deepseek_v3"])
def test_copies_of_the_history_give_it_too(model_type):
    mine = world(model_type)
    assert not mine.run_on(pages_for(mine, 4, 50), reads="gather", chunk=6, junk=math.nan).ties


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.skipif(not LONG, reason="a minute; tests/cache/test_linear_pages.py has each kernel alone")
@pytest.mark.parametrize(
    ("model_type", "reads"), [("gpt_oss", "paged"), ("deepseek_v3", "paged"), ("llama", "gather")]
)
def test_the_triton_kernels_give_it_too(model_type, reads, monkeypatch):
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    mine = World(model_type, prompts=[[5], [3, 9, 2, 7, 1, 8, 4, 6, 2]])
    assert not mine.run_on(pages_for(mine, 2, 15), reads=reads, chunk=8, junk=math.nan).ties


@pytest.mark.parametrize("kernels", ["reference", "triton"])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3"])
def test_a_forked_sequence_goes_its_own_way(model_type, kernels, monkeypatch):
    """Two continuations of one prompt: its row is copied for the one that writes first."""
    prompt = world(model_type).prompts[2]
    forked = World(model_type, prompts=[[*prompt, 3, 5], [*prompt, 4, 6]])
    pages = pages_for(forked, 3, 50)
    poison(pages, math.nan)
    manager, adapter = forked.manager(pages), bind_model(forked.model, pages)
    copied, copy = [], adapter.cache.copy_blocks

    def copy_blocks(group, src, dst):
        with monkeypatch.context() as patch:
            if not torch.cuda.is_available():
                patch.setenv("MINIKV_KERNELS", kernels)
            copy(group, src, dst)
        copied.append(group)

    monkeypatch.setattr(pages, "copy_blocks", copy_blocks)
    try:
        forked.fork_and_step(adapter, manager, prompt)
    finally:
        adapter.unbind()
    assert copied == [*range(len(pages.kv_cache_groups))] * 2, (
        "the stem's sequence is still there, and still shares the row"
    )


@pytest.mark.parametrize("model_type", ["qwen3", "mistral", "deepseek_v3", "bloom"])
def test_a_prefix_is_read_from_the_cache_only_where_it_fills_a_row(model_type):
    """Twice the same prompts: in rows of 12 the one of 12 tokens misses, and the one of 37 hits three rows."""
    mine = world(model_type)
    for max_seq, hits in ((12, 36), (36, 36), (37, 0)):
        pages = pages_for(mine, 40, max_seq)
        poison(pages, math.nan)
        manager, adapter = mine.manager(pages), bind_model(mine.model, pages)
        first, second = Result(), Result()
        try:
            mine.steps(adapter, manager, None, first)
            mine.steps(adapter, manager, 9, second)
        finally:
            adapter.unbind()
        assert first.computed - second.computed == hits


@pytest.mark.parametrize(
    ("model_type", "dtype"), every_value(["llama", "gemma3_text", "deepseek_v3", "bloom"], ["bf16", "fp16"])
)
def test_a_narrower_cache_rounds_as_a_paged_one_does(model_type, dtype):
    mine, logits = world(model_type), []
    pages = pages_for(mine, 4, 40, dtype)
    for kv in (pages, PagedKVCache(pages.spec, 4, 40)):
        adapter = bind_model(mine.model, kv)
        try:
            logits.append(mine.prefill_in_chunks(adapter))
        finally:
            adapter.unbind()
    exact = torch.stack([expected[0] for _, expected in mine.reference])
    assert torch.equal(*logits)
    assert 1e-5 < (logits[0] - exact).abs().max() < 1.0


class Largest(TorchDispatchMode):
    """The most bytes of memory that an operation newly allocated for a result."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {part.data_ptr() for part in _storages((args, kwargs))}
        out = operation(*args, **(kwargs or {}))
        new = [part.nbytes() for part in _storages(out) if part.data_ptr() not in given]
        self.nbytes = max(self.nbytes, *new, 0)
        return out


def _storages(tree: object) -> list[torch.UntypedStorage]:
    """The memory of all tensors; of a sparse one that of its index and values."""
    tensors = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    sparse = [x for x in tensors if x.layout == torch.sparse_csr]
    parts = [part for x in sparse for part in (x.crow_indices(), x.col_indices(), x.values())]
    return [x.untyped_storage() for x in (*tensors, *parts) if x.layout == torch.strided]


@pytest.mark.parametrize("reads", ["paged", "gather"])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3"])
def test_a_decode_makes_no_copy_of_a_layer(model_type, reads):
    """Rows of 20,000 tokens, four of them, against prompts of 1 to 37: nor a hundredth of one."""
    mine, max_seq = world(model_type), 20_000
    pages = pages_for(mine, 4, max_seq)
    adapter, manager = bind_model(mine.model, pages, reads=reads), mine.manager(pages)
    for seq, prompt in enumerate(mine.prompts):
        manager.allocate(seq, prompt)
    try:
        forward(adapter, manager, [(seq, 0, len(prompt), prompt) for seq, prompt in enumerate(mine.prompts)])
        for seq in range(len(mine.prompts)):
            manager.commit(seq)
            manager.append_tokens(seq, [7])
        ends = [len(prompt) for prompt in mine.prompts]
        with Largest() as largest:
            forward(adapter, manager, [(seq, end, end + 1, [7]) for seq, end in enumerate(ends)])
    finally:
        adapter.unbind()
    of_a_layer = min(pages.layer(layer).k.nbytes for layer in range(len(pages.spec.layers)))
    assert 0 < largest.nbytes < of_a_layer / 100
