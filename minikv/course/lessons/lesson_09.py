"""Lesson 09: who owns block 7. Most exercises have files of their own, named after them: ``free_09.py`` and others."""

from minikv.blocks import NULL_BLOCK, BlockManager
from minikv.blocks.prefix import first_block_needed
from minikv.course.exercise import Exercise, Lesson, Misconception, Prediction
from minikv.course.lessons.allocate_09 import ALLOCATE
from minikv.course.lessons.append_09 import APPEND_TOKEN
from minikv.course.lessons.digests_09 import DIGEST
from minikv.course.lessons.free_09 import FREE
from minikv.course.lessons.holders_09 import APPEND

BLOCK_SIZE = 16  # of the predictions

# 09.1 ------------------------------------------------------------------------------------------------------


def slot_mapping(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    return [_slot(block_table, i, block_size) for i in range(start, end)]


def _slot(block_table: list[int], position: int, block_size: int) -> int:
    block = block_table[position // block_size]
    return NULL_BLOCK if block == NULL_BLOCK else block * block_size + position % block_size


def slots_without_full_end(block_table, start, end, block_size):
    """Block by block, as the guide does it, and the last one ``end % block_size`` long: 0 where it is full."""
    slots = []
    last = (end - 1) // block_size
    for place in range(start // block_size, last + 1):
        low = start % block_size if place == start // block_size else 0
        high = end % block_size if place == last else block_size
        slots += [_slot(block_table, place * block_size + i, block_size) for i in range(low, high)]
    return slots


def slots_null_written(block_table, start, end, block_size):
    return [block_table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def slots_no_table(block_table, start, end, block_size):
    return list(range(start, end))


def slots_block_is_slot(block_table, start, end, block_size):
    return [
        NULL_BLOCK
        if block_table[i // block_size] == NULL_BLOCK
        else block_table[i // block_size] + i % block_size
        for i in range(start, end)
    ]


def slots_from_the_table_start(block_table, start, end, block_size):
    return slot_mapping(block_table, 0, end - start, block_size)


def slots_whole_blocks(block_table, start, end, block_size):
    return slot_mapping(block_table, start // block_size * block_size, end, block_size)


def draw_slots(rng) -> list[dict]:
    """Prefills and decodes; starts and ends on, below and above block multiples; some tables with a window."""
    cases = []
    for i in range(48):
        block_size = (2, 4, 8, 16)[i % 4]
        table = rng.sample(range(2, 60), 2 + i // 8)
        end = len(table) * block_size - rng.choice([0, 0, 1, block_size - 1])
        starts = [0, end - 1, block_size * rng.randint(1, len(table) - 1), rng.randint(0, end - 1)]
        start = rng.choice(starts)
        if i > 10 and i % 5 == 4:
            for place in range(rng.randint(1, len(table) // 2)):
                table[place] = NULL_BLOCK
            start = rng.randint(0, block_size)
        case = {"block_table": table, "start": min(start, end - 1), "end": end, "block_size": block_size}
        cases.append(case)
    return cases


SLOTS = Exercise(
    id="09.1",
    name="slot_mapping",
    signature=("block_table", "start", "end", "block_size"),
    cases=draw_slots,
    reference=slot_mapping,
    misconceptions=(
        Misconception("full_block_lost", slots_without_full_end),
        Misconception("null_written", slots_null_written),
        Misconception("no_table", slots_no_table),
        Misconception("block_is_slot", slots_block_is_slot),
        Misconception("table_from_start", slots_from_the_table_start),
        Misconception("whole_blocks", slots_whole_blocks),
    ),
)

# 09.5 ------------------------------------------------------------------------------------------------------


def behind_window(block_table: list[int], num_tokens: int, window: int, block_size: int) -> list[int]:
    return _held(block_table[: first_block_needed(num_tokens, window, block_size)])


def _held(blocks: list[int]) -> list[int]:
    return [block for block in blocks if block != NULL_BLOCK]


def behind_cut_into(block_table, num_tokens, window, block_size):
    return _held(block_table[: -(-max(0, num_tokens - window + 1) // block_size)])


def behind_late(block_table, num_tokens, window, block_size):
    return _held(block_table[: max(0, num_tokens - window) // block_size])


def behind_before_the_start(block_table, num_tokens, window, block_size):
    """A sequence shorter than the window: the slice ends at a negative place, which counts from the end."""
    return _held(block_table[: (num_tokens - window + 1) // block_size])


def behind_null_again(block_table, num_tokens, window, block_size):
    return block_table[: first_block_needed(num_tokens, window, block_size)]


def behind_from_the_end(block_table, num_tokens, window, block_size):
    return _held(block_table[: max(0, len(block_table) - -(-window // block_size))])


def draw_windows(rng) -> list[dict]:
    """Windows that end on, below and above a block's edge; some blocks were given back already."""
    cases = []
    for i in range(48):
        block_size = (2, 4, 8, 16)[i % 4]
        window = rng.randint(2, 2 * block_size + i)
        # The first position that is still read lies on a block's edge, just before or behind it; or is negative.
        low = block_size * rng.randint(1, 2 + i // 8) + rng.choice([0, 1, -1, block_size // 2])
        num_tokens = max(1, low + window - 1)
        if i % 6 == 5:
            num_tokens = low + block_size
            window = num_tokens + rng.randint(0, block_size + 1)
        table = rng.sample(range(80), -(-num_tokens // block_size))
        gone = first_block_needed(num_tokens, window, block_size)
        for place in range(rng.randint(0, gone)):
            table[place] = NULL_BLOCK
        case = {"block_table": table, "num_tokens": num_tokens, "window": window, "block_size": block_size}
        cases.append(case)
    return cases


WINDOW = Exercise(
    id="09.5",
    name="behind_window",
    signature=("block_table", "num_tokens", "window", "block_size"),
    cases=draw_windows,
    reference=behind_window,
    misconceptions=(
        Misconception("never", lambda block_table, num_tokens, window, block_size: []),
        Misconception("cuts_into_window", behind_cut_into),
        Misconception("one_too_late", behind_late),
        Misconception("before_the_start", behind_before_the_start),
        Misconception("given_back_twice", behind_null_again),
        Misconception("from_the_end", behind_from_the_end, within=("cuts_into_window",)),
    ),
)

# Predictions -----------------------------------------------------------------------------------------------


def _cached_the_second_time(num_tokens: int) -> int:
    manager = BlockManager(num_tokens, BLOCK_SIZE)
    prompt = list(range(num_tokens))
    manager.allocate("first", prompt)
    manager.commit("first")
    manager.free("first")
    return manager.allocate("second", prompt).num_cached


def _blocks_together(shared: int, own: int, requests: int) -> int:
    manager = BlockManager(shared + own * requests, BLOCK_SIZE)
    for request in range(requests):
        first = shared + own * request
        manager.allocate(request, [*range(shared), *range(first, first + own)])
        manager.commit(request)
    return manager.stats().pools[0].used


def _evictable(total: int, prompt: int, rng) -> dict:
    return {"total": total, "prompt": prompt, "other": total - rng.randint(13, prompt - 3)}


def _blocks_still_found(total: int, prompt: int, other: int) -> int:
    manager = BlockManager(total, BLOCK_SIZE)
    tokens = list(range(prompt * BLOCK_SIZE))
    manager.allocate("first", tokens)
    manager.commit("first")
    manager.free("first")
    manager.allocate("second", range(len(tokens), len(tokens) + other * BLOCK_SIZE))
    return manager.match([*tokens, 0]).num_tokens // BLOCK_SIZE


def _blocks_after_forks(num_tokens: int, children: int) -> int:
    manager = BlockManager(num_tokens, BLOCK_SIZE)
    manager.allocate(0, list(range(num_tokens)))
    for child in range(1, children + 1):
        manager.fork(0, child)
    for sequence in range(children + 1):
        manager.append(sequence, num_tokens + sequence)
    return manager.stats().pools[0].used


def _mean_waste(block_size: int) -> float:
    """Over every length of the last block."""
    wasted = []
    for num_tokens in range(1, block_size + 1):
        manager = BlockManager(2, block_size)
        manager.allocate("one", list(range(num_tokens)))
        wasted.append(manager.stats().wasted_slots[0])
    return sum(wasted) / len(wasted)


LESSON = Lesson(
    exercises=(SLOTS, FREE, DIGEST, APPEND, WINDOW, ALLOCATE, APPEND_TOKEN),
    predictions=(
        Prediction(
            "second_time",
            lambda rng: {"num_tokens": rng.choice([256, 512, 1024, 2048])},
            how="({num_tokens} - 1) // 16 * 16",
            unit="tokens",
            answer=_cached_the_second_time,
        ),
        Prediction(
            "shared_blocks",
            lambda rng: {
                "shared": 16 * rng.randint(20, 40) + rng.randint(1, 15),
                "own": 16 * rng.randint(1, 3),
                "requests": rng.randint(5, 9),
            },
            how="{shared} // 16 + {requests} * -(-({shared} % 16 + {own}) // 16)",
            unit="blocks",
            answer=_blocks_together,
        ),
        Prediction(
            "still_found",
            lambda rng: _evictable(rng.randint(80, 99), rng.randint(24, 40), rng),
            how="{total} - {other}",
            unit="blocks",
            answer=_blocks_still_found,
        ),
        Prediction(
            "forked_blocks",
            lambda rng: {
                "num_tokens": 16 * rng.randint(20, 40) + rng.randint(1, 15),
                "children": rng.randint(3, 7),
            },
            how="{num_tokens} // 16 + 1 + {children}",
            unit="blocks",
            answer=_blocks_after_forks,
        ),
        Prediction(
            "mean_waste",
            lambda rng: {"block_size": rng.choice([32, 64, 128])},
            how="({block_size} - 1) / 2",
            unit="slots",
            answer=_mean_waste,
            tolerance=1.1,
        ),
    ),
    questions=("who_owns", "why_commit", "why_parent", "which_size"),
)
