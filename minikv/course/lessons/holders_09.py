"""Exercises 09.2 and 09.4: functions that change ref-counts, free list and block tables as they go."""

from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception

# 09.2 ------------------------------------------------------------------------------------------------------


def free(blocks: list[int], ref_counts: list[int], free_list: list[int]) -> None:
    if any(ref_counts[block] == 0 for block in blocks):
        raise ValueError("a block that nobody holds")
    for block in reversed(blocks):
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            free_list.append(block)


def after_each_call(fn: Callable, calls: list[list[int]], ref_counts: list[int], free_list: list[int]):
    """What ``fn`` leaves behind after each call, and whether it refused."""
    counts, free_blocks, seen = list(ref_counts), list(free_list), []
    for blocks in calls:
        refused = False
        try:
            fn(list(blocks), counts, free_blocks)
        except ValueError:
            refused = True
        state = {"refused": refused, "ref_counts": list(counts), "free_list": list(free_blocks)}
        seen.append(state)
    return seen


def freed_unchecked(blocks, ref_counts, free_list):
    for block in reversed(blocks):
        ref_counts[block] -= 1
        if ref_counts[block] <= 0:
            free_list.append(block)


def freed_half(blocks, ref_counts, free_list):
    for block in reversed(blocks):
        if ref_counts[block] == 0:
            raise ValueError
        free([block], ref_counts, free_list)


def freed_without_the_last(blocks, ref_counts, free_list):
    free(blocks[:-1], ref_counts, free_list)


def freed_tested_too_early(blocks, ref_counts, free_list):
    if any(ref_counts[block] == 0 for block in blocks):
        raise ValueError
    for block in reversed(blocks):
        if ref_counts[block] == 0:
            free_list.append(block)
        else:
            ref_counts[block] -= 1


def freed_for_all(blocks, ref_counts, free_list):
    if any(ref_counts[block] == 0 for block in blocks):
        raise ValueError
    for block in reversed(blocks):
        ref_counts[block] = 0
        free_list.append(block)


def freed_head_first(blocks, ref_counts, free_list):
    free(blocks[::-1], ref_counts, free_list)


def freed_to_the_front(blocks, ref_counts, free_list):
    found: list[int] = []
    free(blocks, ref_counts, found)
    free_list[:0] = found


def draw_frees(rng) -> list[dict]:
    """Sequences that share a prefix end one after the other; some are freed twice, some calls name a free block."""
    cases = []
    for i in range(40):
        count, shared = 2 + i // 12, rng.randint(1, 2 + i // 16)
        own = [rng.randint(2, 3 + i // 16) for _ in range(count)]
        num_blocks = shared + sum(own) + rng.randint(2, 4)
        blocks = rng.sample(range(num_blocks), num_blocks)
        prefix, blocks = blocks[:shared], blocks[shared:]
        tables = []
        for size in own:
            tables.append([*prefix, *blocks[:size]])
            blocks = blocks[size:]
        calls = rng.sample(tables, count)
        if i % 3 == 1:  # freed twice
            calls.insert(1, calls[0])
        if i % 3 == 2:  # a free block among held ones
            calls.insert(0, [calls[0][0], blocks[0], *calls[0][1:]])
        ref_counts = [sum(block in table for table in tables) for block in range(num_blocks)]
        cases.append({"calls": [list(c) for c in calls], "ref_counts": ref_counts, "free_list": blocks})
    return cases


FREE = Exercise(
    id="09.2",
    name="free",
    signature=("calls", "ref_counts", "free_list"),
    cases=draw_frees,
    reference=free,
    drive=after_each_call,
    misconceptions=(
        Misconception("double_free", freed_unchecked),
        Misconception("half_done", freed_half),
        Misconception("leaks_the_last", freed_without_the_last),
        Misconception("tested_too_early", freed_tested_too_early),
        Misconception("count_ignored", freed_for_all),
        Misconception("head_first", freed_head_first),
        Misconception("to_the_front", freed_to_the_front),
    ),
)

# 09.4 ------------------------------------------------------------------------------------------------------


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
    """Sequence ``appends[0]`` gets a token, then ``appends[1]``, ...; what was copied, and the state at the end."""
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
    """A sequence with one to three forks, and a sequence of its own; lengths on, below and above a block multiple."""
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
