"""Exercise 11b.2: which running sequence nano's scheduler preempts."""

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.block_manager import BlockManager
from minikv.nano.scheduler import Scheduler
from minikv.nano.sequence import SamplingParams, Sequence

NO_TOKEN = 0  # what every "forward" samples


class NoVictimError(Exception):
    """Raised when the choice is no running sequence, or when ``running`` itself was changed."""


def victim_oldest(self):
    return self.running[0]


def victim_with_fewest_tokens(self):
    """Takes the sequence with the fewest tokens, of equals the one admitted last."""
    return min(reversed(self.running), key=lambda seq: len(seq.tokens))


def victim_with_most_tokens(self):
    return max(self.running, key=lambda seq: len(seq.tokens))


def victim_of_the_queue(self):
    return self.waiting[0] if self.waiting else None


def victim_taken_out(self):
    return self.running.pop()


def victim_by_place(self):
    return len(self.running) - 1


def preempt_to_the_end(fn, prompts, new, num_blocks, block_size):
    """Return every call of ``choose_victim`` until all requests end: running before, choice, running after."""
    calls = []

    def choose_victim(self):
        before = list(self.running)
        victim = fn(self)
        place = [i for i, seq in enumerate(before) if seq is victim]
        chosen = before[place[0]].id if place else type(victim).__name__
        ids = [seq.id for seq in before]
        calls.append({"running": ids, "victim": chosen, "afterwards": [seq.id for seq in self.running]})
        if not place or self.running != before:
            raise NoVictimError
        return victim

    rules = type("Scheduler", (Scheduler,), {"choose_victim": choose_victim})
    scheduler = rules(BlockManager(num_blocks, block_size), max_num_seqs=8, max_num_batched_tokens=64)
    first = 1
    for number, (length, count) in enumerate(zip(prompts, new, strict=True)):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        scheduler.waiting.append(Sequence(number, list(range(first, first + length)), length, params))
        first += length
    try:
        while scheduler.waiting or scheduler.running:
            step = scheduler.schedule()
            scheduler.finish(step, [NO_TOKEN] * len(step), frozenset())
    except NoVictimError:
        pass
    return calls


def draw_shortages(rng) -> list[dict]:
    """Draw loads that run out of blocks at least once; the youngest is neither always the longest nor the shortest."""
    cases: list[dict] = []
    while len(cases) < 40:
        size, count = rng.choice([2, 4]), 2 + len(cases) // 14
        prompts = [rng.randint(1, 4 * size) for _ in range(count)]
        new = [rng.randint(2, 3 * size) for _ in range(count)]
        largest = max(length + made for length, made in zip(prompts, new, strict=True))
        # Enough blocks to admit all of them.
        at_first = sum(-(-length // size) for length in prompts) + count - 1
        num_blocks = max(-(-largest // size), at_first)
        case = {"prompts": prompts, "new": new, "num_blocks": num_blocks, "block_size": size}
        if preempt_to_the_end(Scheduler.choose_victim, **case):
            cases.append(case)
    return cases


CHOOSE_VICTIM = Exercise(
    id="11b.2",
    minutes=3,
    name="choose_victim",
    signature=("prompts", "new", "num_blocks", "block_size"),
    cases=draw_shortages,
    reference=Scheduler.choose_victim,
    drive=preempt_to_the_end,
    misconceptions=(
        Misconception("oldest", victim_oldest),
        Misconception("fewest_tokens", victim_with_fewest_tokens),
        Misconception("most_tokens", victim_with_most_tokens),
        Misconception("from_queue", victim_of_the_queue),
        Misconception("taken_out", victim_taken_out),
        Misconception("place", victim_by_place),
    ),
)
