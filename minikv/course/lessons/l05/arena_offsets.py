"""Exercise 05.3: offsets in an arena, aligned, and its size."""

from minikv.course.exercise import Exercise, Misconception


def carve(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = -(-end // align) * align
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_tight(sizes: list[int], align: int) -> tuple[list[int], int]:
    return [sum(sizes[:i]) for i in range(len(sizes))], sum(sizes)


def carve_with_tail(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = carve(sizes, align)
    return offsets, -(-end // align) * align


def carve_one_too_many(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = (end // align + 1) * align if end else 0
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_largest_first(sizes: list[int], align: int) -> tuple[list[int], int]:
    return carve(sorted(sizes, reverse=True), align)


def carve_backwards(sizes: list[int], align: int) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        start = end // align * align
        offsets.append(start)
        end = start + size
    return offsets, end


def carve_sum_of_sizes(sizes: list[int], align: int) -> tuple[list[int], int]:
    return carve(sizes, align)[0], sum(sizes)


def draw_sizes(rng) -> list[dict]:
    cases = []
    for i in range(40):
        align = 2 ** rng.randint(2, 9)
        # Just below, on and above a multiple of the alignment, so that every rounding shows.
        sizes = [
            max(
                1, align * rng.randint(1, 3) + rng.choice([-1, 0, 0, 1, rng.randint(-align // 2, align // 2)])
            )
            for _ in range(2 + i // 6)
        ]
        cases.append({"sizes": sizes, "align": align})
    return cases


CARVE = Exercise(
    id="05.3",
    minutes=5,
    name="carve",
    signature=("sizes", "align"),
    cases=draw_sizes,
    reference=carve,
    misconceptions=(
        Misconception("tight", carve_tight),
        Misconception("tail_padding", carve_with_tail),
        Misconception("one_too_many", carve_one_too_many),
        Misconception("largest_first", carve_largest_first),
        Misconception("rounds_down", carve_backwards),
        Misconception("sum_of_sizes", carve_sum_of_sizes),
    ),
)
