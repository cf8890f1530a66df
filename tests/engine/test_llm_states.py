"""Models with recurrent layers: a slot of states for each sequence, and the tokens of ``generate`` whatever happens."""

import functools
import random
from dataclasses import replace

import pytest
import torch

from minikv import LLM
from minikv.cache import PagedKVCache, StatePages, StateSlots
from minikv.engine import GenerationFailedError
from minikv.engine.ext.eviction import EvictionConfig
from minikv.engine.ext.states import States
from minikv.engine.factory import EngineConfig, refuse_beside_states
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.models import Batch, bind_model
from minikv.models.measured import carries_states, measure, state_shapes
from minikv.plan import CacheSpec
from minikv.plan.spec.architectures import ARCHITECTURES
from tests.cache.test_paged_architectures import RECURRENT
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.in_turn import in_turn
from tests.longer import usual_if
from tests.models.running import World

ON_NO_LIST = """bailing_hybrid inkling2_text inkling_text kimi_linear lfm2_moe lfm3 minimax olmo_hybrid
    recurrent_gemma rwkv xlstm zamba zamba2 zaya""".split()
# Their classes begin anew in a forward of several tokens: behind the first chunk tokens come one by one.
ONE_BY_ONE = ["falcon_mamba", "jamba", "mamba", "recurrent_gemma", "zamba"]
# They attend with a bias for each distance, to copies.
AS_COPIES = ["inkling2_text", "inkling_text"]
MODELS = [*RECURRENT, *ON_NO_LIST]
USUAL = ["jamba", "lfm2", "mamba2", "qwen3_next", "rwkv", "xlstm"]


@functools.cache
def of(model_type: str) -> Reference:
    """A model with all of its kinds of layers, and what it answers."""
    return Reference(model_type, World.bare(model_type))


def states_of(llm: LLM) -> States:
    return next(each for each in llm.scheduler.extensions if isinstance(each, States))


def poisoned(llm: LLM) -> LLM:
    """Fill every slot with nonsense: what no sequence has written must not count."""
    for shape in llm.states.shapes:
        llm.states.tensor(shape).fill_(1e4)
    return llm


def held_by(llm: LLM) -> int:
    return sum(llm.states.tensor(shape).untyped_storage().nbytes() for shape in llm.states.shapes)


def check_slots(llm: LLM) -> None:
    """Every slot is free, or of one running sequence, or keeps one saved state, or is unused."""
    states = states_of(llm)
    assert set(states._held) == {seq.id for seq in llm.scheduler.running_sequences}
    assert sorted([*states._free, *states._held.values()]) == list(range(llm.states.num_slots))
    kept = [slot for slot, _, _ in states._saved.values()]
    every = range(llm.states.num_slots, llm.states.num_slots + llm.states.num_saved)
    assert sorted([*states._unused, *kept]) == list(every)


