"""Exercise 09.1: the slots of a sequence's tokens, through its block table."""

from minikv.blocks import NULL_BLOCK
from minikv.course.exercise import Exercise, Misconception


def slot_mapping(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    return [_slot(block_table, i, block_size) for i in range(start, end)]


def _slot(block_table: list[int], position: int, block_size: int) -> int:
    block = block_table[position // block_size]
    return NULL_BLOCK if block == NULL_BLOCK else block * block_size + position % block_size


def slots_without_full_end(block_table, start, end, block_size):
    """Goes block by block and takes ``end % block_size`` tokens of the last: 0 if it is full."""
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
    """Draw prefills and decodes; starts and ends on, below and above block multiples; some tables with a window."""
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
    minutes=5,
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
