"""Exercise 18.2: admission without preemption, which counts every sequence at its longest."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception

Sequences = list[dict]
"""For each: ``stored``, the most tokens that it will ever have in the cache, and ``blocks``, the blocks that it has."""


def enter(running: Sequences, waiting: Sequences, num_blocks: int, block_size: int, seats: int) -> int:
    return _enter(running, waiting, num_blocks, block_size, seats)


def _to_come(sequence: dict, block_size: int) -> int:
    return -(-sequence["stored"] // block_size) - len(sequence["blocks"])


def _worst(sequences: Sequences, block_size: int) -> int:
    """Return the blocks at the worst moment: the present ones, each once, and those still to come."""
    there = {block for sequence in sequences for block in sequence["blocks"]}
    return len(there) + sum(_to_come(sequence, block_size) for sequence in sequences)


def _enter(
    running, waiting, num_blocks, block_size, seats, *, worst=_worst, seated=True, passing=False, below=False
):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    inside, entered = list(running), 0
    for sequence in waiting:
        if seated and len(inside) >= seats:
            break
        need = worst([*inside, sequence], block_size) + below
        if need <= num_blocks:
            inside.append(sequence)
            entered += 1
        elif not passing:
            break
    return entered


def _shared_each_time(sequences, block_size):
    return sum(-(-sequence["stored"] // block_size) for sequence in sequences)


def _one_token_more(sequences, block_size):
    return _worst([each | {"stored": each["stored"] + 1} for each in sequences], block_size)


def _rounded_down(sequences, block_size):
    there = {block for sequence in sequences for block in sequence["blocks"]}
    return len(there) + sum(each["stored"] // block_size - len(each["blocks"]) for each in sequences)


def _together(sequences, block_size):
    """Rounds the sum of all tokens once, as if two sequences could share a last block."""
    shared = sum(len(each["blocks"]) for each in sequences) - len(
        {block for each in sequences for block in each["blocks"]}
    )
    return -(-sum(each["stored"] for each in sequences) // block_size) - shared


def entered_for_now(running, waiting, num_blocks, block_size, seats):
    """Counts the present blocks and one for the next token, and ignores later growth."""

    def now(sequences, block_size):
        there = {block for sequence in sequences for block in sequence["blocks"]}
        return len(there) + sum(_to_come(sequence, block_size) > 0 for sequence in sequences)

    return _enter(running, waiting, num_blocks, block_size, seats, worst=now)


def entered_by_average(running, waiting, num_blocks, block_size, seats):
    """Divides the pool's blocks by those of an average request, a formula from a public issue."""
    all_of_them = [*running, *waiting]
    mean = sum(each["stored"] for each in all_of_them) // max(1, len(all_of_them))
    most = num_blocks // max(1, mean // block_size)
    return max(0, min(len(waiting), min(most, seats) - len(running)))


def entered_beside_running(running, waiting, num_blocks, block_size, seats):
    """Counts new sequences at their longest and running ones only as they are now."""
    there = {block for each in running for block in each["blocks"]}

    def worst(sequences, block_size):
        new = sequences[len(running) :]
        found = there | {block for each in new for block in each["blocks"]}
        return len(found) + sum(_to_come(each, block_size) for each in new)

    return _enter(running, waiting, num_blocks, block_size, seats, worst=worst)


def draw_moments(rng) -> list[dict]:
    """Draw states of a pool; some sequences share a prefix; room for exactly one more sequence, or a block off."""
    cases = []
    for i in range(60):
        size, ids = (4, 8, 16)[i % 3], iter(range(rng.randint(0, 9), 10_000))
        prefixes = [[next(ids) for _ in range(rng.randint(1, 4))] for _ in range(2)]
        running = [_draw(rng, size, ids, rng.choice([*prefixes, []]), grown=True) for _ in range(1 + i // 15)]
        held = {block for each in running for block in each["blocks"]}
        known = [prefix for prefix in prefixes if held >= set(prefix)]
        waiting = [_draw(rng, size, ids, rng.choice([*known, []]), grown=False) for _ in range(3 + i // 12)]
        if i % 4 == 1:  # a long sequence in front of shorter ones that would fit
            waiting[1]["stored"] += size * rng.randint(6, 10)
        stop = len(waiting) if i % 6 == 3 else rng.randint(1, len(waiting) - 1)
        num_blocks = _worst([*running, *waiting[:stop]], size) + rng.choice([0, 0, -1, 1]) * (i % 6 != 3)
        seats = len(running) + (stop - 1 if i % 5 == 2 else len(waiting) + rng.randint(0, 2))
        if i % 5 == 2:
            num_blocks = _worst([*running, *waiting], size) + 2
        num_blocks = max(num_blocks, _worst(running, size))
        case = {"running": running, "waiting": waiting, "num_blocks": num_blocks}
        cases.append({**case, "block_size": size, "seats": seats})
    return cases


def _draw(rng, size: int, ids, prefix: list[int], *, grown: bool) -> dict:
    """Draw a sequence that has its prefix and, if it runs, some blocks of its own."""
    own = [next(ids) for _ in range(rng.randint(1, 3))] if grown else []
    blocks = [*prefix, *own]
    more = rng.choice([0, 1, 2, 4]) if grown else rng.randint(2, 6)
    stored = size * (len(blocks) + more) - rng.choice([0, 1, size // 2, size - 1]) * (more > 0)
    return {"stored": stored, "blocks": blocks}


ENTER = Exercise(
    id="18.2",
    minutes=9,
    name="enter",
    signature=("running", "waiting", "num_blocks", "block_size", "seats"),
    cases=draw_moments,
    reference=enter,
    misconceptions=(
        Misconception("for_now", entered_for_now),
        Misconception("by_average", entered_by_average),
        Misconception("running_forgotten", entered_beside_running),
        Misconception("shared_each_time", partial(_enter, worst=_shared_each_time)),
        Misconception("one_token_more", partial(_enter, worst=_one_token_more)),
        Misconception("rounded_down", partial(_enter, worst=_rounded_down)),
        Misconception("together", partial(_enter, worst=_together), within=("passed",)),
        Misconception("passed", partial(_enter, passing=True)),
        Misconception("no_seats", partial(_enter, seated=False)),
        Misconception("last_block_kept", partial(_enter, below=True)),
    ),
)
