"""Exercises 11a.1 and 11a.2: which requests are admitted, and which tokens a step computes."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception

# 11a.1 -----------------------------------------------------------------------------------------------------

Waiting = list[tuple[int, int, int]]
"""For each waiting request: its tokens, its blocks in the prefix cache, and how many of those are free."""


def admit_queue(
    waiting: Waiting, seats: int, budget: int, free: int, owed: int, block_size: int
) -> list[int]:
    return _admit(waiting, seats, budget, free, owed, block_size)


def _admit(
    waiting,
    seats,
    budget,
    free,
    owed,
    block_size,
    *,
    passing=False,
    hits_needed=False,
    idle_free=False,
    whole_prompt=False,
    chunk_only=False,
    own_growth=0,
    growth=1,
    reserve=True,
    hits_computed=False,
):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    computed = []
    for tokens, hits, idle in waiting:
        if not seats or budget < 1:
            break
        left = tokens if hits_computed else tokens - hits * block_size
        chunk = min(left, budget)
        wanted = hits * block_size + chunk if chunk_only else tokens + own_growth
        found = 0 if hits_needed else hits
        need = _blocks(wanted, block_size) - found
        room = free - owed - (0 if idle_free else idle)
        if need > room or (whole_prompt and left > budget):
            if passing:
                continue
            break
        computed.append(chunk)
        seats, budget = seats - 1, budget - chunk
        if reserve:
            owed += _blocks(tokens + growth, block_size) - found
            free -= 0 if idle_free else idle
    return computed


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def admitted_without_owed(waiting, seats, budget, free, owed, block_size):
    return admit_queue(waiting, seats, budget, free, 0, block_size)


def admitted_without_seats(waiting, seats, budget, free, owed, block_size):
    return admit_queue(waiting, len(waiting), budget, free, owed, block_size)


def draw_queues(rng) -> list[dict]:
    """Draw queues in which seats, the budget or blocks stop one request; some smaller requests behind it would fit."""
    cases = []
    for i in range(60):
        size = (2, 4, 8, 16)[i % 4]
        waiting = []
        for _ in range(2 + i // 12):
            tokens = size * rng.randint(1, 4) + rng.choice([0, 0, 1, -1, size // 2])
            hits = rng.randint(0, (tokens - 1) // size) if rng.random() < 0.5 else 0
            waiting.append((tokens, hits, rng.randint(0, hits)))
        stop = rng.randint(1, len(waiting))
        if i % 10 == 4:  # fills whole blocks: it is admitted without a block for its next token
            waiting[stop - 1] = (size * rng.randint(1, 4), 0, 0)
        if i % 10 == 5:  # The blocks would be enough if the request's own hits were not among the free ones.
            hits = rng.randint(1, 3)
            waiting[stop - 1] = (size * (hits + rng.randint(0, 2)) + 1, hits, hits)
        needs = [_blocks(tokens + 1, size) - hits + idle for tokens, hits, idle in waiting]
        left = [tokens - hits * size for tokens, hits, _ in waiting]
        owed = 0 if i % 10 == 5 else rng.randint(0, 4)
        seats = stop - 1 if i % 5 == 1 else len(waiting) + rng.randint(0, 2)
        budget = sum(left) + 8
        if i % 5 == 2:  # The budget ends within the prompt of the last admitted request, or just behind it.
            budget = sum(left[:stop]) - rng.choice([0, 1, left[stop - 1] // 2, left[stop - 1] - 1])
        short = 1 if i % 10 in (4, 5) else rng.choice([0, 1, 2, 1 + needs[stop - 1] // 2])
        free = owed + sum(needs[:stop]) - short
        if i % 5 in (1, 2):
            free += sum(needs)
        elif i % 5 == 3:  # The blocks are enough for the tokens computed now, not for the rest of the prompt.
            budget = sum(left[: stop - 1]) + 1 + left[stop - 1] // 4
            free = owed + sum(needs[:stop]) - 2
        case = {"waiting": waiting, "seats": seats, "budget": max(0, budget), "free": max(owed, free)}
        cases.append({**case, "owed": owed, "block_size": size})
    return cases


ADMIT_QUEUE = Exercise(
    id="11a.1",
    minutes=8,
    name="admit_queue",
    signature=("waiting", "seats", "budget", "free", "owed", "block_size"),
    cases=draw_queues,
    reference=admit_queue,
    misconceptions=(
        Misconception("passed", partial(_admit, passing=True)),
        Misconception("owed_forgotten", admitted_without_owed),
        Misconception("seats_forgotten", admitted_without_seats),
        Misconception("hits_needed", partial(_admit, hits_needed=True)),
        Misconception("idle_counted_free", partial(_admit, idle_free=True)),
        Misconception("whole_prompt", partial(_admit, whole_prompt=True)),
        Misconception("chunk_only", partial(_admit, chunk_only=True), within=("same_blocks_twice",)),
        Misconception("room_for_next", partial(_admit, own_growth=1)),
        Misconception("no_next_token", partial(_admit, growth=0)),
        Misconception("same_blocks_twice", partial(_admit, reserve=False)),
        Misconception("hits_computed", partial(_admit, hits_computed=True)),
    ),
)

# 11a.2 -----------------------------------------------------------------------------------------------------


def chunks(tokens: list[int], computed: list[int], budget: int) -> list[tuple[int, int]]:
    missing = _missing(tokens, computed)
    ones = missing.count(1)
    ranges = []
    for start, count in zip(computed, missing, strict=True):
        ones -= count == 1
        taken = max(0, min(count, budget - ones))
        ranges.append((start, start + taken))
        budget -= taken
    return ranges


def _missing(tokens: list[int], computed: list[int]) -> list[int]:
    return [have - done for have, done in zip(tokens, computed, strict=True)]


def chunks_in_order(tokens, computed, budget):
    ranges = []
    for start, count in zip(computed, _missing(tokens, computed), strict=True):
        taken = min(count, budget)
        ranges.append((start, start + taken))
        budget -= taken
    return ranges


def chunks_relative(tokens, computed, budget):
    return [(0, end - start) for start, end in chunks(tokens, computed, budget)]


def chunks_budget_each(tokens, computed, budget):
    missing = _missing(tokens, computed)
    rest = budget - missing.count(1)
    taken = [count if count == 1 else min(count, rest) for count in missing]
    return [(start, start + count) for start, count in zip(computed, taken, strict=True)]


def chunks_paid_twice(tokens, computed, budget):
    """Takes the decodes off the budget first, and each of them again when it is served."""
    missing = _missing(tokens, computed)
    rest = budget - missing.count(1)
    ranges = []
    for start, count in zip(computed, missing, strict=True):
        taken = 1 if count == 1 else max(0, min(count, rest))
        ranges.append((start, start + taken))
        rest -= taken
    return ranges


def chunks_whole(tokens, computed, budget):
    missing = _missing(tokens, computed)
    rest = budget - missing.count(1)
    ranges = []
    for start, count in zip(computed, missing, strict=True):
        taken = count if count == 1 or count <= rest else 0
        ranges.append((start, start + taken))
        rest -= taken if count != 1 else 0
    return ranges


def chunks_youngest_first(tokens, computed, budget):
    return chunks(tokens[::-1], computed[::-1], budget)[::-1]


def chunks_decodes_only(tokens, computed, budget):
    """Stops every prefill while any sequence decodes."""
    missing = _missing(tokens, computed)
    if 1 not in missing:
        return chunks(tokens, computed, budget)
    return [(start, start + (count == 1)) for start, count in zip(computed, missing, strict=True)]


def draw_running(rng) -> list[dict]:
    """Draw decodes and prefills; the budget has a token for each, and ends at different places of a prefill."""
    cases = []
    for i in range(48):
        tokens, computed = [], []
        for _ in range(2 + i // 10):
            done = rng.choice([0, 16, 32, rng.randint(1, 60)])
            prefill = rng.random() < 0.5
            computed.append(done if prefill else rng.randint(1, 90))
            tokens.append(computed[-1] + (rng.choice([8, 16, 17, 31, rng.randint(2, 40)]) if prefill else 1))
        missing = _missing(tokens, computed)
        most = sum(missing)
        budget = min(most, len(tokens) + rng.randint(0, most)) if i % 6 else most + rng.randint(0, 9)
        cases.append({"tokens": tokens, "computed": computed, "budget": budget})
    return cases


CHUNKS = Exercise(
    id="11a.2",
    minutes=7,
    name="chunks",
    signature=("tokens", "computed", "budget"),
    cases=draw_running,
    reference=chunks,
    misconceptions=(
        Misconception("decode_starved", chunks_in_order),
        Misconception("relative", chunks_relative),
        Misconception("budget_each", chunks_budget_each),
        Misconception("paid_twice", chunks_paid_twice),
        Misconception("whole_or_nothing", chunks_whole),
        Misconception("youngest_first", chunks_youngest_first),
        Misconception("decodes_only", chunks_decodes_only),
    ),
)
