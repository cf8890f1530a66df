"""DeepSeek-V4: entries in blocks, waiting tokens in slots, and the tokens of ``generate`` whatever happens."""

import copy
import functools
import re
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.policies.budget import Budget
from minikv.models import bind_model, measure
from minikv.models.measured import state_shapes
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups, sequence_bytes
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.engine.test_llm_states import check_slots, held_by, poisoned, states_of
from tests.longer import usual_if
from tests.models.running import World, poison
from tests.plan.small_models import small_config, small_model
from tests.plan.test_truth import numel_bytes
from tests.plan.test_truth import run as cached

HEAVY, SPARSE, WINDOW = "heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"
# The indexer chooses among more entries than it takes, with so many heads that no two have one score.
CHOOSES = {"index_topk": 3, "index_n_heads": 32, "hc_mult": 2, "hc_sinkhorn_iters": 2}
SIZES = {
    "all kinds": {"layer_types": [WINDOW, SPARSE, HEAVY]},
    "sparse": {"layer_types": [SPARSE, SPARSE], "compress_rates": {SPARSE: 8, HEAVY: 4}},
    "heavy": {"layer_types": [HEAVY, HEAVY]},
}


@functools.cache
def of(kind: str) -> Reference:
    model = World.bare(
        "deepseek_v4", num_hidden_layers=len(SIZES[kind]["layer_types"]), **CHOOSES, **SIZES[kind]
    )
    model.config.dtype = torch.float32
    random = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("position_bias"):  # zeros until a checkpoint is loaded
            parameter.data.normal_(generator=random)
    return Reference("deepseek_v4", model, answers=False)


