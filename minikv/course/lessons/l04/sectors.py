"""Exercise 04.5: how many sectors of memory one warp's request touches, and five ways to miscount them."""

import math

from minikv.course.exercise import Exercise, Misconception


def sectors(elements: list[int], itemsize: int, sector: int) -> int:
    touched: set[int] = set()
    for element in elements:
        first = element * itemsize
        touched.update(range(first // sector, (first + itemsize - 1) // sector + 1))
    return len(touched)


def sectors_of_the_span(elements, itemsize, sector):
    return (max(elements) * itemsize + itemsize - 1) // sector - min(elements) * itemsize // sector + 1


def draw_sectors(rng) -> list[dict]:
    cases = []
    for i in range(48):
        lanes, start, stride = 2 + 2 * (i // 3), rng.randint(0, 4 + 6 * i), rng.choice([2, 3, 16, 64])
        order = (
            [start + lane for lane in range(lanes)],
            [start + stride * lane for lane in range(lanes)],
            [rng.randint(0, 40 + 60 * i) for _ in range(lanes)],
            [start] * lanes,
        )[i % 4]
        itemsize, sector = rng.choice([1, 2, 4, 8, 12, 16]), rng.choice([32, 32, 64])
        if i % 12 == 5:  # The elements are far apart, and each lies across the border of two sectors.
            itemsize, sector = 12, 32
            order = [2 + 16 * (start + lane) for lane in range(lanes)]
        cases.append({"elements": order, "itemsize": itemsize, "sector": sector})
    return cases


SECTORS = Exercise(
    id="04.5",
    minutes=5,
    name="sectors",
    signature=("elements", "itemsize", "sector"),
    cases=draw_sectors,
    reference=sectors,
    misconceptions=(
        Misconception("one_each", lambda elements, itemsize, sector: len(elements)),
        Misconception(
            "packed", lambda elements, itemsize, sector: math.ceil(len(elements) * itemsize / sector)
        ),
        Misconception("span", sectors_of_the_span),
        Misconception(
            "first_byte",
            lambda elements, itemsize, sector: len({one * itemsize // sector for one in elements}),
        ),
        Misconception(
            "elements_for_bytes", lambda elements, itemsize, sector: len({one // sector for one in elements})
        ),
    ),
)