@pytest.mark.parametrize("model_type", usual_if(USUAL.__contains__, MODELS))
def test_a_recurrent_model_gives_what_generate_gives(model_type, monkeypatch):
    """With preemptions, chunks of prompts, decodes beside them, forks, and prefixes behind which a state was saved."""
    mine = of(model_type)
    # Without K and V, blocks end after a million tokens: here after 64, so that these are preempted too.
    monkeypatch.setattr("minikv.cache.states.ENDLESS", 64)
    assert (model_type in ON_NO_LIST) == (model_type not in ARCHITECTURES)
    with make(mine.model, num_blocks=16, max_batched_tokens=24, max_model_len=64) as llm:
        assert llm.adapter.reads == ("gather" if model_type in AS_COPIES else "paged")
        assert llm.adapter.padding == (0 if model_type in AS_COPIES else None)
        poisoned(llm)
        for number, prompt in enumerate(mine.prompts):
            llm.add_request(prompt, greedy(12, n=1 + (number % 5 == 0)), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
        check_slots(llm)
        assert states_of(llm).num_free == llm.states.num_slots
        for number in (1, 4):
            outputs |= {
                (number, again): llm.generate(mine.prompts[number], greedy(12), progress=False)[0]
                for again in range(2)
            }
            assert outputs[number, 1].num_cached == (len(mine.prompts[number]) - 1) // 4 * 4
        steps = llm.scheduler.extensions[-1].emit.of("step")
    for out in outputs.values():
        mine.check(out, greedy(12))
    assert mine.ties < 3
    assert any(step.decode_tokens and step.prefill_tokens for step in steps)
    assert any(len(prompt) > 24 for prompt in mine.prompts), "no prompt comes in chunks"
    assert sum(each.num_preemptions for out in outputs.values() for each in out.completions)


@pytest.mark.parametrize(
    ("model_type", "options", "shape"),
    [
        ("lfm2", {}, (5, 1)),
        ("falcon_mamba", {}, (5, 1)),
        ("rwkv", {}, (5, 1)),
        ("lfm2", {"reads": "gather"}, (1, 1)),
    ],
)
def test_a_step_of_decodes_is_one_forward_unless_copies_are_asked_for(model_type, options, shape):
    mine, shapes = of(model_type), []
    with make(mine.model, saved_states=0, **options) as llm:
        for prompt in mine.prompts[:5]:
            llm.add_request(prompt, greedy(4))
        llm.step()
        with mine.model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        ):
            llm.step()
        assert shapes == [shape] * (5 // shape[0])
        for out in run(llm)[1].values():
            mine.check(out, greedy(4))


def test_copies_of_histories_are_limited_and_the_longest_go_first(monkeypatch):
    mine, counts = of("inkling_text"), []
    monkeypatch.setattr("minikv.models.padded_cache.MOST_COPIED", 80)
    chosen = sorted(mine.prompts, key=len)[-5:]
    with make(mine.model, saved_states=0, max_num_seqs=5, max_batched_tokens=200, num_blocks=64) as llm:
        for prompt in chosen:
            llm.add_request(prompt, greedy(4))
        llm.step()
        with mine.model.register_forward_pre_hook(
            lambda module, args, kwargs: counts.append(len(kwargs["input_ids"])), with_kwargs=True
        ):
            llm.step()
        for out in run(llm)[1].values():
            mine.check(out, greedy(4))
    assert sum(counts) == 5
    assert 1 < len(counts) < 5
    assert counts[0] == 80 // (len(chosen[-1]) + 1)


@torch.no_grad()
def test_tokens_that_come_one_by_one_behind_a_state_come_together():
    """Chunks of two prompts, 4 tokens each behind their states: as many forwards as one of them has tokens."""
    model = of("mamba").model
    states = StateSlots(state_shapes(model), 2)
    pages = StatePages(measure(model, kv_dtype="fp32"), 2, 64, "cpu")
    adapter = bind_model(model, pages, states=states)
    rows, texts = [], [[*range(1, 9)], [*range(3, 11)]]
    with model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    ):
        for begins, ends in (((0, 0), (3, 4)), ((3, 4), (8, 8))):
            counts = [end - begin for begin, end in zip(begins, ends, strict=True)]
            batch = Batch.build(pages, [[[0], [1]]], list(ends), counts)
            parts = zip(texts, begins, ends, strict=True)
            ids = [token for text, begin, end in parts for token in text[begin:end]]
            found = adapter.forward(ids, replace(batch, state_slots=(0, 1)))
    adapter.unbind()
    assert rows == [1, 1, 2, 2, 2, 2, 1]
    expected = model(input_ids=torch.tensor(texts), use_cache=False).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_model_that_cannot_take_the_states_of_several_sequences_gets_one_after_the_other():
    """Its convolution forgets what is not the first sequence's."""
    mine = of("lfm2")
    layer = next(each for each in mine.model.model.layers if not each.is_attention_layer)
    with layer.conv.register_forward_hook(lambda module, args, out: out * (1 if len(out) == 1 else 0)):
        with make(mine.model) as llm:
            assert llm.adapter.reads == "gather"
            for out in llm.generate(mine.prompts[:4], greedy(4), progress=False):
                mine.check(out, greedy(4))
        with pytest.raises(ArgumentError) as caught:
            make(mine.model, reads="paged")
    assert (caught.value.code, caught.value.values["why"]) == ("models_cannot_switch", "trial")


def test_a_model_that_asks_its_cache_for_a_place_gets_one_sequence_after_the_other():
    """Its queries are scaled by the logarithm of their place, one for the whole forward."""
    mine = Reference("inkling_text", World.bare("inkling_text", log_scaling_n_floor=4))
    with make(mine.model) as llm:
        assert (llm.adapter.reads, llm.adapter.padding) == ("gather", None)
        for out in llm.generate(mine.prompts[:4], greedy(4), progress=False):
            mine.check(out, greedy(4))


