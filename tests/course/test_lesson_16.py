"""Lesson 16: its exercises, predictions and questions do what a learner relies on."""

import random

import pytest
import torch

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.culprit_16 import NON_TORCH, culprit
from minikv.course.lessons.evidence_16 import end_of, left_reserved
from minikv.course.lessons.lesson_16 import SMALL
from minikv.course.lessons.parallel_16 import parallel_plan, suspect_parallel
from minikv.course.lessons.suspects_16 import small_model
from minikv.course.widgets.segments import Step
from minikv.errors import ArgumentError
from minikv.memory import AllocatorSettings, CachingAllocator
from minikv.plan import CacheSpec
from minikv.units import MIB
from tests.course.mutants import SEEDS, assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("16")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def split_from_used(total, free, allocated, reserved, inactive_split):
    used = total - free
    cached = reserved - allocated
    return allocated, inactive_split, cached - inactive_split, used - reserved


def split_one_after_the_other(total, free, allocated, reserved, inactive_split):
    left = total
    shares = []
    for share in (free, allocated, inactive_split):
        left -= share
        shares.append(share)
    outside = total - (free + reserved)
    return [shares[1], shares[2], left - outside, outside]


def grown_by_loop(before, after):
    known = [tensor.untyped_storage().data_ptr() for tensor in before]
    grown = 0
    for tensor in after:
        if tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.append(storage.data_ptr())
            grown += storage.nbytes()
    return grown


def grown_by_sets(before, after):
    def places(tensors):
        storages = [t.untyped_storage() for t in tensors if t.device != torch.device("meta")]
        return {(s.data_ptr(), s.nbytes()) for s in storages}

    return sum(size for _, size in places(after) - places(before))


def holders_by_flattening(namespace, target):
    def flat(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for each in value.values():
                yield from flat(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                yield from flat(each)

    address = target.untyped_storage().data_ptr()
    return {
        name
        for name, value in namespace.items()
        if address in [tensor.untyped_storage().data_ptr() for tensor in flat(value)]
    }


def holders_by_worklist(namespace, target):
    found = []
    for name, value in namespace.items():
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, torch.Tensor):
                if each.untyped_storage()._cdata == target.untyped_storage()._cdata and name not in found:
                    found.append(name)
            elif isinstance(each, dict):
                waiting += each.values()
            elif isinstance(each, (list, tuple)):
                waiting += each
    return found


def batch_by_spec(config, free_mib, num_tokens):
    """The planner's own figures."""
    latent = config.get("kv_lora_rank") is not None
    own = {
        "model_type": "deepseek_v3" if latent else "llama",
        "vocab_size": 100,
        "dtype": "bfloat16",
        **config,
    }
    own |= {
        "intermediate_size": 64,
        "first_k_dense_replace": config["num_hidden_layers"],
        "q_lora_rank": None,
    }
    spec = CacheSpec.from_config(own)
    one = spec.bytes_for(num_tokens) + spec.layers[0].token_bytes * num_tokens
    return free_mib * MIB // one


def batch_by_trying(config, free_mib, num_tokens):
    if config.get("kv_lora_rank") is None:
        width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        elements = config["num_key_value_heads"] * (width + width)
    else:
        elements = config["qk_rope_head_dim"] + config["kv_lora_rank"]
    layers = config["num_hidden_layers"] + 1
    batch = 0
    while (batch + 1) * num_tokens * layers * elements * 2 <= free_mib * 1024 * 1024:
        batch += 1
    return batch


def pins_by_trying(segments):
    """Let go of each holder in turn, and see what empty_cache would give back."""

    def back(gone):
        return sum(
            sum(size for size, _ in blocks)
            for blocks in segments
            if not any(name != gone for _, holders in blocks for name in holders)
        )

    everybody = sorted({name for blocks in segments for _, holders in blocks for name in holders})
    best = max(everybody, key=back)  # the first of several
    return best if back(best) > back(None) else None


def pins_by_counting(segments):
    gains = {}
    for blocks in segments:
        held = [name for _, holders in blocks for name in holders]
        if held and held.count(held[0]) == len(held):
            gains.setdefault(held[0], []).append(sum(size for size, _ in blocks))
    ranking = sorted((-sum(sizes), name) for name, sizes in gains.items())
    return ranking[0][1] if ranking else None


def grown_stub(before, after):
    raise NotImplementedError


def holders_stub(namespace, target):
    raise NotImplementedError


def test_split_used():
    assert_exercise(EXERCISES["16.1"], right=[split_from_used, split_one_after_the_other])


def test_grown_bytes():
    right = [grown_by_loop, grown_by_sets]
    assert_exercise(EXERCISES["16.2"], right=right, sequences="new", stub=grown_stub)


def test_holders():
    right = [holders_by_flattening, holders_by_worklist]
    assert_exercise(EXERCISES["16.3"], right=right, sequences="namespace", stub=holders_stub)


def test_fitting_batch():
    assert_exercise(EXERCISES["16.4"], right=[batch_by_spec, batch_by_trying])


def test_pins_most():
    assert_exercise(EXERCISES["16.5"], right=[pins_by_trying, pins_by_counting], sequences="segments")


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(
        prediction, "16", {"CacheSpec": CacheSpec, "SMALL": SMALL, "left_reserved": left_reserved}
    )


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "16")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_four_shares_are_all_that_is_used(seed):
    for case in EXERCISES["16.1"].draw(seed):
        assert sum(EXERCISES["16.1"].reference(**case)) == case["total"] - case["free"]


