"""Exercises 16.2 and 16.3, about live tensors, and what the allocator's model keeps reserved beside a live one."""

from collections.abc import Callable, Collection, Sequence

import torch

from minikv.course.exercise import Exercise, Misconception
from minikv.course.widgets.segments_replay import AllocatorStep
from minikv.memory import CachingAllocator, DeviceOutOfMemoryError, share_storage

Part = tuple[int, int, int]  # (storage, start, stop)


def left_reserved(sizes: Sequence[int], kept: Collection[int]) -> int:
    """Return the bytes still reserved after ``sizes`` were allocated, all but those at ``kept`` freed, and the cache
    emptied.

    The allocator model has PyTorch's default settings; sizes in bytes.
    """
    allocator = CachingAllocator()
    addresses = [allocator.malloc(size) for size in sizes]
    for place, address in enumerate(addresses):
        if place not in kept:
            allocator.free(address)
    allocator.empty_cache()
    return allocator.usage().reserved


def end_of(steps: Sequence[AllocatorStep], capacity: int, non_torch: int) -> tuple[int, bool]:
    """Return the free bytes beside live blocks before the last step, and whether that last allocation finds memory.

    The steps are those of ``culprit``, on a device of ``capacity`` bytes with PyTorch's default settings.
    """
    device = CachingAllocator(capacity, non_torch=non_torch)
    held: dict[str, int] = {}
    for step in steps[:-1]:
        if step.kind == "malloc":
            held[step.name] = device.malloc(step.size)
        elif step.kind == "free":
            device.free(held.pop(step.name))
        else:
            device.empty_cache()
    usage = device.usage()
    try:
        device.malloc(steps[-1].size)
    except DeviceOutOfMemoryError:
        return usage.reserved - usage.allocated, False
    return usage.reserved - usage.allocated, True


def without_the_kept(steps: Sequence[AllocatorStep]) -> list[AllocatorStep]:
    """Return the steps of ``culprit`` with its kept tensors freed before ``empty_cache()``."""
    end = next(place for place, step in enumerate(steps) if step.kind == "empty_cache")
    kept = [AllocatorStep("free", step.name) for step in steps if step.name.startswith("kept")]
    return [*steps[:end], *kept, *steps[end:]]


# 16.2


def grown_bytes(before: list[torch.Tensor], after: list[torch.Tensor]) -> int:
    old, now = _storages(before), _storages(after)
    return sum(num_bytes for address, num_bytes in now.items() if address not in old)


def _storages(tensors: list[torch.Tensor]) -> dict[int, int]:
    real = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
    return {storage.data_ptr(): storage.nbytes() for storage in real}


def _new_ones(before: list[torch.Tensor], after: list[torch.Tensor]) -> list[torch.Tensor]:
    old = _storages(before)
    return [t for t in after if t.device.type != "meta" and t.untyped_storage().data_ptr() not in old]


def grown_views_twice(before, after):
    return sum(tensor.untyped_storage().nbytes() for tensor in _new_ones(before, after))


def grown_shown(before, after):
    return sum(
        {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in _new_ones(before, after)}.values()
    )


def grown_with_meta(before, after):
    meta = sum(tensor.untyped_storage().nbytes() for tensor in after if tensor.device.type == "meta")
    return grown_bytes(before, after) + meta


def grown_by_difference(before, after):
    return sum(_storages(after).values()) - sum(_storages(before).values())


def grown_objects(before, after):
    known = {id(tensor) for tensor in before}
    return sum(_storages([tensor for tensor in after if id(tensor) not in known]).values())


def on_two_moments(
    fn: Callable, sizes: list[int], before: list[Part], kept: list[int], new: list[Part], meta: int
):
    """Return ``fn`` of two lists of tensors: ``before``, and later its ``kept`` ones with the ``new`` ones.

    Part (i, start, stop) is ``whole[i][start:stop]``. ``meta``: elements of two tensors without memory.
    """
    wholes = [torch.zeros(size) for size in sizes]
    first = [wholes[i][start:stop] for i, start, stop in before]
    second = [first[place] for place in kept] + [wholes[i][start:stop] for i, start, stop in new]
    second += [torch.empty(meta, device="meta"), torch.empty(meta + 3, device="meta")]
    return fn(first, second)


