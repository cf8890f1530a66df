"""Exercise 18.3: a lower bound in seconds for every plan, from the least work and the arrival times."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception

Requests = list[dict]
"""For each: ``arrival`` in seconds, ``group``, ``prefix`` tokens that the group shares, ``prompt`` tokens (with the
prefix) and ``new`` tokens to generate.
"""


def floor_seconds(requests: Requests, weights: float, token: float, overhead: float, drafts: int) -> float:
    return _floor(requests, weights, token, overhead, drafts)


def _tokens(requests: Requests, since: float, last: int = 1) -> int:
    """Return the fewest tokens that must be computed for requests that arrive from ``since`` on."""
    known = {each["group"] for each in requests if each["arrival"] < since}
    total = 0
    for each in requests:
        if each["arrival"] >= since:
            total += each["prompt"] + each["new"] - last
            total -= each["prefix"] if each["group"] in known else 0
            known.add(each["group"])
    return total


def _steps(request: dict, drafts: int) -> int:
    """Return the steps: the prompt's last step brings one token, each later step at most 1 + ``drafts``."""
    return 1 + -(-(request["new"] - 1) // (1 + drafts))


def _floor(
    requests, weights, token, overhead, drafts, *, tokens=_tokens, steps=_steps, longer=max, fixed=True
):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    bounds = []
    for each in requests:
        count = steps(each, drafts)
        seconds = longer(count * weights, tokens(requests, each["arrival"]) * token)
        bounds.append(each["arrival"] + seconds + fixed * count * overhead)
    return max(bounds)


def _prefix_each_time(requests, since):
    return sum(each["prompt"] + each["new"] - 1 for each in requests if each["arrival"] >= since)


def _prefix_never(requests, since):
    return sum(
        each["prompt"] - each["prefix"] + each["new"] - 1 for each in requests if each["arrival"] >= since
    )


def _known_later(requests, since):
    """Forgets earlier requests: each moment begins with an empty cache."""
    return _tokens([each for each in requests if each["arrival"] >= since], since)


def floor_without_arrivals(requests, weights, token, overhead, drafts):
    """Counts all work as if every request had arrived at the start."""
    return _floor([each | {"arrival": 0.0} for each in requests], weights, token, overhead, drafts)


def floor_after_the_last(requests, weights, token, overhead, drafts):
    """Counts all work after the last arrival, as if none could be done before."""
    latest = max(each["arrival"] for each in requests)
    return _floor([each | {"arrival": latest} for each in requests], weights, token, overhead, drafts)


def floor_alone(requests, weights, token, overhead, drafts):
    """Counts each request by itself, as if it had the machine alone."""
    return max(_floor([each], weights, token, overhead, drafts) for each in requests)


def floor_one_by_one(requests, weights, token, overhead, drafts):
    """Adds up the steps of all requests, though one step serves many."""
    bounds = []
    for each in requests:
        count = sum(_steps(other, drafts) for other in requests if other["arrival"] >= each["arrival"])
        work = _tokens(requests, each["arrival"]) * token
        bounds.append(each["arrival"] + max(count * weights, work) + count * overhead)
    return max(bounds)


def draw_loads(rng) -> list[dict]:
    """Draw loads bound by steps, arithmetic or arrivals; groups share prefixes, some of them before a moment."""
    cases = []
    for i in range(54):
        clock = {"weights": rng.choice([0.01, 0.02]), "token": rng.choice([0.0001, 0.0005, 0.001])}
        clock |= {"overhead": rng.choice([0.002, 0.005]), "drafts": (0, 0, 3)[i % 3]}
        prefixes = [8 * rng.randint(2, 12) for _ in range(rng.randint(1, 3))]
        requests, now = [], 0.0
        for _ in range(2 + i // 5):
            now += (0.0, rng.choice([0.0, 0.05]), rng.choice([0.0, 0.3, 2.0]))[i // 3 % 3]
            group = rng.randrange(len(prefixes))
            new = rng.choice([1, 1, 4, rng.randint(2, 40), rng.randint(60, 200) if i % 4 == 0 else 9])
            request = {"arrival": round(now, 2), "group": group, "prefix": prefixes[group]}
            requests.append(request | {"prompt": prefixes[group] + rng.randint(1, 60), "new": new})
        cases.append({"requests": requests, **clock})
    return cases


FLOOR = Exercise(
    id="18.3",
    minutes=10,
    name="floor_seconds",
    signature=("requests", "weights", "token", "overhead", "drafts"),
    cases=draw_loads,
    reference=floor_seconds,
    misconceptions=(
        Misconception("added", partial(_floor, longer=lambda steps, work: steps + work)),
        Misconception("no_overhead", partial(_floor, fixed=False)),
        Misconception("no_arrivals", floor_without_arrivals),
        Misconception("after_the_last", floor_after_the_last),
        Misconception("alone", floor_alone),
        Misconception("one_by_one", floor_one_by_one),
        Misconception("prefix_each_time", partial(_floor, tokens=_prefix_each_time)),
        Misconception("prefix_never", partial(_floor, tokens=_prefix_never)),
        Misconception("cache_forgotten", partial(_floor, tokens=_known_later)),
        Misconception(
            "last_token", partial(_floor, tokens=lambda requests, since: _tokens(requests, since, last=0))
        ),
        Misconception("no_drafts", partial(_floor, steps=lambda request, drafts: request["new"])),
        Misconception(
            "drafts_at_once", partial(_floor, steps=lambda r, drafts: -(-r["new"] // (1 + drafts)))
        ),
    ),
)