@pytest.mark.parametrize("seed", SEEDS)
def test_returnable_is_what_the_allocator_returns(seed):
    """On real traces of the model: split_used's third share is what empty_cache gives back."""
    rng = random.Random(seed)
    allocator = CachingAllocator(settings=AllocatorSettings())
    live: list[int] = []
    for _ in range(300):
        if live and rng.random() < 0.4:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            live.append(allocator.malloc(rng.choice([700, 300_000, 3 * MIB, 14 * MIB]) + rng.randrange(4096)))
    allocator.free(allocator.malloc(50 * MIB))
    usage = allocator.usage()
    total = usage.reserved + 5 * MIB
    shares = EXERCISES["16.1"].reference(total, MIB, usage.allocated, usage.reserved, usage.inactive_split)
    allocator.empty_cache()
    assert shares[2] == usage.reserved - allocator.usage().reserved > 0
    assert shares[1] == allocator.usage().inactive_split > 0
    assert shares[3] == 4 * MIB


@pytest.mark.parametrize("seed", SEEDS)
def test_the_one_that_pins_most_gives_back_most_in_the_allocator(seed):
    """The segments of the exercise, rebuilt in the model, one large segment each."""
    unit = 32 * MIB  # so that each block is large and each segment is cut to measure
    for case in EXERCISES["16.5"].draw(seed):
        names = {name for blocks in case["segments"] for _, holders in blocks for name in holders}
        left = {}
        for gone in [None, *sorted(names)]:
            allocator = CachingAllocator()
            owners = {}
            for blocks in case["segments"]:
                allocator.free(allocator.malloc(sum(size for size, _ in blocks) * unit))
                for size, holders in blocks:
                    owners[allocator.malloc(size * unit)] = set(holders)
            for address, holders in owners.items():
                if not holders - {gone}:
                    allocator.free(address)
            allocator.empty_cache()
            left[gone] = allocator.usage().reserved
        found = EXERCISES["16.5"].reference(**case)
        assert left[found] == min(left.values())
        assert found is None or left[found] < left[None]


def test_a_small_model_keeps_what_the_prediction_says():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    for prompt in (10, 17, 25):
        tokens = torch.randint(1, 64, (3, prompt), generator=torch.Generator().manual_seed(0))
        out = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
            eos_token_id=None, pad_token_id=0, return_dict_in_generate=True,
        )  # fmt: skip
        held = sum(t.nbytes for layer in out.past_key_values.layers for t in (layer.keys, layer.values))
        assert held == CacheSpec.from_config(SMALL).bytes_for(prompt + 8 - 1, batch=3)


def test_a_sharded_model_keeps_nothing_and_answers_the_same():
    model, ids = small_model(), torch.arange(1, 11).reshape(2, 5)
    names = dict(model.named_modules())
    assert set(parallel_plan(2)) <= set(names)
    report, same = suspect_parallel(model, ids)
    assert same
    assert (report.kept, report.caches) == ((), ())
    assert not torch.distributed.is_initialized()
    sharded = {type(parameter.data).__name__ for parameter in model.parameters()}
    assert "DTensor" in sharded


def test_a_process_that_is_a_rank_already_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    with pytest.raises(ArgumentError) as caught:
        suspect_parallel(small_model(), torch.ones(2, 3, dtype=torch.long))
    assert "4" in str(caught.value)


@pytest.mark.parametrize("calculator", ["naive", "plan"])
def test_the_steps_of_the_culprit_end_as_it_says(calculator):
    story = culprit(calculator)
    assert end_of(story.steps, story.capacity, NON_TORCH) == (story.stuck, story.extracted)


def test_letting_the_kept_tensors_go_leaves_nothing_pinned():
    story = culprit("naive")
    assert not story.extracted
    assert story.stuck > 6 * 10**9
    end = next(place for place, step in enumerate(story.steps) if step.kind == "empty_cache")
    kept = [Step("free", step.name) for step in story.steps if step.name.startswith("kept")]
    assert len(kept) == 61
    stuck, extracted = end_of([*story.steps[:end], *kept, *story.steps[end:]], story.capacity, NON_TORCH)
    assert extracted
    assert stuck < 2 * MIB, "only what rounding the weights' segment leaves"


def test_the_widget_of_the_lesson_ends_as_the_story_does():
    """Without the weights the map shows the same pinned segments, up to the rounding of the weights' own."""
    story = culprit("naive", num_layers=3, new_tokens=3)
    capacity, weights = story.capacity, story.steps[0]
    stuck, fits = end_of(story.steps[1:], capacity - weights.size, NON_TORCH * 3 // 61)
    assert not fits
    assert not story.extracted
    assert abs(stuck - story.stuck) < 2 * MIB
