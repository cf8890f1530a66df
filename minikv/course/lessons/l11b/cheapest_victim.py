"""Exercise 11b.1: the victim that loses the fewest tokens."""

from minikv.course.exercise import Exercise, Misconception


def cheapest_victim(
    tables: list[list[int]],
    computed: list[int],
    ref_counts: dict[int, int],
    asker: int,
    asked: int,
    free: int,
    block_size: int,
) -> int | None:
    return _choose(tables, computed, ref_counts, range(asker + 1, len(tables)), asked, free, block_size)


def _choose(tables, computed, ref_counts, candidates, asked, free, block_size, later=1, lost=None):
    """Return the best of ``candidates``; of two equal ones the younger, or with ``later=-1`` the older."""
    best, best_rank = None, None
    for number in candidates:
        freed = free + _own(tables[number], ref_counts)
        given_up = (lost or _lost)(tables[number], computed[number], ref_counts, block_size)
        enough = freed >= asked
        rank = (not enough, given_up if enough else -freed, -later * number)
        if best_rank is None or rank < best_rank:
            best, best_rank = number, rank
    return best


def _own(table: list[int], ref_counts: dict[int, int]) -> int:
    return sum(ref_counts[block] == 1 for block in table)


def _lost(table: list[int], computed: int, ref_counts: dict[int, int], block_size: int) -> int:
    """Return its tokens behind the leading shared blocks; tokens in shared blocks can be found again."""
    shared = 0
    while shared < len(table) and ref_counts[table[shared]] > 1:
        shared += 1
    return max(0, computed - shared * block_size)


def _all_lost(table, computed, ref_counts, block_size):
    return computed


def victim_oldest(tables, computed, ref_counts, asker, asked, free, block_size):
    others = [number for number in range(len(tables)) if number != asker]
    return others[0]


def victim_youngest(tables, computed, ref_counts, asker, asked, free, block_size):
    return len(tables) - 1 if asker < len(tables) - 1 else None


def victim_among_all(tables, computed, ref_counts, asker, asked, free, block_size):
    others = [number for number in range(len(tables)) if number != asker]
    return _choose(tables, computed, ref_counts, others, asked, free, block_size)


def victim_itself(tables, computed, ref_counts, asker, asked, free, block_size):
    return _choose(tables, computed, ref_counts, range(asker, len(tables)), asked, free, block_size)


def victim_fewest_tokens(tables, computed, ref_counts, asker, asked, free, block_size):
    younger = range(asker + 1, len(tables))
    return _choose(tables, computed, ref_counts, younger, asked, free, block_size, lost=_all_lost)


def victim_shared_freed(tables, computed, ref_counts, asker, asked, free, block_size):
    """Counts every block of the table as freed, also the shared ones."""
    younger = range(asker + 1, len(tables))
    alone = dict.fromkeys(ref_counts, 1)
    lost = [_lost(*pair, ref_counts, block_size) for pair in zip(tables, computed, strict=True)]
    return _choose(tables, lost, alone, younger, asked, free, block_size, lost=_all_lost)


def victim_most_freed(tables, computed, ref_counts, asker, asked, free, block_size):
    younger = range(asker + 1, len(tables))
    return max(younger, key=lambda number: (_own(tables[number], ref_counts), number), default=None)


def victim_without_free(tables, computed, ref_counts, asker, asked, free, block_size):
    return cheapest_victim(tables, computed, ref_counts, asker, asked, 0, block_size)


def victim_or_none(tables, computed, ref_counts, asker, asked, free, block_size):
    found = cheapest_victim(tables, computed, ref_counts, asker, asked, free, block_size)
    enough = found is not None and free + _own(tables[found], ref_counts) >= asked
    return found if enough else None


def victim_enough_or_not(tables, computed, ref_counts, asker, asked, free, block_size):
    """Takes the sequence that loses the fewest tokens, even if that frees too few blocks and another frees enough."""
    return cheapest_victim(tables, computed, ref_counts, asker, 0, free, block_size)


def victim_fewest_if_none_is_enough(tables, computed, ref_counts, asker, asked, free, block_size):
    found = cheapest_victim(tables, computed, ref_counts, asker, asked, free, block_size)
    enough = found is not None and free + _own(tables[found], ref_counts) >= asked
    return found if enough else cheapest_victim(tables, computed, ref_counts, asker, 0, free, block_size)


def victim_older_of_equals(tables, computed, ref_counts, asker, asked, free, block_size):
    younger = range(asker + 1, len(tables))
    return _choose(tables, computed, ref_counts, younger, asked, free, block_size, later=-1)


def draw_running(rng) -> list[dict]:
    """Draw sequences, some with a shared prefix; sometimes none frees enough, sometimes two are equal."""
    cases = []
    for i in range(72):
        size, count = (2, 4, 8, 16)[i % 4], 3 + i // 18
        blocks = iter(rng.sample(range(90), 80))
        prefix = [next(blocks) for _ in range(rng.randint(2, 4))]
        tables, computed = [], []
        for _ in range(count):
            shares = rng.random() < 0.6
            tail = rng.randint(1, 4)
            table = [*(prefix if shares else ()), *(next(blocks) for _ in range(tail))]
            tables.append(table)
            computed.append(len(table) * size - rng.choice([0, 0, 1, size - 1]))
        if i % 3 == 2:  # the last two are alike, in blocks of their own
            tables[-1] = [next(blocks) for _ in tables[-2]]
            tables[-2] = [next(blocks) for _ in tables[-2]]
            computed[-1] = computed[-2]
        # The last sequence has most tokens, nearly all of them in blocks that it shares with the first.
        if i % 3 == 1:
            tables[0][: len(prefix)] = prefix
            computed[0] = len(tables[0]) * size
            tables[-1], computed[-1] = [*prefix, next(blocks)], (len(prefix) + 1) * size
            tables[-2] = [next(blocks), next(blocks)]
            computed[-2] = 2 * size
        held = [block for table in tables for block in table]
        ref_counts = {block: held.count(block) for block in sorted(set(held))}
        asker = count - 1 if i % 12 == 7 else rng.choice([0, 0, 1, count - 2])
        free = rng.randint(0, 2)
        if i % 12 == 1:  # Any victim frees enough blocks, so the tokens lost decide.
            asker = 0
        most = max((_own(table, ref_counts) for table in tables[asker + 1 :]), default=1)
        asked = free + (most + 1 if i % 6 == 4 else 1 if i % 12 == 1 else rng.randint(1, most))
        case = {"tables": tables, "computed": computed, "ref_counts": ref_counts, "asker": asker}
        cases.append({**case, "asked": asked, "free": free, "block_size": size})
    return cases


CHEAPEST_VICTIM = Exercise(
    id="11b.1",
    minutes=10,
    name="cheapest_victim",
    signature=("tables", "computed", "ref_counts", "asker", "asked", "free", "block_size"),
    cases=draw_running,
    reference=cheapest_victim,
    misconceptions=(
        Misconception("oldest", victim_oldest),
        Misconception("youngest", victim_youngest),
        Misconception("older_too", victim_among_all),
        Misconception("itself", victim_itself),
        Misconception("fewest_tokens", victim_fewest_tokens),
        Misconception("shared_freed", victim_shared_freed),
        Misconception("most_freed", victim_most_freed),
        Misconception("free_forgotten", victim_without_free),
        Misconception("enough_or_not", victim_enough_or_not),
        Misconception("gives_up", victim_or_none),
        Misconception(
            "fewest_if_none", victim_fewest_if_none_is_enough, within=("youngest", "enough_or_not")
        ),
        Misconception("older_of_equals", victim_older_of_equals),
    ),
)
