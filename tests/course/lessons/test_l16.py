"""Lesson 16: its exercises, predictions and questions do what a learner relies on."""

import random

import pytest
import torch

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
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


def holders_by_base(namespace, target):
    """Right only where the target is no view itself."""

    def reaches(value):
        if isinstance(value, torch.Tensor):
            return value is target or value._base is target
        inside = value.values() if isinstance(value, dict) else value
        return isinstance(value, dict | list | tuple) and any(reaches(each) for each in inside)

    return [name for name, value in namespace.items() if reaches(value)]


def holders_without_tuples(namespace, target):
    def reaches(value):
        if isinstance(value, torch.Tensor):
            return value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        inside = value.values() if isinstance(value, dict) else value
        return isinstance(value, dict | list) and any(reaches(each) for each in inside)

    return [name for name, value in namespace.items() if reaches(value)]


def batch_with_a_rope_of_64(config, free_mib, num_tokens):
    fixed = {**config, "qk_rope_head_dim": 64}
    return batch_by_trying(fixed, free_mib, num_tokens)


def batch_that_needs_the_field(config, free_mib, num_tokens):
    latent = config["kv_lora_rank"]
    return batch_by_trying({**config, "kv_lora_rank": latent}, free_mib, num_tokens)


def pins_first_of_equals(segments):
    """Right, but of equals the one that stands first."""
    gains = {}
    for blocks in segments:
        everybody = {name for _, holders in blocks for name in holders}
        if len(everybody) == 1:
            name = everybody.pop()
            gains[name] = gains.get(name, 0) + sum(size for size, _ in blocks)
    return max(gains, key=gains.get) if gains else None


def pins_single_blocks(segments):
    """Sees only those segments that hold one live block."""
    single = [blocks for blocks in segments if sum(bool(holders) for _, holders in blocks) == 1]
    return pins_by_counting(single)


SHORTCUTS = [
    ("16.3", holders_by_base),
    ("16.3", holders_without_tuples),
    ("16.4", batch_with_a_rope_of_64),
    ("16.4", batch_that_needs_the_field),
    ("16.5", pins_first_of_equals),
    ("16.5", pins_single_blocks),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("exercise", "shortcut"), SHORTCUTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_an_answer_that_is_right_on_some_inputs_fails(exercise, shortcut, seed):
    assert run_check(EXERCISES[exercise], shortcut, seed=seed).kind in ("wrong", "raised")


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "16")


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