@in_turn("model_type", [*ONE_BY_ONE, "lfm2", "mamba2", "qwen3_5_text", "falcon_h1"])
def test_it_is_found_out_which_classes_go_on_from_a_state(model_type):
    assert carries_states(of(model_type).model) == (model_type not in ONE_BY_ONE)


@in_turn("model_type", RECURRENT)
def test_a_slot_has_the_bytes_that_the_planner_tells(model_type):
    model = of(model_type).model
    model.config.dtype = torch.float32
    shapes = state_shapes(model)
    assert (
        sum(shape.num_bytes for shape in shapes) == CacheSpec.from_config(model.config).constant_state_bytes
    )
    model.config.dtype = None


@pytest.mark.parametrize("model_type", ["rwkv", "recurrent_gemma"])
def test_two_llms_on_one_model_keep_their_states_apart(model_type):
    mine = Reference(model_type, World.bare(model_type), answers=False)
    with make(mine.model, saved_states=0) as one, make(mine.model, saved_states=0) as two:
        for llm, prompts in ((one, mine.prompts[1:3]), (two, mine.prompts[2:5])):
            for prompt in prompts:
                llm.add_request(prompt, greedy(4))
        outputs = []
        while one.has_work or two.has_work:
            outputs += [out for llm in (one, two) if llm.has_work for out in llm.step().finished]
    assert len(outputs) == 5
    for out in outputs:
        mine.check(out, greedy(4))


def test_a_step_that_fails_gives_its_slots_back(monkeypatch):
    mine = of("lfm2")
    with make(mine.model) as llm:
        monkeypatch.setattr(type(llm.adapter), "forward", None)
        with pytest.raises(GenerationFailedError):
            llm.generate(mine.prompts[:5], greedy())
        monkeypatch.undo()
        assert states_of(llm).num_free == llm.states.num_slots
        mine.check(llm.generate(mine.prompts[:1], greedy(), progress=False)[0], greedy())


@pytest.mark.parametrize("saved", [0, 1, 3])
@pytest.mark.parametrize("model_type", ["lfm2", "mamba2"])
def test_no_slot_is_lost_whatever_happens(model_type, saved):
    """Random arrivals, forks and aborts on few blocks; each saved state serves, moves out, and is made again."""
    mine = of(model_type)
    draw, outputs, cached = random.Random(saved), {}, 0
    with make(
        mine.model, num_blocks=14, max_num_seqs=4, max_batched_tokens=16, saved_states=saved, max_model_len=64
    ) as llm:
        poisoned(llm)
        assert held_by(llm) == llm.states.nbytes == (4 + saved) * llm.states.slot_bytes
        for number in range(30):
            llm.add_request(draw.choice(mine.prompts), greedy(draw.randint(1, 8), n=draw.choice([1, 1, 2])))
            for _ in range(draw.randint(0, 4)):
                if llm.has_work:
                    outputs |= {each.request: each for each in llm.step().finished}
                    check_slots(llm)
            if number % 9 == 5 and llm.scheduler.running_sequences:
                llm.abort(llm.scheduler.running_sequences[-1].id.request)
                check_slots(llm)
        outputs |= run(llm)[1]
        check_slots(llm)
        assert states_of(llm).num_free == 4
        assert states_of(llm).num_saved <= saved
    for out in outputs.values():
        longest = max(len(each.token_ids) for each in out.completions)
        mine.check(out, greedy(max(1, longest)))
        cached += out.num_cached or 0
    assert bool(cached) == bool(saved)


def test_prompts_that_begin_alike_get_the_tokens_of_generate_with_one_state_saved():
    """Under two salts, with forks, prompts of whole blocks, and states that give way to each other."""
    mine, draw = of("lfm2"), random.Random(3)
    begin = next(prompt for prompt in mine.prompts if len(prompt) >= 12)
    with make(mine.model, num_blocks=20, max_batched_tokens=10, max_model_len=64, saved_states=1) as llm:
        poisoned(llm)
        for number in range(14):
            prompt = (
                begin[: draw.choice([4, 5, 8, 9, 12])] + draw.choice(mine.prompts)[: draw.choice([0, 3, 4])]
            )
            params = greedy(6, n=1 + (number % 4 == 0))
            llm.add_request(prompt, params, request_id=number, salt=draw.choice(["", "a"]))
        outputs = run(llm)[1]
        check_empty(llm)
        check_slots(llm)
    for out in outputs.values():
        mine.check(out, greedy(6))
    assert any(out.num_cached for out in outputs.values())


