"""Lesson 05: its exercises, predictions and questions do what a learner relies on."""

import weakref

import pytest
import torch

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.memory.arena import Arena, arena_bytes
from minikv.memory.ownership import ownership, share_storage
from tests.course.mutants import SEEDS, assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("05")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def kept_by_loop(tensors):
    total, seen = 0, set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def kept_by_pairs(tensors):
    return sum(
        ownership(tensor).storage_bytes
        for i, tensor in enumerate(tensors)
        if not any(share_storage(tensor, earlier) for earlier in tensors[:i])
    )


def window_by_copy(keys, window):
    tokens = keys.size(0)
    if tokens <= window:
        return keys
    kept = torch.empty(window, *keys.shape[1:])
    kept.copy_(keys[tokens - window :])
    return kept


def window_by_index(keys, window):
    dropped = max(0, len(keys) - window)
    return keys[torch.arange(dropped, len(keys))] if dropped else keys[:]


def carve_by_remainder(sizes, align):
    offsets = []
    end = 0
    for size in sizes:
        if end % align:
            end += align - end % align
        offsets.append(end)
        end += size
    return offsets, end


def carve_from_the_front(sizes, align):
    offsets = [0]
    for size in sizes[:-1]:
        offsets.append((offsets[-1] + size + align - 1) // align * align)
    return tuple(offsets), offsets[-1] + sizes[-1]


def live_by_counts(steps):
    """Reference counts, as torch keeps them."""
    holds, own, count, size, alive = {}, {}, {}, {}, []
    for i, (what, name, *rest) in enumerate(steps):
        before = holds.get(name)
        if what == "del":
            holds.pop(name)
        else:
            storage = holds[rest[0]] if what == "view" else i
            nbytes = own[rest[0]] if what == "clone" else rest[-1]
            if what != "view":
                size[storage] = nbytes
            holds[name], own[name] = storage, nbytes
            count[storage] = count.get(storage, 0) + 1
        if before is not None:
            count[before] -= 1
            if not count[before]:
                del size[before]
        alive.append(sum(size.values()))
    return alive


def run_in_torch(steps):
    """The steps on real tensors of bytes; what is alive is asked of torch."""
    names, storages, alive = {}, [], []
    for what, name, *rest in steps:
        if what == "del":
            del names[name]
        elif what == "new":
            names[name] = torch.empty(rest[0], dtype=torch.uint8)
        elif what == "view":
            names[name] = names[rest[0]][: rest[1]]
        else:
            names[name] = names[rest[0]].clone()
        if what in ("new", "clone"):
            storages.append(weakref.ref(names[name].untyped_storage()))
        alive.append(sum(seen().nbytes() for seen in storages if seen() is not None))
    return alive


def kept_stub(tensors):
    raise NotImplementedError


def window_stub(keys, window):
    raise NotImplementedError


def test_kept_bytes():
    right = [kept_by_loop, kept_by_pairs]
    assert_exercise(EXERCISES["05.1"], right=right, sequences="parts", stub=kept_stub)


def test_keep_window():
    assert_exercise(EXERCISES["05.2"], right=[window_by_copy, window_by_index], stub=window_stub)


def test_carve():
    assert_exercise(EXERCISES["05.3"], right=[carve_by_remainder, carve_from_the_front], sequences="sizes")


def test_live_bytes():
    assert_exercise(EXERCISES["05.4"], right=[live_by_counts, run_in_torch], sequences="steps")


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "05")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "05")


@pytest.mark.parametrize("seed", SEEDS)
def test_carve_is_what_an_arena_does(seed):
    for case in EXERCISES["05.3"].draw(seed):
        offsets, total = EXERCISES["05.3"].reference(**case)
        requests = [((size,), torch.uint8) for size in case["sizes"]]
        assert arena_bytes(requests, case["align"]) == total
        arena = Arena(total)
        for i, request in enumerate(requests):
            arena.borrow(f"t{i}", *request, align=case["align"])
        assert [loan.offset for loan in arena.report().borrowers] == offsets


def test_contiguous_is_told_that_it_copied_nothing():
    verdict = run_check(EXERCISES["05.2"], lambda keys, window: keys[-window:].contiguous())
    assert verdict.misconception == "only_a_view"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_case_can_tell_a_copy_from_a_view(seed):
    cases = EXERCISES["05.2"].draw(seed)
    assert {case["window"] < case["tokens"] for case in cases} == {True, False}
    assert any(case["window"] == case["tokens"] for case in cases)


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_meet_the_hard_places(seed):
    cases = [case["steps"] for case in EXERCISES["05.4"].draw(seed)]
    own_views = [step for steps in cases for step in steps if step[0] == "view" and step[1] == step[2]]
    assert own_views, "a = a[:n] must occur"
    assert any(step[0] == "clone" for steps in cases for step in steps)


def test_an_array_for_a_tensor_is_told_its_type():
    verdict = run_check(EXERCISES["05.2"], lambda keys, window: keys[-window:].clone().numpy())
    assert verdict.kind == "wrong"
    assert verdict.expected["type"] == "Tensor"
    assert verdict.got["type"] == "ndarray"
