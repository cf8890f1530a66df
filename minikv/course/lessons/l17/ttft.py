"""Exercise 17.2: the time to the first token including the wait, and percentiles over all requests of a fleet."""

import math

import numpy as np

from minikv.course.exercise import Exercise, Misconception

Fleet = list[list[float]]
"""For each replica, its requests in the order of arrival: seconds."""

PERCENTS = (50, 90, 99)


def ttft_percentiles(arrivals: Fleet, prefills: Fleet) -> tuple[float, float, float]:
    return _percentiles([value for replica in _ttft(arrivals, prefills) for value in replica])


def _ttft(arrivals, prefills, *, idle=True, wait=True, prefill=True, since_arrival=True) -> Fleet:
    """Run one prompt at a time on each replica. Each keyword argument, changed, gives one wrong answer."""
    fleet = []
    for comes, lasts in zip(arrivals, prefills, strict=True):
        free, found = 0.0, []
        for arrival, seconds in zip(comes, lasts, strict=True):
            begin = max(free, arrival) if idle else free
            free = begin + seconds
            first = (
                seconds
                if not wait
                else free - (arrival if since_arrival else 0) - (0 if prefill else seconds)
            )
            found.append(first)
        fleet.append(found)
    return fleet


def _percentiles(seconds) -> tuple[float, float, float]:
    p50, p90, p99 = np.percentile(seconds, PERCENTS).tolist()
    return p50, p90, p99


def _with(**change):
    def wrong(arrivals, prefills):
        return _percentiles([value for replica in _ttft(arrivals, prefills, **change) for value in replica])

    return wrong


def percentiles_of_means(arrivals, prefills):
    return _percentiles([np.mean(replica) for replica in _ttft(arrivals, prefills)])


def means_of_percentiles(arrivals, prefills):
    each = [_percentiles(replica) for replica in _ttft(arrivals, prefills)]
    return tuple(float(np.mean(column)) for column in zip(*each, strict=True))


def worst_of_percentiles(arrivals, prefills):
    each = [_percentiles(replica) for replica in _ttft(arrivals, prefills)]
    return tuple(max(column) for column in zip(*each, strict=True))


def percentiles_unsorted(arrivals, prefills):
    """Takes percentiles in the order of arrival, without sorting."""
    return tuple(
        _at([value for replica in _ttft(arrivals, prefills) for value in replica], p) for p in PERCENTS
    )


def percentiles_rounded(arrivals, prefills):
    """Takes the lower neighbour instead of interpolating."""
    found = sorted(value for replica in _ttft(arrivals, prefills) for value in replica)
    return tuple(found[math.floor(p / 100 * (len(found) - 1))] for p in PERCENTS)


def one_queue(arrivals, prefills):
    """Puts the requests of all replicas in one queue."""
    pairs = zip(arrivals, prefills, strict=True)
    merged = sorted(request for comes, lasts in pairs for request in zip(comes, lasts, strict=True))
    [replica] = _ttft([[arrival for arrival, _ in merged]], [[seconds for _, seconds in merged]])
    return _percentiles(replica)


def _at(values: list[float], percent: float) -> float:
    place = percent / 100 * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def draw_fleets(rng) -> list[dict]:
    """Draw two replicas or more, unequally busy: one is idle at times, one has a queue that grows."""
    cases = []
    for i in range(40):
        arrivals, prefills = [], []
        for replica in range(2 + i // 14):
            busy = (0.4, 1.3, 0.8, 0.6)[(i + replica) % 4]
            now, comes, lasts = 0.0, [], []
            for _ in range(rng.randint(3, 4 + i // 3)):
                now = round(now + rng.expovariate(1.0), 2)
                comes.append(now)
                lasts.append(round(busy * rng.choice([0.4, 0.8, 1.0, 2.2]), 3))
            arrivals.append(comes)
            prefills.append(lasts)
        cases.append({"arrivals": arrivals, "prefills": prefills})
    return cases


TTFT = Exercise(
    id="17.2",
    minutes=9,
    name="ttft_percentiles",
    signature=("arrivals", "prefills"),
    cases=draw_fleets,
    reference=ttft_percentiles,
    misconceptions=(
        Misconception("no_wait", _with(wait=False)),
        Misconception("wait_alone", _with(prefill=False)),
        Misconception("never_idle", _with(idle=False)),
        Misconception("since_the_start", _with(since_arrival=False)),
        Misconception("of_means", percentiles_of_means),
        Misconception("mean_of_percentiles", means_of_percentiles),
        Misconception("worst_replica", worst_of_percentiles),
        Misconception("unsorted", percentiles_unsorted),
        Misconception("rounded", percentiles_rounded),
        Misconception("one_queue", one_queue),
    ),
)