@pytest.mark.parametrize("kind", usual_if("all kinds".__eq__, SIZES))
def test_it_gives_what_generate_gives(kind):
    """With preemptions, chunks of prompts, decodes beside them, forks, and prefixes behind which a state was saved."""
    mine = of(kind)
    prompts = mine.prompts[1::2]
    with make(mine.model, block_size=8, num_blocks=9, max_batched_tokens=24, max_model_len=64) as llm:
        assert llm.adapter.reads == "gather"
        poison(llm.cache)
        poisoned(llm)
        for number, prompt in enumerate(prompts):
            llm.add_request(prompt, greedy(12, n=1 + (number % 3 == 0)), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
        check_slots(llm)
        assert states_of(llm).num_free == llm.states.num_slots
        for again in range(2):
            outputs[again, 5] = llm.generate(prompts[5], greedy(12), progress=False)[0]
        assert outputs[1, 5].num_cached == (len(prompts[5]) - 1) // 8 * 8 > 0
        log = llm.scheduler.extensions[-1].emit
    for out in outputs.values():
        mine.check(out, greedy(12))
    assert mine.ties < 3
    assert any(step.decode_tokens and step.prefill_tokens for step in log.of("step"))
    assert any(len(prompt) > 24 for prompt in prompts), "no prompt comes in chunks"
    assert log.of("preempt")


@pytest.mark.parametrize("kind", SIZES)
def test_blocks_and_slots_have_the_bytes_that_the_planner_tells(kind):
    model = of(kind).model
    spec = CacheSpec.from_config(model.config)
    with make(model, block_size=8, num_blocks=9, max_num_seqs=3, saved_states=2, max_model_len=64) as llm:
        assert llm.states.slot_bytes == spec.constant_state_bytes
        assert held_by(llm) == llm.states.nbytes == 5 * spec.constant_state_bytes
        groups = zip(kv_cache_groups(spec), llm.cache.num_blocks, strict=True)
        assert llm.cache.nbytes == sum(group.block_bytes(8) * count for group, count in groups)
    assert sequence_bytes(spec, 40, 8) >= spec.peak_bytes_for(40)


def test_a_given_size_holds_blocks_and_slots():
    mine = of("all kinds")
    with make(mine.model, kv_bytes=1 << 16, max_model_len=64) as llm:
        assert llm.cache.nbytes + llm.states.nbytes <= 1 << 16
        mine.check(llm.generate(mine.prompts[7], greedy(), progress=False)[0], greedy())


def test_a_block_holds_whole_entries():
    mine = of("all kinds")
    with make(mine.model, block_size=4) as llm:
        assert llm.cache.block_size == 8
    spec = CacheSpec.from_config(mine.model.config)
    with pytest.raises(ArgumentError, match="block_size=16") as caught:
        PagedKVCache(spec, 4, 12)
    assert caught.value.code == "paged_rate"
    assert caught.value.text("zh") != caught.value.text("en")


def test_rounding_k_and_entries_leaves_the_indexers_keys_whole():
    mine = of("all kinds")
    with make(mine.model, kv_dtype="int8", block_size=8) as llm:
        spec = CacheSpec.from_config(mine.model.config, kv_dtype="int8")
        groups = zip(kv_cache_groups(spec), llm.cache.num_blocks, strict=True)
        assert llm.cache.nbytes == sum(group.block_bytes(8) * count for group, count in groups)
        assert [layer.index_bytes for layer in spec.layers] == [0, 0, 8 * 4, 0, 0]
        out = llm.generate(mine.prompts[7], greedy(2), progress=False)[0]
    assert len(out.completions[0].token_ids) == 2


def test_every_entry_has_a_place_of_its_own():
    spec = CacheSpec.from_config(of("all kinds").model.config, kv_dtype="fp32")
    cache = PagedKVCache(spec, 3, 8)
    sparse, heavy = (number for number, layer in enumerate(spec.layers) if layer.rate > 1)
    for number, count in ((sparse, 6), (heavy, 3)):
        rows = torch.arange(1.0, 1 + count).view(count, 1, 1).expand(count, 1, 16) * (number + 1)
        cache.write(number, rows, rows, list(range(count)))
        assert cache.gather(number, [2, 0, 1], count)[0][:, 0, 0].tolist() == [
            (number + 1) * (1 + entry)
            for block in (2, 0, 1)
            for entry in range(block * count // 3, (block + 1) * count // 3)
        ]
        with pytest.raises(ArgumentError, match="slots"):
            cache.write(number, rows[:1], rows[:1], [count])


def test_moves_that_overlap_move_k_that_is_v_once():
    spec = CacheSpec.from_config(of("all kinds").model.config, kv_dtype="fp32")
    cache = PagedKVCache(spec, 3, 8)
    for number, layer in enumerate(spec.layers):
        rows = torch.arange(1.0, 4).view(3, 1, 1).expand(3, layer.kv_heads, layer.k_dim).contiguous()
        cache.write(number, rows, rows, [0, 1, 2])
        cache.move(number, [1, 2], [0, 1])
        table = list(range(-(-3 * layer.rate // 8)))
        assert cache.gather(number, table, 3)[0][:, 0, 0].tolist() == [2, 3, 3]


def test_entries_cannot_be_evicted_and_nothing_is_changed():
    mine = of("all kinds")
    cache = PagedKVCache(CacheSpec.from_config(mine.model.config, kv_dtype="fp32"), 6, 8)
    manager = BlockManager([KVCacheGroup(count) for count in cache.num_blocks], 8)
    with pytest.raises(ArgumentError) as caught:
        PagedEviction(cache, manager, "streaming", budget=Budget(2, 4, 2))
    assert caught.value.code == "eviction_compressed"


def test_a_cache_of_another_rate_is_not_bound():
    model = of("sparse").model
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    layers = tuple(replace(each, rate=4) if each.rate == 8 else each for each in spec.layers)
    with pytest.raises(ArgumentError) as caught:
        bind_model(model, PagedKVCache(replace(spec, layers=layers), 4, 8))
    assert (caught.value.code, caught.value.values["field"]) == ("models_layer", "rate")


def test_read_in_place_is_refused_by_name():
    with pytest.raises(ArgumentError) as caught:
        make(of("heavy").model, reads="paged", block_size=8)
    assert caught.value.values["why"] == "compressed"


def test_the_bytes_of_a_checkpoint_in_bf16(tmp_path):
    """Loaded so, the positions' biases stay float32, and so are the gates that have one."""
    small_model(small_config("deepseek_v4", num_hidden_layers=3, **SIZES["all kinds"])).save_pretrained(
        tmp_path
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    spec = CacheSpec.from_config(model.config)
    assert spec.kv_dtype == "bf16"
    assert sum(shape.num_bytes for shape in state_shapes(model)) == spec.constant_state_bytes
    with torch.no_grad():
        for length, _, held in cached(model, 1):
            assert numel_bytes(held) == spec.bytes_for(length)


def test_it_is_not_bound_without_slots():
    model = of("heavy").model
    cache = PagedKVCache(CacheSpec.from_config(model.config, kv_dtype="fp32"), 8, 8)
    with pytest.raises(ArgumentError) as caught:
        bind_model(model, cache)
    assert caught.value.code == "models_states"


def of_an_outdated_config():
    """A model of float32 weights, as ``float()`` leaves it: the config goes on to say bf16."""
    model = copy.deepcopy(of("all kinds").model)
    model.config.dtype = torch.bfloat16
    return model


def test_an_llm_goes_by_the_weights_where_the_config_says_another_dtype():
    mine, model = of("all kinds"), of_an_outdated_config()
    with make(model, block_size=8) as llm:
        assert llm.cache.spec == measure(model)
        mine.check(llm.generate(mine.prompts[7], greedy(), progress=False)[0], greedy())


def test_a_cache_made_by_an_outdated_config_is_refused_with_both_dtypes():
    model = of_an_outdated_config()
    with pytest.raises(ArgumentError) as caught:
        bind_model(model, PagedKVCache(CacheSpec.from_config(model.config, kv_dtype="fp32"), 8, 8))
    assert caught.value.code == "models_layer_dtype"
    for lang in ("en", "zh"):
        assert {"fp32", "bf16"} <= set(re.findall(r"\w+", caught.value.text(lang), re.ASCII))
    model.config.dtype = torch.float32
    assert CacheSpec.from_config(model.config) == measure(model)