def draw_moments(rng) -> list[dict]:
    cases = []
    for i in range(40):
        # Storages 0 and 1 exist before: 0 stays, 1 is freed. The others are new.
        sizes = [rng.randint(10, 20 + 15 * i) for _ in range(4 + i // 12)]
        before = [(0, 0, sizes[0]), (1, *_slice(rng, sizes[1]))]
        new = [(0, *_slice(rng, sizes[0]))]  # a new view of an old storage
        for storage in range(2, len(sizes)):
            new.append((storage, *_slice(rng, sizes[storage])))
        twice = rng.randrange(2, len(sizes))
        new.append((twice, *_slice(rng, sizes[twice])))
        rng.shuffle(new)
        cases.append(
            {"sizes": sizes, "before": before, "kept": [0], "new": new, "meta": rng.randint(5, 9 + i)}
        )
    return cases


def _slice(rng, size: int) -> tuple[int, int]:
    start = rng.randint(1, size - 3)
    return start, rng.randint(start + 1, size - 1)


GROWN = Exercise(
    id="16.2",
    minutes=5,
    name="grown_bytes",
    signature=("sizes", "before", "kept", "new", "meta"),
    cases=draw_moments,
    reference=grown_bytes,
    drive=on_two_moments,
    misconceptions=(
        Misconception("views_twice", grown_views_twice),
        Misconception("shown_bytes", grown_shown),
        Misconception("meta_counted", grown_with_meta),
        Misconception("difference", grown_by_difference),
        Misconception("new_objects", grown_objects),
    ),
)

# 16.3


def holders(namespace: dict[str, object], target: torch.Tensor) -> list[str]:
    return _names(namespace, lambda value: _reaches(value, target, share_storage))


def _names(namespace: dict, reaches: Callable[[object], bool]) -> list[str]:
    return sorted(name for name, value in namespace.items() if reaches(value))


def _reaches(
    value: object, target: torch.Tensor, same: Callable, kinds: tuple = (dict, list, tuple), depth: int = 9
):
    if isinstance(value, torch.Tensor):
        return same(value, target)
    if not isinstance(value, kinds) or not depth:
        return False
    inside = value.values() if isinstance(value, dict) else value
    return any(_reaches(each, target, same, kinds, depth - 1) for each in inside)


def holders_same_object(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, lambda a, b: a is b))


def holders_equal_values(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, torch.equal))


def holders_same_address(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, lambda a, b: a.data_ptr() == b.data_ptr()))


def holders_top_level(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, share_storage, depth=0))


def holders_one_level(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, share_storage, depth=1))


def holders_no_dicts(namespace, target):
    return _names(namespace, lambda value: _reaches(value, target, share_storage, kinds=(list, tuple)))


def in_namespace(fn: Callable, namespace: dict[str, object]) -> object:
    """Return ``fn`` of a namespace in which every word stands for a tensor; the order of its result does not matter.

    "same" is the target itself, "head" and "tail" are views of it, "copy" has its values, "other" shares nothing with
    it. The target is itself a view, so the ``_base`` of its views is not the target.
    """
    target = torch.arange(14.0)[1:-1]
    tensors = {"same": target, "head": target[:5], "tail": target[5:], "copy": target.clone()}
    tensors["other"] = torch.zeros(7)

    def build(value: object) -> object:
        if isinstance(value, dict):
            return {key: build(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(build(each) for each in value)
        return tensors.get(value, value) if isinstance(value, str) else value

    found = fn(build(namespace), target)
    return sorted(found) if isinstance(found, list | tuple | set) else found


def draw_namespaces(rng) -> list[dict]:
    names = "out cache history model batch logits prompt result old last".split()
    held, other = ["same", "head", "tail"], ["copy", "other", 7, "text"]
    cases = []
    for i in range(40):
        word = rng.choice(held)
        values: list[object] = [
            "head",
            "tail",
            "copy",
            "other",
            (rng.choice(other), word),
            {"keys": rng.choice(held)},
        ]
        values += [
            {"layers": [("other", rng.choice(held)), "copy"]},
            [["copy"], {"text": "other"}],
            16,
            "same",
        ]
        count = 4 + i // 6
        # Every case has a nested name, a view and a copy; the small cases have little else.
        chosen = [values[6], values[1], values[2], values[5]]
        rest = [value for place, value in enumerate(values) if place not in (1, 2, 5, 6)]
        rng.shuffle(rest)
        chosen = (chosen + rest)[:count]
        rng.shuffle(chosen)
        cases.append({"namespace": dict(zip(rng.sample(names, len(chosen)), chosen, strict=True))})
    return cases


HOLDERS = Exercise(
    id="16.3",
    minutes=6,
    name="holders",
    signature=("namespace",),
    cases=draw_namespaces,
    reference=holders,
    drive=in_namespace,
    misconceptions=(
        Misconception("same_object", holders_same_object),
        Misconception("equal_values", holders_equal_values),
        Misconception("same_address", holders_same_address),
        Misconception("top_level", holders_top_level),
        Misconception("one_level", holders_one_level),
        Misconception("no_dicts", holders_no_dicts),
    ),
)
