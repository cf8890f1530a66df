"""Exercises 08.3 and 08.4: the ledger of a start-up, and the blocks that fit beside the largest step."""

from minikv.course.exercise import Exercise, Misconception

# 08.3 ------------------------------------------------------------------------------------------------------

Events = list[tuple[str, int]]


def ledger(non_torch: int, events: Events) -> list[tuple[int, int, int]]:
    return _walk(non_torch, events)


def _walk(
    non_torch: int,
    events: Events,
    *,
    reuse: bool = True,
    free_returns: bool = False,
    empty_works: bool = True,
    empty_lowers_peak: bool = False,
    reset_to: str = "current",
) -> list[tuple[int, int, int]]:
    """Return the figures after each event; every keyword is one way to get it wrong."""
    current = peak = cached = 0
    lines = []
    for name, size in events:
        if name == "malloc":
            current += size
            peak = max(peak, current)
            cached -= min(size, cached) if reuse else 0
        elif name == "free":
            current -= size
            cached += 0 if free_returns else size
        elif name == "empty_cache":
            cached = 0 if empty_works else cached
            peak = current if empty_lowers_peak else peak
        elif name == "reset_peak":
            peak = {"current": current, "zero": 0, "never": peak}[reset_to]
        lines.append((non_torch + current + cached, peak, current))
    return lines


def ledger_free_returns(non_torch, events):
    return _walk(non_torch, events, free_returns=True)


def ledger_no_reuse(non_torch, events):
    return _walk(non_torch, events, reuse=False)


def ledger_empty_does_nothing(non_torch, events):
    return _walk(non_torch, events, empty_works=False)


def ledger_empty_lowers_peak(non_torch, events):
    return _walk(non_torch, events, empty_lowers_peak=True)


def ledger_reset_to_zero(non_torch, events):
    return _walk(non_torch, events, reset_to="zero")


def ledger_never_reset(non_torch, events):
    return _walk(non_torch, events, reset_to="never")


def ledger_without_non_torch(non_torch, events):
    return _walk(0, events)


def draw_ledgers(rng) -> list[dict]:
    """Draw starts with a loader's copy, a warm-up of several tensors, and now and then a second warm-up."""
    cases = []
    for i in range(40):
        copy, weights = rng.randint(3, 9), [rng.randint(4, 12) for _ in range(2 + i // 8)]
        events = [("malloc", copy), *(("malloc", size) for size in weights), ("free", copy)]
        events += [("empty_cache", 0)] * (i % 3 > 0) + [("reset_peak", 0)] * (i % 4 > 0)
        for _ in range(1 + i // 20):
            step = [rng.randint(2, 10) for _ in range(2 + i % 3)]
            events += [("malloc", step[0]), ("malloc", step[1]), ("free", step[0])]
            events += [("malloc", size) for size in step[2:]] + [("free", size) for size in step[1:]]
        events += [("empty_cache", 0)] * (i % 5 > 0)
        events.append(("malloc", rng.randint(5, 30)))
        cases.append({"non_torch": rng.randint(2, 6), "events": events})
    return cases


LEDGER = Exercise(
    id="08.3",
    minutes=9,
    name="ledger",
    signature=("non_torch", "events"),
    cases=draw_ledgers,
    reference=ledger,
    misconceptions=(
        Misconception("free_returns", ledger_free_returns),
        Misconception("no_reuse", ledger_no_reuse),
        Misconception("empty_does_nothing", ledger_empty_does_nothing),
        Misconception("empty_lowers_peak", ledger_empty_lowers_peak),
        Misconception("reset_to_zero", ledger_reset_to_zero),
        Misconception("never_reset", ledger_never_reset),
        Misconception("without_non_torch", ledger_without_non_torch),
    ),
)

# 08.4 ------------------------------------------------------------------------------------------------------


def blocks_with_room(free: int, keep: int, steps: list[int], token_bytes: int, block_bytes: int) -> int:
    return max(0, free - keep - max(steps) * token_bytes) // block_bytes


def room_none(free, keep, steps, token_bytes, block_bytes):
    return free // block_bytes


def room_no_activations(free, keep, steps, token_bytes, block_bytes):
    return max(0, free - keep) // block_bytes


def room_no_keep(free, keep, steps, token_bytes, block_bytes):
    return max(0, free - max(steps) * token_bytes) // block_bytes


def room_of_all_steps(free, keep, steps, token_bytes, block_bytes):
    return max(0, free - keep - sum(steps) * token_bytes) // block_bytes


def room_of_the_first(free, keep, steps, token_bytes, block_bytes):
    return max(0, free - keep - steps[0] * token_bytes) // block_bytes


def room_of_the_mean(free, keep, steps, token_bytes, block_bytes):
    return max(0, free - keep - sum(steps) // len(steps) * token_bytes) // block_bytes


def room_rounded_up(free, keep, steps, token_bytes, block_bytes):
    return -(-max(0, free - keep - max(steps) * token_bytes) // block_bytes)


def room_negative(free, keep, steps, token_bytes, block_bytes):
    return (free - keep - max(steps) * token_bytes) // block_bytes


def draw_rooms(rng) -> list[dict]:
    """Draw memory for a whole number of blocks, a byte less, or a byte more; sometimes too little for one step."""
    cases = []
    for i in range(40):
        steps = [rng.randint(2, 9 + 20 * i) for _ in range(2 + i // 6)]
        token_bytes, block_bytes = rng.randint(2, 10 + 6 * i), rng.randint(20, 60 + 30 * i)
        keep = rng.randint(2, 40 + 50 * i)
        due = keep + max(steps) * token_bytes + rng.randint(2, 40) * block_bytes
        free = due + rng.choice([-1, 0, 1, rng.randint(2, 19)])
        if i % 8 == 7:
            free = keep + max(steps) * token_bytes - rng.randint(1, token_bytes + block_bytes)
            free = max(free, 1)
        case = {"free": free, "keep": keep, "steps": steps, "token_bytes": token_bytes}
        cases.append({**case, "block_bytes": block_bytes})
    return cases


ROOM = Exercise(
    id="08.4",
    minutes=4,
    name="blocks_with_room",
    signature=("free", "keep", "steps", "token_bytes", "block_bytes"),
    cases=draw_rooms,
    reference=blocks_with_room,
    misconceptions=(
        Misconception("all_free", room_none),
        Misconception("no_activations", room_no_activations),
        Misconception("no_keep", room_no_keep),
        Misconception("sum_of_steps", room_of_all_steps),
        Misconception("first_step", room_of_the_first),
        Misconception("mean_step", room_of_the_mean),
        Misconception("rounded_up", room_rounded_up),
        Misconception("negative", room_negative),
    ),
)
