"""Models with recurrent layers: a slot of states for each sequence, and the tokens of ``generate`` whatever happens."""

import functools

import pytest
import torch

from minikv import LLM
from minikv.cache import PagedKVCache, StatePages
from minikv.engine import GenerationFailedError
from minikv.engine.ext.states import States
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError
from minikv.models import bind_model
from minikv.models.measured import carries_states, measure, state_shapes
from minikv.plan import CacheSpec
from minikv.plan.spec.architectures import ARCHITECTURES
from tests.cache.test_paged_architectures import RECURRENT
from tests.engine.llm_world import Reference, check_empty, greedy, make, run
from tests.in_turn import in_turn
from tests.longer import usual_if
from tests.models.running import World

ON_NO_LIST = """bailing_hybrid inkling2_text inkling_text kimi_linear lfm2_moe lfm3 olmo_hybrid zamba zamba2
    zaya""".split()
WITHOUT_KV = ["falcon_mamba", "mamba", "mamba2"]
# Their classes begin anew in a forward of several tokens: behind the first chunk tokens come one by one.
ONE_BY_ONE = ["falcon_mamba", "jamba", "mamba", "zamba"]
MODELS = [*RECURRENT, *ON_NO_LIST]
USUAL = ["jamba", "lfm2", "mamba2", "qwen3_next"]


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


@pytest.mark.parametrize("model_type", usual_if(USUAL.__contains__, MODELS))
def test_a_recurrent_model_gives_what_generate_gives(model_type):
    """With preemptions, chunks of prompts, decodes beside them, forks, and no hit of a prefix."""
    mine = of(model_type)
    assert (model_type in ON_NO_LIST) == (model_type not in ARCHITECTURES)
    with make(mine.model, num_blocks=16, max_batched_tokens=24) as llm:
        poisoned(llm)
        for number, prompt in enumerate(mine.prompts):
            llm.add_request(prompt, greedy(12, n=1 + (number % 5 == 0)), request_id=number)
        outputs = run(llm)[1]
        check_empty(llm)
        assert states_of(llm).num_free == llm.states.num_slots
        steps = llm.scheduler.extensions[-1].emit.of("step")
    for out in outputs.values():
        mine.check(out, greedy(12))
    assert mine.ties < 3
    assert any(step.decode_tokens and step.prefill_tokens for step in steps)
    assert any(len(prompt) > 24 for prompt in mine.prompts), "no prompt comes in chunks"
    assert not any(out.num_cached for out in outputs.values())
    preempted = sum(each.num_preemptions for out in outputs.values() for each in out.completions)
    assert bool(preempted) == (
        model_type not in WITHOUT_KV
    )  # a sequence without K and V takes nothing but its seat


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


def test_a_step_that_fails_gives_its_slots_back(monkeypatch):
    mine = of("lfm2")
    with make(mine.model) as llm:
        monkeypatch.setattr(type(llm.adapter), "forward", None)
        with pytest.raises(GenerationFailedError):
            llm.generate(mine.prompts[:5], greedy())
        monkeypatch.undo()
        assert states_of(llm).num_free == llm.states.num_slots
        mine.check(llm.generate(mine.prompts[:1], greedy(), progress=False)[0], greedy())


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
        ({"reads": "paged"}, 'reads="paged"'),
    ],
)
def test_what_a_state_cannot_go_along_with_is_refused(options, what):
    with pytest.raises(ArgumentError) as caught:
        make(of("lfm2").model, **options)
    assert (caught.value.code, caught.value.values["what"]) == ("llm_states", what)
    assert caught.value.text("zh") != caught.value.text("en")


def test_states_take_at_most_half_of_a_given_size_and_limit_the_seats():
    mine = of("jamba")
    slot = sum(shape.num_bytes for shape in state_shapes(mine.model))
    with make(mine.model, kv_bytes=7 * slot, max_num_seqs=8) as llm:
        assert (llm.states.num_slots, llm.scheduler.max_num_seqs) == (3, 3)
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
    with make(mine.model, kv_bytes=1 << 20) as llm:
        assert isinstance(llm.cache, StatePages)
        assert llm.cache.nbytes == 0
        assert "mamba2" in repr(llm.cache)
        assert llm.memory_report().parts()["states"] == llm.states.nbytes > 0
        llm.generate(mine.prompts[:2], greedy(2), progress=False)
    assert llm.cache.closed


def test_a_model_with_states_is_not_bound_without_them():
    model = of("jamba").model
    cache = PagedKVCache(measure(model, kv_dtype="fp32"), 8, 4)
    with pytest.raises(ArgumentError) as caught:
        bind_model(model, cache)
    assert caught.value.code == "models_states"
    assert caught.value.values["need"] > caught.value.values["found"] == 0


def test_a_recurrent_model_with_a_cache_of_its_own_class_is_refused_by_name():
    with pytest.raises(ConfigError) as caught:
        make(World.bare("recurrent_gemma"))
    assert caught.value.code == "measured_other_cache"
