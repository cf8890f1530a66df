"""Exercise 09.4: a slot for one more token where sequences share blocks, with copy on write."""

from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception


def append_slot(
    table: list[int], length: int, ref_counts: list[int], free_list: list[int], block_size: int
) -> tuple[int, int] | None:
    if length % block_size == 0:
        table.append(_take(ref_counts, free_list))
        return None
    if ref_counts[table[-1]] == 1:
        return None
    return _copy_last(table, ref_counts, free_list)


def _take(ref_counts: list[int], free_list: list[int]) -> int:
    block = free_list.pop(0)
    ref_counts[block] = 1
    return block


def _copy_last(table: list[int], ref_counts: list[int], free_list: list[int]) -> tuple[int, int]:
    source, copy = table[-1], _take(ref_counts, free_list)
    ref_counts[source] -= 1
    table[-1] = copy
    return source, copy


def all_appends(
    fn: Callable,
    tables: list[list[int]],
    lengths: list[int],
    appends: list[int],
    ref_counts: list[int],
    free_list: list[int],
    block_size: int,
):
    """Append a token to sequence ``appends[0]``, ``appends[1]``, ...; return the copies made and the final state."""
    tables, lengths = [list(table) for table in tables], list(lengths)
    counts, free_blocks, copies = list(ref_counts), list(free_list), []
    for sequence in appends:
        copies.append(fn(tables[sequence], lengths[sequence], counts, free_blocks, block_size))
        lengths[sequence] += 1
    return {"copies": copies, "tables": tables, "ref_counts": counts, "free_list": free_blocks}


def appended_into_shared(table, length, ref_counts, free_list, block_size):
    if length % block_size == 0:
        table.append(_take(ref_counts, free_list))


def appended_always_copied(table, length, ref_counts, free_list, block_size):
    if length % block_size == 0:
        table.append(_take(ref_counts, free_list))
        return None
    return _copy_last(table, ref_counts, free_list)


def appended_late(table, length, ref_counts, free_list, block_size):
    if length % block_size == 1:
        table.append(_take(ref_counts, free_list))
        return None
    return None if ref_counts[table[-1]] == 1 else _copy_last(table, ref_counts, free_list)


def appended_early(table, length, ref_counts, free_list, block_size):
    return append_slot(table, length + 1, ref_counts, free_list, block_size)


def appended_old_count(table, length, ref_counts, free_list, block_size):
    copy = append_slot(table, length, ref_counts, free_list, block_size)
    if copy is not None:
        ref_counts[copy[0]] += 1
    return copy


def appended_copied_full(table, length, ref_counts, free_list, block_size):
    if ref_counts[table[-1]] > 1:
        return _copy_last(table, ref_counts, free_list)
    return append_slot(table, length, ref_counts, free_list, block_size)


def appended_swapped(table, length, ref_counts, free_list, block_size):
    copy = append_slot(table, length, ref_counts, free_list, block_size)
    return copy and copy[::-1]


def draw_appends(rng) -> list[dict]:
    """Draw a sequence with one to three forks and a separate one; lengths on, below and above a block multiple."""
    cases = []
    for i in range(40):
        block_size = (2, 3, 4, 4, 8)[i % 5]
        family = 2 + i // 16
        length = block_size * rng.randint(1, 2 + i // 20) + (0, 1, -1)[i % 3]
        alone = rng.randint(1, 2 * block_size)
        need = [-(-length // block_size), -(-alone // block_size)]
        appends = [sequence for sequence in range(family + 1) for _ in range(rng.randint(1, 1 + i // 8))]
        rng.shuffle(appends)
        num_blocks = sum(need) + len(appends) + family + 2
        blocks = rng.sample(range(num_blocks), num_blocks)
        parent, own, free_list = blocks[: need[0]], blocks[need[0] : sum(need)], blocks[sum(need) :]
        tables = [list(parent) for _ in range(family)] + [own]
        ref_counts = [sum(block in table for table in tables) for block in range(num_blocks)]
        lengths = [length] * family + [alone]
        case = {"tables": tables, "lengths": lengths, "appends": appends, "ref_counts": ref_counts}
        cases.append({**case, "free_list": free_list, "block_size": block_size})
    return cases


APPEND = Exercise(
    id="09.4",
    minutes=8,
    name="append_slot",
    signature=("tables", "lengths", "appends", "ref_counts", "free_list", "block_size"),
    cases=draw_appends,
    reference=append_slot,
    drive=all_appends,
    misconceptions=(
        Misconception("into_shared", appended_into_shared),
        Misconception("always_copied", appended_always_copied),
        Misconception("block_late", appended_late),
        Misconception("block_early", appended_early),
        Misconception("old_count_kept", appended_old_count),
        Misconception("full_block_copied", appended_copied_full),
        Misconception("swapped", appended_swapped),
    ),
)
