"""Exercise 16.5: which holder pins most of the allocator's reserved memory."""

from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception

# 16.5

Segments = list[list[tuple]]  # a segment is a list of blocks (size, holders); a block without holders is free


def pins_most(segments: Segments) -> str | None:
    return _best(segments, _sole_holders, lambda blocks: sum(size for size, _ in blocks))


def _best(segments: Segments, freed_by: Callable, gain: Callable) -> str | None:
    """Return the holder with the largest gain, of equals the first in the alphabet."""
    gains = _gains(segments, freed_by, gain)
    return min(gains, key=lambda name: (-gains[name], name)) if gains else None


def _gains(segments: Segments, freed_by: Callable, gain: Callable) -> dict[str, int]:
    """Return the bytes that each holder pins; ``freed_by(blocks)``: the holders that alone pin a segment."""
    gains: dict[str, int] = {}
    for blocks in segments:
        for name in freed_by(blocks):
            gains[name] = gains.get(name, 0) + gain(blocks)
    return gains


def _live(blocks: list[tuple]) -> list[tuple]:
    return [block for block in blocks if block[1]]


def _sole_holders(blocks: list[tuple]) -> set[str]:
    all_names = {name for _, holders in blocks for name in holders}
    return all_names if len(all_names) == 1 else set()


def pins_most_bytes(segments):
    """Takes the holder of the most bytes, also where no segment is returned."""
    split = [[block] for blocks in segments for block in _live(blocks)]
    return _best(split, lambda blocks: set(blocks[0][1]), lambda blocks: blocks[0][0])


def pins_any_holder(segments):
    def freed_by(blocks):
        return set.intersection(*(set(holders) for _, holders in _live(blocks))) if _live(blocks) else set()

    return _best(segments, freed_by, lambda blocks: sum(size for size, _ in blocks))


def pins_holes_too(segments):
    return _best(
        segments, lambda blocks: {n for _, h in blocks for n in h}, lambda blocks: sum(s for s, _ in blocks)
    )


def pins_without_holes(segments):
    return _best(segments, _sole_holders, lambda blocks: sum(size for size, _ in _live(blocks)))


def pins_one_segment(segments):
    one = max(segments, key=lambda blocks: sum(size for size, _ in blocks) if _sole_holders(blocks) else -1)
    return pins_most([one])


def pins_last_of_equals(segments):
    gains = _gains(segments, _sole_holders, lambda blocks: sum(size for size, _ in blocks))
    return max(gains, key=lambda name: (gains[name], name)) if gains else None


def pins_most_segments(segments):
    return _best(segments, _sole_holders, lambda blocks: 1)


def pins_free_already(segments):
    """Counts segments that no holder keeps for every holder."""
    all_names = {name for blocks in segments for _, holders in blocks for name in holders}
    return _best(
        segments,
        lambda blocks: _sole_holders(blocks) if _live(blocks) else all_names,
        lambda blocks: sum(size for size, _ in blocks),
    )


def draw_segments(rng) -> list[dict]:
    words = "answer batch cache debug events frames graph history index".split()
    cases = []
    for i in range(40):
        first, second, third, rich, shared, *more = rng.sample(words, 7 + i % 3)
        one, two = (rng.randint(20, 30 + 3 * i) for _ in range(2))
        # second's segment is larger than each of first's two; in some cases larger than both, or as large as both.
        large = {2: 4 * max(one, two), 3: one + two - 2}.get(i % 4, max(one, two))
        # first holds little in two segments; second has a larger one with a hole; third one without.
        segments = [[(2, (first,)), (one, ()), (1, (first,))], [(two, ()), (3, (first,))]]
        segments += [
            [(large // 2, (second,)), (large - large // 2, ()), (8, (second,))],
            [(large + 3, (third,))],
        ]
        # A block with two holders; a segment without holders; the most bytes of one holder, in a segment of two.
        segments += [[(3 * (one + two), (rich, shared))], [(5 * large, ())]]
        segments += [[(4 * (one + two), (more[0],)), (9 * (one + two), ()), (1, (more[1],))]]
        segments += [[(rng.randint(1, 4), (name,)), (rng.randint(1, 8), ())] for name in more[2:]]
        if i % 10 == 9:  # no holder alone keeps a segment, and one segment is free already
            segments = [[*blocks, (1, (rich, shared))] if _live(blocks) else blocks for blocks in segments]
        if i % 20 == 9:
            segments = segments[4:7]
        rng.shuffle(segments)
        cases.append({"segments": segments})
    return cases


PINS = Exercise(
    id="16.5",
    minutes=6,
    name="pins_most",
    signature=("segments",),
    cases=draw_segments,
    reference=pins_most,
    misconceptions=(
        Misconception("most_bytes", pins_most_bytes),
        Misconception("any_holder", pins_any_holder),
        Misconception("holes_too", pins_holes_too),
        Misconception("without_holes", pins_without_holes),
        Misconception("one_segment", pins_one_segment),
        Misconception("ties", pins_last_of_equals, within=("one_segment",)),
        Misconception("most_segments", pins_most_segments),
        Misconception("free_already", pins_free_already),
    ),
)
