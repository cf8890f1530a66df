"""Exercise 18.2 at work: the engine's scheduler with another admission rule, on the same load."""

from collections.abc import Callable, Sequence
from random import Random

from minikv.course.lessons.l11a.load import Ask, Ran, run_load
from minikv.course.lessons.l18.admission import Sequences
from minikv.engine import Rules, Scheduler

Rule = Callable[[Sequences, Sequences, int, int, int], int]


class AnyBlock(Rules):
    """Admits what fits now, and reserves nothing for running sequences."""

    def owed_blocks(self, scheduler: Scheduler, kv_cache_group: int) -> int:
        return 0


def door(rule: Rule) -> Rules:
    """Return rules that ask ``rule`` about the first waiting request."""

    class Asks(Rules):
        def owed_blocks(self, scheduler: Scheduler, kv_cache_group: int) -> int:
            """Return 0 to admit now, or any number above the free blocks to make the request wait."""
            if not scheduler.waiting:
                return 0
            manager, inside = scheduler.manager, [scheduler.sequence(each) for each in scheduler.running]
            first = scheduler.sequence(scheduler.waiting[0])
            running = [_told(each, manager.block_table(each.id, kv_cache_group)) for each in inside]
            hits = list(manager.match(first.tokens).tables[kv_cache_group])
            blocks = manager.pools[kv_cache_group].num_blocks
            entered = rule(running, [_told(first, hits)], blocks, manager.block_size, scheduler.max_num_seqs)
            return 0 if entered else blocks + 1

    return Asks()


def _told(sequence, blocks: list[int]) -> dict:
    return {"stored": sequence.num_prompt + sequence.params.max_tokens - 1, "blocks": list(blocks)}


def groups_load(seed: int = 18, number: int = 40) -> list[Ask]:
    """Return requests about four documents, some with short answers and some with long ones, all at the start."""
    rng = Random(seed)
    documents = [tuple(rng.randrange(100_000) for _ in range(64)) for _ in range(4)]
    return [
        Ask(
            rng.choice(documents) + tuple(rng.randrange(100_000) for _ in range(rng.randint(4, 60))),
            rng.choice([2, 8, rng.randint(40, 160)]),
        )
        for _ in range(number)
    ]


def compare_doors(
    rule: Rule, *, load: Sequence[Ask] | None = None, num_blocks: int = 60
) -> dict[str, Ran | None]:
    """Run the same load under three rules: ``rule`` ("yours"), the engine's own, and one that admits what fits now.

    None where ``rule`` is not written yet.
    """
    asks = groups_load() if load is None else load
    found: dict[str, Ran | None] = {
        "fits now": run_load(asks, num_blocks, rules=AnyBlock()),
        "engine": run_load(asks, num_blocks),
    }
    try:
        found["yours"] = run_load(asks, num_blocks, rules=door(rule))
    except NotImplementedError:
        found["yours"] = None
    return found