def test_what_comes_third_finds_the_state_where_two_prompts_part():
    mine = of("qwen3_next")
    stem = [*range(2, 22)]
    with make(mine.model) as llm:
        outs = [
            llm.generate([*stem, 30 + each, *range(40, 47)], greedy(), progress=False)[0] for each in range(3)
        ]
    assert [out.num_cached for out in outs] == [0, 0, 20]
    for out in outs:
        mine.check(out, greedy())


def test_a_state_leaves_with_the_blocks_that_led_to_it():
    mine = of("lfm2")
    with make(mine.model, saved_states=2) as llm:
        first = llm.generate(mine.prompts[4], greedy(), progress=False)[0]
        assert states_of(llm).num_saved == 1
        llm.manager.reset_prefix_cache()
        for prompt in mine.prompts[8:10]:
            llm.generate(prompt, greedy(), progress=False)
        assert states_of(llm).num_saved == 2
        again = llm.generate(mine.prompts[4], greedy(), progress=False)[0]
    assert (again.num_cached, again.completions[0].token_ids) == (0, first.completions[0].token_ids)


def test_an_aborted_sequence_gives_its_slot_to_the_next():
    mine = of("lfm2")
    with make(mine.model, max_num_seqs=1) as llm:
        for number, prompt in enumerate(mine.prompts[:2]):
            llm.add_request(prompt, greedy(), request_id=number)
        llm.step()
        llm.abort(0)
        outputs = run(llm)[1]
    mine.check(outputs[1], greedy())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"prompt_lookup": 2}, "prompt_lookup"),
        ({"cpu_kv_bytes": 1 << 20}, "cpu_kv_bytes"),
        ({"cache": "linear"}, 'cache="linear"'),
        ({"eviction": EvictionConfig("streaming", budget=8)}, "eviction"),
    ],
)
def test_what_a_state_cannot_go_along_with_is_refused(options, what):
    with pytest.raises(ArgumentError) as caught:
        make(of("lfm2").model, **options)
    assert (caught.value.code, caught.value.values["what"]) == ("llm_states", what)
    assert caught.value.text("zh") != caught.value.text("en")


def test_states_are_not_split_over_ranks():
    spec = CacheSpec.from_config(of("qwen3_next").model.config, tp=2)
    config = EngineConfig(None, 8, 0.9, 4, 8, 64, None, "paged", None)
    with pytest.raises(ArgumentError) as caught:
        refuse_beside_states(spec, config, 0, None)
    assert (caught.value.code, caught.value.values["what"]) == ("llm_states", "tp")


def test_states_take_at_most_half_of_a_given_size_and_limit_the_seats():
    mine = of("jamba")
    slot = sum(shape.num_bytes for shape in state_shapes(mine.model))
    with make(mine.model, kv_bytes=7 * slot, max_num_seqs=8) as llm:
        assert (llm.states.num_slots, llm.states.num_saved, llm.scheduler.max_num_seqs) == (2, 1, 2)
        assert llm.states.nbytes + llm.cache.nbytes <= 7 * slot
        for number, prompt in enumerate(mine.prompts[:4]):
            llm.add_request(prompt, greedy(4), request_id=number)
        for out in run(llm)[1].values():
            mine.check(out, greedy(4))
    with pytest.raises(DoesNotFitError) as caught:
        make(mine.model, kv_bytes=slot)
    assert caught.value.code == "llm_states_room"


def test_a_model_without_kv_needs_no_byte_of_blocks():
    mine = of("mamba2")
    with make(mine.model, kv_bytes=1 << 20, max_model_len=64) as llm:
        assert isinstance(llm.cache, StatePages)
        assert llm.cache.nbytes == 0
        assert "mamba2" in repr(llm.cache)
        parts = llm.memory_report().parts()
        assert parts["states"] == 2 * parts["saved_states"] == 8 * llm.states.slot_bytes
        assert parts["states"] + parts["saved_states"] == llm.states.nbytes == held_by(llm)
        llm.generate(mine.prompts[:2], greedy(2), progress=False)
    assert llm.cache.closed


def test_a_model_with_states_is_not_bound_without_them():
    model = of("jamba").model
    cache = PagedKVCache(measure(model, kv_dtype="fp32"), 8, 4)
    with pytest.raises(ArgumentError) as caught:
        bind_model(model, cache)
    assert caught.value.code == "models_states"
    assert caught.value.values["need"] > caught.value.values["found"] == 0
