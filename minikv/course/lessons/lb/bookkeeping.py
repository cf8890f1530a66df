"""Exercise B.1: a check that names every block with wrong bookkeeping."""

from collections import Counter

from minikv.blocks import NULL_BLOCK
from minikv.course.exercise import Exercise, Misconception


def broken(ref_counts: list[int], free_list: list[int], tables: list[list[int]]) -> list[int]:
    return _wrong(ref_counts, Counter(free_list), _standing(tables))


def _standing(tables: list[list[int]]) -> Counter:
    return Counter(block for table in tables for block in table if block != NULL_BLOCK)


def _wrong(ref_counts: list[int], free: Counter, standing: Counter) -> list[int]:
    return [
        block
        for block, holders in enumerate(ref_counts)
        if holders != standing[block] or free[block] != (holders == 0)
    ]


def only_the_sum(ref_counts, free_list, tables):
    """Names no block if free and held blocks add up to the pool, and all blocks otherwise."""
    held = sum(count > 0 for count in ref_counts)
    return [] if held + len(free_list) == len(ref_counts) else list(range(len(ref_counts)))


def without_tables(ref_counts, free_list, tables):
    free = Counter(free_list)
    return [block for block, holders in enumerate(ref_counts) if free[block] != (holders == 0)]


def without_free_list(ref_counts, free_list, tables):
    standing = _standing(tables)
    return [block for block, holders in enumerate(ref_counts) if holders != standing[block]]


def free_once_or_more(ref_counts, free_list, tables):
    return _wrong(ref_counts, Counter(set(free_list)), _standing(tables))


def held_or_not(ref_counts, free_list, tables):
    """Checks whether a block is held, not how often."""
    standing, free = _standing(tables), Counter(free_list)
    return [
        block
        for block, holders in enumerate(ref_counts)
        if (holders > 0) != (standing[block] > 0) or free[block] != (holders == 0)
    ]


def null_is_the_last(ref_counts, free_list, tables):
    """Takes -1 for a block: in Python, the last one."""
    last = len(ref_counts) - 1
    blocks = Counter(last if block == NULL_BLOCK else block for table in tables for block in table)
    return _wrong(ref_counts, Counter(free_list), blocks)


def lost_is_fine(ref_counts, free_list, tables):
    """Checks that a free block is not held, but not that a block without holders is free."""
    standing, free = _standing(tables), Counter(free_list)
    return [
        block
        for block, holders in enumerate(ref_counts)
        if holders != standing[block] or free[block] > (holders == 0)
    ]


def the_first(ref_counts, free_list, tables):
    return broken(ref_counts, free_list, tables)[:1]


def _sound(rng, blocks: int, sequences: int) -> dict:
    """Draw a sound pool: some blocks shared by several tables, some tables with a window that has moved on."""
    numbers = rng.sample(range(blocks), blocks)
    shared = numbers[: blocks // 4]
    left = numbers[blocks // 4 : blocks - blocks // 4]
    tables = []
    for place in range(sequences):
        own = left[place::sequences]
        gone = [NULL_BLOCK] * rng.choice([0, 0, 1, 2])
        tables.append([*gone, *(shared if rng.random() < 0.7 else []), *own])
    standing = _standing(tables)
    free = [block for block in range(blocks) if not standing[block]]
    rng.shuffle(free)
    return {
        "ref_counts": [standing[block] for block in range(blocks)],
        "free_list": free,
        "tables": tables,
    }


def _one_too_many(rng, case):
    case["ref_counts"][rng.choice(_held(case))] += 1


def _one_too_few(rng, case):
    """Take a holder from a shared block: it stays held, so the free list is right."""
    shared = [block for block, count in enumerate(case["ref_counts"]) if count > 1]
    block = rng.choice(shared or _held(case))
    case["ref_counts"][block] += -1 if shared else 1


def _freed_twice(rng, case):
    if case["free_list"]:
        case["free_list"].append(rng.choice(case["free_list"]))


def _freed_in_use(rng, case):
    case["free_list"].append(rng.choice(_held(case)))


def _lost(rng, case):
    if case["free_list"]:
        case["free_list"].remove(rng.choice(case["free_list"]))


def _leaked(rng, case):
    """Take a block into no table, like a failed admission."""
    if case["free_list"]:
        block = rng.choice(case["free_list"])
        case["free_list"].remove(block)
        case["ref_counts"][block] = 1


def _swapped(rng, case):
    """Lose one block and list another twice: the sum is right."""
    if len(case["free_list"]) > 1:
        gone, twice = rng.sample(case["free_list"], 2)
        case["free_list"].remove(gone)
        case["free_list"].append(twice)


FAULTS = (_one_too_many, _one_too_few, _freed_twice, _freed_in_use, _lost, _leaked, _swapped)


def _held(case: dict) -> list[int]:
    return [block for block, count in enumerate(case["ref_counts"]) if count]


def draw_books(rng) -> list[dict]:
    """Draw sound pools, pools with one fault and pools with two; from few blocks to many."""
    cases = []
    for i in range(64):
        case = _sound(rng, blocks=8 + i // 4, sequences=2 + i % 3)
        if i % 8 != 7:
            FAULTS[i % 8](rng, case)
        if i >= 32:
            FAULTS[(i + 3) % 7](rng, case)
        cases.append(case)
    return cases


BOOKS = Exercise(
    id="B.1",
    minutes=7,
    name="broken",
    signature=("ref_counts", "free_list", "tables"),
    cases=draw_books,
    reference=broken,
    misconceptions=(
        Misconception("only_the_sum", only_the_sum),
        Misconception("without_tables", without_tables),
        Misconception("without_free_list", without_free_list),
        Misconception("free_once_or_more", free_once_or_more),
        Misconception("held_or_not", held_or_not, within=("without_tables",)),
        Misconception("null_is_a_block", null_is_the_last),
        Misconception("lost_is_fine", lost_is_fine),
        Misconception("the_first", the_first),
    ),
)
