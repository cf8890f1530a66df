"""Exercise 17.1: blocks found by an LRU cache, at every capacity in one pass over the requests."""

from collections import OrderedDict
from functools import partial
from itertools import pairwise

from minikv.course.exercise import Exercise, Misconception

Requests = list[list[int]]


def lru_hits(requests: Requests, capacities: list[int]) -> list[int]:
    return _lru_hits(requests, capacities)


def _lru_hits(
    requests,
    capacities,
    *,
    beyond_miss=False,
    touch_first=False,
    touch_hits=True,
    backwards=False,
    newest_last=True,
    less=0,
    summed=True,
):
    """Walk one stack for all capacities. Each keyword argument, changed, gives one wrong answer."""
    stack: list[int] = []  # the most recently used block is at the front
    places: list[int] = []  # for each block of the request, the smallest capacity at which it is found
    for request in requests:
        if touch_first:
            _touch(stack, request)
        deepest = 0
        for block in request:
            place = stack.index(block) + 1 if block in stack else None
            if place is None:
                if beyond_miss:
                    continue
                break
            deepest = place if beyond_miss else max(deepest, place)
            places.append(deepest)
        touched = request if touch_hits else [block for block in request if block not in stack]
        _touch(stack, touched[::-1] if backwards else touched, newest_last)
    if not summed:
        edges = [0, *capacities]
        return [sum(low < place <= high for place in places) for low, high in pairwise(edges)]
    return [sum(place + less <= capacity for place in places) for capacity in capacities]


def _touch(stack: list[int], blocks: list[int], to_front: bool = True) -> None:
    for block in blocks:
        if block in stack:
            stack.remove(block)
        stack.insert(0 if to_front else len(stack), block)


def hits_by_age(requests, capacities):
    """Evicts first in, first out: a hit does not move a block."""
    return [_one_cache(requests, capacity, renew=False) for capacity in capacities]


def hits_of_the_first(requests, capacities):
    """Never evicts: blocks that come to a full cache are not stored."""
    found = []
    for capacity in capacities:
        cache: set[int] = set()
        hits = 0
        for request in requests:
            hits += _found(cache, request)
            for block in request:
                if len(cache) < capacity:
                    cache.add(block)
        found.append(hits)
    return found


def _one_cache(requests: Requests, capacity: int, *, renew: bool) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        hits += _found(cache, request)
        for block in request:
            if block in cache:
                if renew:
                    cache.move_to_end(block)
                continue
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def _found(cache, request: list[int]) -> int:
    """Return the leading blocks of the request that are in the cache, up to the first miss."""
    count = 0
    while count < len(request) and request[count] in cache:
        count += 1
    return count


def draw_requests(rng) -> list[dict]:
    """Draw prompts that share prefixes: sessions that grow and come back, capacities below and above what they need.

    A block's number stands for itself and all blocks before it, so it has only one predecessor.
    """
    cases = []
    for i in range(48):
        fresh = iter(range(1, 10_000))
        systems = [[next(fresh) for _ in range(rng.randint(1, 2))] for _ in range(2)]
        sessions = [[*rng.choice(systems)] for _ in range(2 + i // 12)]
        requests = []
        for _ in range(4 + i // 2):
            session = rng.choice(sessions)
            session += [next(fresh) for _ in range(rng.randint(0, 2))]
            requests.append(session[: rng.randint(max(1, len(session) - 2), len(session))])
        total = len({block for request in requests for block in request})
        capacities = sorted(rng.sample(range(1, total + 1), min(4, total)))
        cases.append({"requests": requests, "capacities": capacities})
    return cases


LRU = Exercise(
    id="17.1",
    minutes=8,
    name="lru_hits",
    signature=("requests", "capacities"),
    cases=draw_requests,
    reference=lru_hits,
    misconceptions=(
        Misconception("beyond_miss", partial(_lru_hits, beyond_miss=True)),
        Misconception("touched_first", partial(_lru_hits, touch_first=True)),
        Misconception("not_touched", hits_by_age),
        Misconception("backwards", partial(_lru_hits, backwards=True)),
        Misconception("newest_evicted", partial(_lru_hits, newest_last=False)),
        Misconception("never_evicted", hits_of_the_first),
        Misconception("one_too_few", partial(_lru_hits, less=1)),
        Misconception("not_summed", partial(_lru_hits, summed=False)),
    ),
)
