"""Lesson 08: its exercises, predictions and questions. What the lesson shows is in test_l08_shown.py."""

import math
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from minikv.cache import bind
from minikv.cache.paged import PagedKVCache
from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.plan import CacheSpec, find_model, pool
from minikv.plan.budget import plan_memory
from minikv.plan.measured import MeasuredTerms
from minikv.units import MIB
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("08")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}

# The exercises ---------------------------------------------------------------------------------------------


def block_by_token(config, block_size, tp):
    if config.get("kv_lora_rank"):
        token = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config["num_key_value_heads"] // tp or 1
        token = heads * config["head_dim"] + heads * config["head_dim"]
    return token * config["dtype_bytes"] * block_size * config["num_hidden_layers"]


def block_by_loop(config, block_size, tp):
    total = 0
    for _ in range(config["num_hidden_layers"]):
        if "kv_lora_rank" in config:
            total += (config["qk_rope_head_dim"] + config["kv_lora_rank"]) * config["dtype_bytes"]
        else:
            for _part in "kv":
                total += (
                    max(config["num_key_value_heads"] // tp, 1) * config["head_dim"] * config["dtype_bytes"]
                )
    return total * block_size


def blocks_in_steps(total, utilization, used, peak, current, block_bytes):
    room = int(total * utilization) - used
    room -= peak - current
    return 0 if room < 0 else room // block_bytes


def blocks_by_the_package(total, utilization, used, peak, current, block_bytes):
    return MeasuredTerms(total, utilization, used, peak, current).available // block_bytes


def blocks_by_the_limit(total, utilization, used, peak, current, block_bytes):
    limit = math.floor(utilization * total)
    return math.floor((limit + current - used - peak) / block_bytes)


def ledger_by_reserved(non_torch, events):
    reserved = current = peak = 0
    lines = []
    for name, size in events:
        if name == "malloc":
            current += size
            reserved = max(reserved, current)
        elif name == "free":
            current -= size
        elif name == "empty_cache":
            reserved = current
        peak = current if name == "reset_peak" else max(peak, current)
        lines.append((non_torch + reserved, peak, current))
    return lines


def ledger_with_match(non_torch, events):
    def walk() -> Iterator[tuple[int, int, int]]:
        live, high, cached = 0, 0, 0
        for event in events:
            match event:
                case ("malloc", size):
                    fresh = max(0, size - cached)
                    cached -= size - fresh
                    live += size
                case ("free", size):
                    cached, live = cached + size, live - size
                case ("empty_cache", _):
                    cached = 0
                case ("reset_peak", _):
                    high = 0
            high = max(high, live)
            yield non_torch + cached + live, high, live

    return list(walk())


def room_by_counting(free, keep, steps, token_bytes, block_bytes):
    room = free - keep - sorted(steps)[-1] * token_bytes
    count = 0
    while room >= block_bytes:
        room -= block_bytes
        count += 1
    return count


def room_by_the_worst(free, keep, steps, token_bytes, block_bytes):
    return min(max(0, free - keep - step * token_bytes) // block_bytes for step in steps)


def bind_by_iterator(kv_cache, modules):
    wanted = [m for m in modules if {"k_cache", "v_cache"} <= vars(m).keys()]
    if len(wanted) != len(kv_cache[0]):
        raise ValueError
    for module, k, v in zip(wanted, *kv_cache, strict=True):
        module.k_cache = k
        module.v_cache = v
    return len(wanted)


def bind_by_unbind(kv_cache, modules):
    keys, values = kv_cache.unbind(0)
    count = sum(1 for m in modules if hasattr(m, "k_cache") and hasattr(m, "v_cache"))
    if count != keys.shape[0]:
        raise ValueError(count)
    layer = 0
    for module in modules:
        if hasattr(module, "k_cache") and hasattr(module, "v_cache"):
            setattr(module, "k_cache", keys[layer])  # noqa: B010
            setattr(module, "v_cache", values[layer])  # noqa: B010
            layer += 1
    return layer


def test_block_bytes():
    assert_exercise(EXERCISES["08.1"], right=[block_by_token, block_by_loop])


def test_num_blocks_that_fit():
    right = [blocks_in_steps, blocks_by_the_package, blocks_by_the_limit]
    assert_exercise(EXERCISES["08.2"], right=right)


def test_where_nothing_fits_each_number_below_one_is_right_and_no_other_type():
    exercise = EXERCISES["08.2"]
    assert sum(exercise.reference(**case) <= 0 for case in exercise.draw(0)) >= 4

    def low(*terms):
        count = exercise.reference(*terms)
        return count if count > 0 else -(10**6)

    assert run_check(exercise, lambda *terms: low(*terms)).passed
    assert not run_check(exercise, lambda *terms: float(low(*terms))).passed
    assert not run_check(exercise, lambda *terms: max(low(*terms), 0) or None).passed


def test_ledger():
    assert_exercise(EXERCISES["08.3"], right=[ledger_by_reserved, ledger_with_match], sequences="events")


def test_blocks_with_room():
    assert_exercise(EXERCISES["08.4"], right=[room_by_counting, room_by_the_worst], sequences="steps")


def test_bind_views():
    def stub(kv_cache, modules):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["08.5"], right=[bind_by_iterator, bind_by_unbind], sequences="modules", stub=stub
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda kv, view: view.transpose(1, 2),
        lambda kv, view: view[:1].expand(view.shape),
        lambda kv, view: view.double(),
        lambda kv, view: view[1:],
        lambda kv, view: kv.zero_() is None or view,
    ],
    ids=["transposed", "one_block_only", "dtype", "a_block_less", "empties_the_cache"],
)
def test_a_view_of_something_else_does_not_pass(change):
    def bind_views(kv_cache, modules):
        count = REFERENCES["bind_views"](kv_cache, modules)
        for module in modules:
            if hasattr(module, "v_cache"):
                module.v_cache = change(kv_cache, module.v_cache)
        return count

    assert run_check(EXERCISES["08.5"], bind_views).kind == "wrong"


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "08", {"plan_memory": plan_memory})


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "08")


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-0.6B", "DeepSeek-V3"])
@pytest.mark.parametrize("tp", [1, 4, 16])
def test_the_block_is_that_of_the_package(name, tp):
    spec = CacheSpec.from_config(name, tp=tp)
    config = {"dtype_bytes": 2, "head_dim": 128, **find_model(name).config}
    assert REFERENCES["block_bytes"](config, 16, tp) == pool.counted_block_bytes(spec, 16)


