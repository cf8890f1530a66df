"""Sparse attention with an indexer: its keys lie in the tokens' slots, beside K and V.

DeepSeek-V3.2 and GLM-5 are listed, Hunyuan V4 and MiniMax-M3 measured; the last chooses blocks of tokens.

The models have as many heads in their indexer as let no two tokens have one score: with few heads many scores are
exactly 0, and which of them the top k takes depends on how many tokens a forward has, in transformers too. For the same
reason the padding token gets an embedding that is not 0.
"""

import functools

import pytest
import torch

from minikv.cache import PagedKVCache
from minikv.engine import EventLog
from minikv.errors import ArgumentError
from minikv.models import Batch, GatheredCache, bind_model
from minikv.plan import CacheSpec
from tests.cache.test_paged_architectures import INDEXED
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.engine.test_llm_offload import HOST, SWAP
from tests.models.running import World

TOP_K = {"index_topk": 8, "index_n_heads": 32, "num_hidden_layers": 3}  # most prompts are longer
SIZES = {
    "deepseek_v32": TOP_K,
    "glm_moe_dsa": TOP_K | {"indexer_types": None},
    "hy_v4": TOP_K,
    "minimax_m3_vl_text": {"index_block_size": 4, "index_topk_blocks": 2, "index_local_blocks": 1},
}


@functools.cache
def of(model_type: str) -> Reference:
    model = World.bare(model_type, **SIZES[model_type])
    model.config.dtype = torch.float32
    embedding = model.get_input_embeddings().weight.data
    embedding[0] = embedding[1].flip(0)
    return Reference(model_type, model)


def answered(mine: Reference, **options) -> EventLog:
    """Answer every prompt, some of them with several sequences; each has to be what ``generate`` says."""
    with make(mine.model, max_batched_tokens=24, **options) as llm:
        assert llm.adapter.reads == "gather"
        for number, prompt in enumerate(mine.prompts):
            llm.add_request(prompt, greedy(12, n=1 + (number % 5 == 0)), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
        log = llm.scheduler.extensions[-1].emit
    for out in outputs.values():
        mine.check(out, greedy(12))
    assert mine.ties < 3
    assert any(out.num_cached for out in outputs.values())
    steps = log.of("step")
    assert any(step.decode_tokens and step.prefill_tokens for step in steps)
    assert log.of("preempt")
    return log


@pytest.mark.parametrize("model_type", SIZES)
def test_it_gives_what_generate_gives_with_preemptions_chunks_forks_and_prefix_hits(model_type):
    answered(of(model_type), num_blocks=16)


def test_every_listed_one_is_looked_at():
    assert set(INDEXED) < set(SIZES)


def test_its_keys_go_to_the_host_and_back():
    log = answered(of("deepseek_v32"), num_blocks=16, swap_rates=SWAP, **HOST)
    assert log.of("swap_in")


def test_rounding_k_and_v_leaves_its_keys_whole():
    mine = of("glm_moe_dsa")
    spec = CacheSpec.from_config(mine.model.config, kv_dtype="int8")
    with make(mine.model, kv_dtype="int8") as llm:
        assert [layer.index_bytes for layer in llm.cache.spec.layers] == [
            layer.index_bytes for layer in spec.layers
        ]
        assert llm.cache.layer(0).index.shape == (64, 4, 1, 16 * 4)
        llm.generate(mine.prompts[:2], greedy(2), progress=False)


def test_blocks_and_slots_are_copied_with_it():
    spec = CacheSpec.from_config(of("deepseek_v32").model.config, kv_dtype="fp32")
    cache = PagedKVCache(spec, 4, 4)
    index = cache.layer(1).index
    index[1] = 7
    cache.copy_blocks(0, [1], [3])
    assert index[3].eq(7).all()
    cache.move(1, [4], [0])
    assert index[0, 0].eq(7).all()
    assert not index[0, 1:].any()


def test_keys_of_another_size_are_refused():
    """A config that is silent about the dtype of its model is taken for bf16."""
    model = of("deepseek_v32").model
    cache = PagedKVCache(CacheSpec.from_config(model.config, kv_dtype="fp32"), 4, 4)
    adapter = bind_model(model, cache)
    batch = Batch.build(cache, [[[0]]], [[3]], [3])
    held = GatheredCache(batch, 0, 0, 3, (3,))
    assert held.update_indexer(torch.ones(1, 3, 16), 0).shape == (1, 3, 16)
    with pytest.raises(ArgumentError) as caught:
        held.update_indexer(torch.ones(1, 3, 16, dtype=torch.bfloat16), 0)
    assert caught.value.code == "cache_shape"
    adapter.unbind()
