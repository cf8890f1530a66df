"""Exercise 16.1: the memory that nvidia-smi calls used, split into live, cached, pinned and non-torch."""

from minikv.course.exercise import Exercise, Misconception
from minikv.units import MIB


def split_used(total: int, free: int, allocated: int, reserved: int, inactive_split: int) -> tuple:
    returnable = reserved - allocated - inactive_split
    return allocated, inactive_split, returnable, total - free - reserved


def split_outside_with_free(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, _ = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable, total - reserved


def split_outside_with_cache(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, _ = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable, total - free - allocated


def split_pinned_returned(total, free, allocated, reserved, inactive_split):
    live, pinned, _, outside = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, reserved - allocated, outside


def split_reserved_live(total, free, allocated, reserved, inactive_split):
    _, pinned, returnable, outside = split_used(total, free, allocated, reserved, inactive_split)
    return reserved, pinned, returnable, outside


def split_signs(total, free, allocated, reserved, inactive_split):
    live, pinned, returnable, outside = split_used(total, free, allocated, reserved, inactive_split)
    return live, pinned, returnable + 2 * inactive_split, outside


def draw_figures(rng) -> list[dict]:
    cases = []
    for i in range(40):
        unit = (1, 512, MIB)[i % 3]
        allocated, pinned, returnable, outside = (rng.randint(2, 9 + 4 * i) * unit for _ in range(4))
        free = rng.randint(1, 9 + 4 * i) * unit
        reserved = allocated + pinned + returnable
        figures = {
            "total": free + reserved + outside,
            "free": free,
            "allocated": allocated,
            "reserved": reserved,
        }
        cases.append({**figures, "inactive_split": pinned})
    return cases


SPLIT = Exercise(
    id="16.1",
    minutes=4,
    name="split_used",
    signature=("total", "free", "allocated", "reserved", "inactive_split"),
    cases=draw_figures,
    reference=split_used,
    misconceptions=(
        Misconception("free_outside", split_outside_with_free),
        Misconception("cache_outside", split_outside_with_cache),
        Misconception("pinned_returned", split_pinned_returned),
        Misconception("reserved_live", split_reserved_live),
        Misconception("pinned_added", split_signs),
    ),
)