def test_the_ledger_is_the_allocators_where_nothing_is_split():
    """The model's own figures, for sizes that fill whole segments and are freed in the order of a stack."""
    unit, rng = 10 * MIB, random.Random(0)
    for _ in range(20):
        device = CachingAllocator(1000 * unit, non_torch=3 * unit)
        events, live, ours = [], [], []
        sizes = [rng.randint(1, 9)] * 3
        for step in range(30):
            kind = rng.choice(["malloc", "malloc", "free", "empty_cache", "reset_peak"])
            if kind == "malloc":
                size = sizes[step % 3]
                live.append((device.malloc(size * unit), size))
                events.append(("malloc", size))
            elif kind == "free" and live:
                address, size = live.pop()
                device.free(address)
                events.append(("free", size))
            elif kind in ("empty_cache", "reset_peak"):
                getattr(device, "empty_cache" if kind == "empty_cache" else "reset_peak_stats")()
                events.append((kind, 0))
            else:
                continue
            peak = device.memory_stats()["allocated_bytes.all.peak"]
            used = 1000 * unit - device.device_free
            ours.append((used // unit, peak // unit, device.usage().allocated // unit))
        assert REFERENCES["ledger"](3, events) == ours


def test_binding_does_what_bind_does():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.k_cache = self.v_cache = torch.tensor([])

    spec = CacheSpec.from_config("Qwen3-0.6B")
    cache = PagedKVCache(spec, 3, 4)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), Attention()) for _ in spec.layers))
    assert bind(model, cache) == len(spec.layers)
    theirs = [
        (m.k_cache.data_ptr(), m.v_cache.data_ptr()) for m in model.modules() if isinstance(m, Attention)
    ]
    both = torch.stack([torch.stack([cache.layer(i).k for i in range(len(spec.layers))])] * 2)
    modules = [m for m in model.modules() if isinstance(m, Attention)]
    assert REFERENCES["bind_views"](both, modules) == len(spec.layers)
    assert all(m.k_cache.data_ptr() == both[0, i].data_ptr() for i, m in enumerate(modules))
    assert len(set(theirs)) == len(theirs)


# The profiler's lines --------------------------------------------------------------------------------------


def test_a_lesson_measures_a_peak_without_a_word_on_stderr():
    code = (
        "from minikv.course import start; start('08'); "
        "from minikv.memory import measure_peak; import torch; "
        "print(measure_peak(lambda: torch.zeros(1000), 'cpu').peak)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.stdout.strip(), run.stderr) == ("4000", "")


def test_a_log_level_of_the_users_own_stays():
    code = (
        "import os; os.environ['KINETO_LOG_LEVEL'] = '3'; from minikv.course import start; start('02'); "
        "print(os.environ['KINETO_LOG_LEVEL'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "3"
