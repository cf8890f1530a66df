"""Exercises 07.3 and 07.4: which free block a request gets, and what ``empty_cache`` returns to the device."""

from minikv.course.exercise import Exercise, Misconception
from minikv.memory.allocator.blocks import ALLOCATED, AWAITING_FREE, INACTIVE
from minikv.memory.allocator.rules import SMALL_SIZE
from minikv.units import KIB, MIB

# 07.3 ------------------------------------------------------------------------------------------------------


def choose_block(free: list[tuple[int, int, int, str]], size: int, stream: int) -> int | None:
    fitting = [(held, address) for address, held, _, _ in _in_reach(free, size, stream) if held >= size]
    return min(fitting)[1] if fitting else None


def _in_reach(free, size, stream):
    """Return the free blocks of the request's own pool and stream."""
    pool = "small" if size <= SMALL_SIZE else "large"
    return [block for block in free if block[2] == stream and block[3] == pool]


def choose_first_fit(free, size, stream):
    fitting = [address for address, held, _, _ in _in_reach(free, size, stream) if held >= size]
    return min(fitting) if fitting else None


def choose_largest(free, size, stream):
    fitting = [(-held, address) for address, held, _, _ in _in_reach(free, size, stream) if held >= size]
    return min(fitting)[1] if fitting else None


def choose_any_pool(free, size, stream):
    fitting = [(held, address) for address, held, on, _ in free if on == stream and held >= size]
    return min(fitting)[1] if fitting else None


def choose_any_stream(free, size, stream):
    own = [(address, held, stream, pool) for address, held, _, pool in free]
    return choose_block(own, size, stream)


def choose_list_order(free, size, stream):
    fitting = [(held, address) for address, held, _, _ in _in_reach(free, size, stream) if held >= size]
    return min(fitting, key=lambda block: block[0])[1] if fitting else None


def choose_larger_only(free, size, stream):
    return choose_block([block for block in free if block[1] != size], size, stream)


def choose_one_mib_is_large(free, size, stream):
    """Takes a request of exactly 1 MiB for a large one."""
    pool = "small" if size < SMALL_SIZE else "large"
    fitting = [
        (held, address) for address, held, on, kind in free if (on, kind) == (stream, pool) and held >= size
    ]
    return min(fitting)[1] if fitting else None


def draw_free(rng) -> list[dict]:
    """Draw free blocks of both pools and two streams, in no order, and requests that fit exactly, nearly, or nowhere.

    Small blocks have up to 2 MiB, a whole segment, and large ones begin above 1 MiB: their sizes overlap.
    """
    cases = []
    for i in range(48):
        free = []
        for place in range(3 + i // 3):
            small = rng.random() < 0.5
            held = 512 * rng.randint(2, 4096) if small else MIB + 512 * rng.randint(1, 40_000)
            free.append((place * 64 * MIB + rng.choice([0, 4 * KIB]), held, rng.choice([0, 0, 7]), small))
        free = [
            (address, held, stream, "small" if small else "large") for address, held, stream, small in free
        ]
        _, held, stream, pool = rng.choice(free)
        size = held + 512 * rng.choice([0, 0, -1, 1, rng.randint(-800, 800)])
        if i % 2:  # a second block of exactly this size: the one with the lower address is right
            free.append((64 * MIB * len(free), held, stream, pool))
            size = held
        if i % 8 == 2:  # 1 MiB is the largest small request, and both pools have room for it
            size = MIB
            free += [
                (64 * MIB * (len(free) + n), MIB + 512 * n, stream, kind)
                for n, kind in ((2, "small"), (1, "large"))
            ]
        rng.shuffle(free)
        asked_on = stream if i % 2 or size == MIB else rng.choice([stream, stream, 0, 7])
        cases.append({"free": free, "size": max(512, size), "stream": asked_on})
    return cases


CHOOSE = Exercise(
    id="07.3",
    minutes=6,
    name="choose_block",
    signature=("free", "size", "stream"),
    cases=draw_free,
    reference=choose_block,
    misconceptions=(
        Misconception("first_fit", choose_first_fit),
        Misconception("largest", choose_largest),
        Misconception("any_pool", choose_any_pool),
        Misconception("any_stream", choose_any_stream),
        Misconception("list_order", choose_list_order),
        Misconception("larger_only", choose_larger_only),
        Misconception("one_mib_is_large", choose_one_mib_is_large, within=("any_pool",)),
    ),
)

# 07.4 ------------------------------------------------------------------------------------------------------


def bytes_returned(segments: list[list[tuple[int, str]]]) -> int:
    return sum(_size(blocks) for blocks in segments if all(state != ALLOCATED for _, state in blocks))


def _size(blocks):
    return sum(size for size, _ in blocks)


def returned_free_bytes(segments):
    return sum(size for blocks in segments for size, state in blocks if state != ALLOCATED)


def returned_any_free(segments):
    return sum(_size(blocks) for blocks in segments if any(state != ALLOCATED for _, state in blocks))


def returned_without_waiting(segments):
    return sum(_size(blocks) for blocks in segments if all(state == INACTIVE for _, state in blocks))


def returned_unsplit(segments):
    return sum(_size(blocks) for blocks in segments if len(blocks) == 1 and blocks[0][1] != ALLOCATED)


def returned_inactive_part(segments):
    """Gives back the idle blocks of the right segments, and keeps those that wait for a stream."""
    whole = [blocks for blocks in segments if all(state != ALLOCATED for _, state in blocks)]
    return sum(size for blocks in whole for size, state in blocks if state == INACTIVE)


def returned_number(segments):
    return sum(all(state != ALLOCATED for _, state in blocks) for blocks in segments)


# What a segment holds; None: anything. Two neighbouring free blocks cannot occur: they would have been merged.
KINDS = (
    [ALLOCATED],
    [INACTIVE],
    [AWAITING_FREE],
    [AWAITING_FREE, INACTIVE],
    [AWAITING_FREE, INACTIVE, AWAITING_FREE],
    [ALLOCATED, INACTIVE],
    None,
)


def draw_segments(rng) -> list[dict]:
    cases = []
    for i in range(40):
        segments = []
        for _ in range(2 + i // 6):
            kinds = rng.choice(KINDS)
            if kinds is None:
                kinds = [rng.choice([ALLOCATED, AWAITING_FREE]) for _ in range(rng.randint(2, 3 + i // 8))]
            if rng.random() < 0.5:
                kinds = kinds[::-1]
            segments.append([(512 * rng.randint(1, 4000 * (1 + i)), kind) for kind in kinds])
        cases.append({"segments": segments})
    return cases


RETURNED = Exercise(
    id="07.4",
    minutes=5,
    name="bytes_returned",
    signature=("segments",),
    cases=draw_segments,
    reference=bytes_returned,
    misconceptions=(
        Misconception("free_bytes", returned_free_bytes),
        Misconception("any_free", returned_any_free),
        Misconception("without_waiting", returned_without_waiting),
        Misconception("unsplit_only", returned_unsplit),
        Misconception("inactive_part", returned_inactive_part),
        Misconception("number_of_segments", returned_number),
    ),
)
