"""Exercise 11b.3: one step, from the prefix cache's lookup to the freed blocks, also when the forward fails."""

from collections.abc import Callable
from functools import partial

from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons.l11b.toy_pool import Shelf

Work = list[tuple[str, int, int]]
"""The work of a forward: of each sequence its name, the first position to compute, and the position after the last."""


class ForwardFailedError(RuntimeError):
    """Raised by a forward of the check."""


def run_step(shelf: Shelf, arrivals: dict[str, list[int]], forward: Callable[[Work], list[str]]) -> None:
    _step(shelf, arrivals, forward)


def _step(
    shelf,
    arrivals,
    forward,
    *,
    full_hit=False,
    last_token=False,
    find_first=False,
    publish_early=False,
    free_as_told=False,
    free_gone=True,
    publish_gone=True,
    free_failed=True,
    publish_failed=False,
    swallow=False,
):
    """Run the step. Each keyword argument, changed, gives one wrong answer."""
    size = shelf.block_size
    known = {name: shelf.find(tokens) for name, tokens in arrivals.items()} if find_first else {}
    work = []
    for name, tokens in arrivals.items():
        hits = known[name] if find_first else shelf.find(tokens)
        if not (full_hit or last_token):
            hits = hits[: (len(tokens) - 1) // size]  # at least one token is left to compute
        shelf.take(name, tokens, hits)
        start = len(hits) * size
        work.append((name, min(start, len(tokens) - 1) if last_token else start, len(tokens)))
        if publish_early:
            shelf.publish(name)
    try:
        gone = forward(work)
    except BaseException:
        for name in arrivals:
            if publish_failed:
                shelf.publish(name)
            if free_failed:
                shelf.free(name)
        if swallow:
            return
        raise
    if not publish_early:
        for name in arrivals:
            if publish_gone or name not in gone:
                shelf.publish(name)
    if free_gone:
        for name in gone if free_as_told else dict.fromkeys(gone):
            shelf.free(name)


def run_steps(fn: Callable, steps: list[dict], num_blocks: int, block_size: int) -> list[dict]:
    """Return, for each step, the work given to the forward, what attention read, and which sequences held blocks
    afterwards.

    Of a step: ``arrivals``; ``aborted``, which the forward returns; whether it ``fails``; and which are ``done`` after
    it.
    """
    shelf, seen = Shelf(num_blocks, block_size), []
    for step in steps:
        computed: list[tuple[str, int, int]] = []
        read: dict[str, list[int | None]] = {}
        failed = False

        def forward(work, step=step, computed=computed, read=read):
            computed += [tuple(item) for item in work]
            if step["fails"]:
                raise ForwardFailedError("out of memory")
            for item in work:
                shelf.write(*item)
            read |= {name: shelf.read(name, start) for name, start, _ in work}
            return list(step["aborted"])

        try:
            fn(shelf, {name: list(tokens) for name, tokens in step["arrivals"].items()}, forward)
        except ForwardFailedError:
            failed = True
        state = {"work": computed, "read": read, "failed": failed, "held": shelf.held}
        seen.append({**state, "free_blocks": shelf.num_free})
        for name in step["done"]:
            if name in shelf.held:
                shelf.free(name)
    return seen


def draw_lives(rng) -> list[dict]:
    """Draw cases about one thing each: a shared prefix, a full hit, a stale hit, an abort, a forward that fails."""
    cases = []
    for i in range(48):
        size = (2, 4, 8)[i % 3]
        fresh = iter(range(10, 5000))

        def words(count, fresh=fresh):
            return [next(fresh) for _ in range(count)]

        prefix = words(size * rng.randint(1, 2 + i // 24))
        tail = rng.choice([1, size - 1, size, size + 1])
        kind = i % 6
        if kind == 0:
            steps = _shared(prefix, words, tail)
        elif kind == 1:
            steps = _full_hit(prefix, words, tail)
        elif kind == 2:
            steps = _stale(prefix, words, size)
        elif kind == 3:
            steps = _aborted(prefix, words, tail, twice=False)
        elif kind == 4:
            steps = _aborted(prefix, words, tail, twice=True)
        else:
            steps = _failing(prefix, words, tail)
        num_blocks = _blocks_of(steps, size, most_at_once=kind == 2)
        cases.append({"steps": steps, "num_blocks": num_blocks, "block_size": size})
    return cases


def _made(arrivals, aborted=(), fails=False, done=()):
    return {"arrivals": arrivals, "aborted": list(aborted), "fails": fails, "done": list(done)}


def _shared(prefix, words, tail):
    first = {"A": prefix + words(tail), "B": prefix + words(tail)}
    return [_made(first, done="A"), _made({"C": prefix + words(tail)}, done="BC")]


def _full_hit(prefix, words, tail):
    return [
        _made({"A": prefix, "B": words(tail)}, done="A"),
        _made({"C": prefix, "D": prefix + words(tail)}, done="BCD"),
    ]


def _stale(prefix, words, size):
    """Build steps where B takes the blocks that still hold A's tokens, and C those of a later sequence."""
    ours, later = prefix + words(1), words(len(prefix) + size)
    return [
        _made({"A": ours, "X": later}, done="AX"),
        _made({"B": words(len(prefix) + size), "C": prefix + words(size)}, done="BC"),
    ]


def _aborted(prefix, words, tail, twice):
    first = {"A": prefix + words(tail), "B": words(tail), "C": words(tail + 1)}
    gone = ["A", "C", "A"] if twice else ["B"]
    return [_made(first, gone), _made({"D": prefix + words(tail)}, done="D")]


def _failing(prefix, words, tail):
    tokens, other = prefix + words(tail), words(tail)
    return [
        _made({"A": tokens, "B": other}, fails=True),
        _made({"C": tokens, "D": words(tail)}, ["D"], done="C"),
    ]


def _blocks_of(steps, size, most_at_once):
    """Return enough blocks for all arrivals together, or only as many as the fullest step needs."""
    needs = [sum(-(-len(tokens) // size) for tokens in step["arrivals"].values()) for step in steps]
    return max(needs) if most_at_once else sum(needs) + 1


STEP = Exercise(
    id="11b.3",
    minutes=10,
    name="run_step",
    signature=("steps", "num_blocks", "block_size"),
    cases=draw_lives,
    reference=run_step,
    drive=run_steps,
    misconceptions=(
        Misconception("full_hit", partial(_step, full_hit=True)),
        Misconception("last_token", partial(_step, last_token=True)),
        Misconception("stale_hits", partial(_step, find_first=True)),
        Misconception("published_early", partial(_step, publish_early=True)),
        Misconception("freed_twice", partial(_step, free_as_told=True)),
        Misconception("abort_leaks", partial(_step, free_gone=False)),
        Misconception("gone_unpublished", partial(_step, publish_gone=False)),
        Misconception("error_leaks", partial(_step, free_failed=False)),
        Misconception("error_published", partial(_step, publish_failed=True), within=("published_early",)),
        Misconception("error_swallowed", partial(_step, swallow=True)),
    ),
)
