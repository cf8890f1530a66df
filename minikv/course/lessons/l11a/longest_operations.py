"""Exercise 11a.6: the three operations of a profile that take longest, and how far each is from its floor."""

from minikv.course.exercise import Exercise, Misconception

Call = tuple[str, int, int, int]  # name, microseconds, FLOPs, bytes
Found = tuple[str, bool, float]  # name, whether it is memory-bound, its time as a multiple of its floor

NAMES = ("mm", "softmax", "add", "mul", "copy", "silu")


def longest_operations(calls: list[Call], flops_per_us: int, bytes_per_us: int) -> list[Found]:
    totals = _totals(calls)
    longest = sorted(totals, key=lambda name: totals[name][0], reverse=True)[:3]
    found = []
    for name in longest:
        us, flops, num_bytes = totals[name]
        arithmetic, memory = flops / flops_per_us, num_bytes / bytes_per_us
        found.append((name, memory > arithmetic, us / max(arithmetic, memory)))
    return found


def _totals(calls: list[Call]) -> dict[str, tuple[int, int, int]]:
    """Return the microseconds, FLOPs and bytes of all calls of each name."""
    totals: dict[str, tuple[int, int, int]] = {}
    for name, us, flops, num_bytes in calls:
        old = totals.get(name, (0, 0, 0))
        totals[name] = (old[0] + us, old[1] + flops, old[2] + num_bytes)
    return totals


def calls_not_summed(calls, flops_per_us, bytes_per_us):
    numbered = [(f"{place} {name}", *rest) for place, (name, *rest) in enumerate(calls)]
    found = longest_operations(numbered, flops_per_us, bytes_per_us)
    return [(name.split()[1], *rest) for name, *rest in found]


def ranked_by_the_mean(calls, flops_per_us, bytes_per_us):
    """Ranks by the mean of the calls, so a long operation that runs once comes before a short one that runs often."""
    totals = _totals(calls)
    count = {name: sum(call[0] == name for call in calls) for name in totals}
    ranked = sorted(totals, key=lambda name: totals[name][0] / count[name], reverse=True)[:3]
    of_each = [
        longest_operations([call for call in calls if call[0] == name], flops_per_us, bytes_per_us)
        for name in ranked
    ]
    return [found for [found] in of_each]


def shortest_first(calls, flops_per_us, bytes_per_us):
    return longest_operations(calls, flops_per_us, bytes_per_us)[::-1]


def bound_swapped(calls, flops_per_us, bytes_per_us):
    found = longest_operations(calls, flops_per_us, bytes_per_us)
    return [(name, not memory_bound, times) for name, memory_bound, times in found]


def ridge_ignored(calls, flops_per_us, bytes_per_us):
    """Compares FLOPs with bytes, as if the machine did one FLOP for each byte."""
    totals = _totals(calls)
    found = longest_operations(calls, flops_per_us, bytes_per_us)
    return [(name, totals[name][2] > totals[name][1], times) for name, _, times in found]


def _with_floor(floor):
    """Divide by ``floor(arithmetic, memory)``; the names and the bounds are right."""

    def wrong(calls, flops_per_us, bytes_per_us):
        totals, found = _totals(calls), []
        for name, memory_bound, _ in longest_operations(calls, flops_per_us, bytes_per_us):
            us, flops, num_bytes = totals[name]
            found.append((name, memory_bound, us / floor(flops / flops_per_us, num_bytes / bytes_per_us)))
        return found

    return wrong


def upside_down(calls, flops_per_us, bytes_per_us):
    found = longest_operations(calls, flops_per_us, bytes_per_us)
    return [(name, memory_bound, 1 / times) for name, memory_bound, times in found]


def floor_of_one_call(calls, flops_per_us, bytes_per_us):
    """Divides the time of all calls by the floor of the last one."""
    last = {call[0]: call for call in calls}
    found = []
    for name, memory_bound, _ in longest_operations(calls, flops_per_us, bytes_per_us):
        floor = max(last[name][2] / flops_per_us, last[name][3] / bytes_per_us)
        found.append((name, memory_bound, _totals(calls)[name][0] / floor))
    return found


def draw_profiles(rng) -> list[dict]:
    """Draw profiles of three operations and more; the one that runs most often is short in each single call."""
    cases: list[dict] = []
    while len(cases) < 40:
        names = rng.sample(NAMES, min(len(NAMES), 3 + len(cases) // 10))
        bytes_per_us, ridge = 1000 * rng.randint(8, 20), rng.choice([3, 4, 5])
        calls = []
        for place, name in enumerate(names):
            intensity = (2, ridge - 1, ridge + 1, 2 * ridge)[(place + len(cases)) % 4]
            for _ in range(3 + len(cases) // 10 if place == 0 else rng.choice([1, 1, 2])):
                moved_us = rng.randint(1, 9) if place == 0 else rng.randint(4, 12)
                num_bytes = bytes_per_us * moved_us
                least = moved_us * max(1, intensity / ridge)
                us = round(least * rng.uniform(1.2, 4)) + 1
                calls.append((name, us, num_bytes * intensity, num_bytes))
        rng.shuffle(calls)
        totals = [us for us, _, _ in _totals(calls).values()]
        if len(set(totals)) == len(totals):  # no two take equally long
            cases.append({"calls": calls, "flops_per_us": bytes_per_us * ridge, "bytes_per_us": bytes_per_us})
    return cases


LONGEST = Exercise(
    id="11a.6",
    minutes=8,
    name="longest_operations",
    signature=("calls", "flops_per_us", "bytes_per_us"),
    cases=draw_profiles,
    reference=longest_operations,
    misconceptions=(
        Misconception("calls_not_summed", calls_not_summed),
        Misconception("ranked_by_the_mean", ranked_by_the_mean),
        Misconception("shortest_first", shortest_first),
        Misconception("bound_swapped", bound_swapped),
        Misconception("ridge_ignored", ridge_ignored),
        Misconception("floors_added", _with_floor(lambda arithmetic, memory: arithmetic + memory)),
        Misconception("memory_alone", _with_floor(lambda arithmetic, memory: memory)),
        Misconception("upside_down", upside_down),
        Misconception("floor_of_one_call", floor_of_one_call),
    ),
)
