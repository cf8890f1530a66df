"""Exercises 11a.4 and 11a.5: two methods of nano's scheduler, admission and a sequence's share of a step."""

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.block_manager import BlockManager
from minikv.nano.scheduler import Scheduler
from minikv.nano.sequence import SamplingParams, Sequence

# 11a.4 -----------------------------------------------------------------------------------------------------


def admitted_beside_nothing(self, seq):
    return self.blocks.allocate(seq)


def admitted_beside_one(self, seq):
    return self.blocks.allocate(seq, keep_free=1)


def admitted_beside_the_queue(self, seq):
    return self.blocks.allocate(seq, keep_free=len(self.waiting))


def admitted_beside_itself(self, seq):
    return self.blocks.allocate(seq, keep_free=len(self.running) + 1)


def admitted_without_hits(self, seq):
    """Counts cached blocks as if they had to be new."""
    if self.blocks.blocks_for(len(seq.tokens)) + len(self.running) > len(self.blocks.free_blocks):
        return False
    return self.blocks.allocate(seq, keep_free=len(self.running))


def admitted_in_any_case(self, seq):
    self.blocks.allocate(seq, keep_free=len(self.running))
    return True


def admit_one(fn, running, ended, waiting, num_blocks, block_size):
    """Return what ``admit`` answers for the first waiting sequence, and what it changed.

    The sequences in ``ended`` have left their blocks in the prefix cache.
    """
    scheduler = _scheduler("admit", fn, num_blocks, block_size, budget=64)
    manager = scheduler.blocks
    for tokens in ended:
        seq = _sequence(-1, tokens)
        manager.allocate(seq)
        manager.publish(seq, len(tokens))
        manager.free(seq)
    for number, tokens in enumerate(running):
        seq = _sequence(number, tokens)
        manager.allocate(seq)
        manager.publish(seq, len(tokens))
        scheduler.running.append(seq)
    scheduler.waiting.extend(_sequence(len(running) + place, tokens) for place, tokens in enumerate(waiting))
    first = scheduler.waiting[0]
    answer = scheduler.admit(first)
    return {
        "admitted": answer,
        "block_table": first.block_table,
        "num_computed": first.num_computed,
        "free_blocks": len(manager.free_blocks),
        "running": [seq.id for seq in scheduler.running],
        "waiting": [seq.id for seq in scheduler.waiting],
    }


def draw_admissions(rng) -> list[dict]:
    """Draw queues: the first finds exactly enough blocks, one more, or too few; some prefixes are cached."""
    cases = []
    for i in range(48):
        size, count = (2, 4)[i % 2], 2 + i // 24
        fresh = iter(range(10, 5000))
        document = [next(fresh) for _ in range(size * rng.randint(1, 3))]
        running = [[next(fresh) for _ in range(rng.randint(1, 2 * size))] for _ in range(count)]
        hits = i % 3
        if hits == 2:  # a running sequence holds the prefix, so taking it needs no free block
            running[0] = [*document, next(fresh)]
        ended = [[*document, next(fresh)]] if hits == 1 else []
        tail = [next(fresh) for _ in range(rng.randint(1, 2 * size))]
        first = document + tail if hits else tail + document
        short = (0, -1, 1, -count, 1, 2, 1, -count - 1)[i // 3 % 8]
        queue = 2 + count if i // 3 % 8 == 2 else count
        waiting = [first, *([next(fresh)] for _ in range(queue - 1))]
        held = sum(-(-len(tokens) // size) for tokens in running)
        # A prefix that a running sequence holds needs no free block; a free prefix is taken from the free blocks.
        need = -(-len(first) // size) - (len(document) // size if hits == 2 else 0)
        num_blocks = max(held + need + count + short, held, 1 + (len(document) + 1) // size)
        case = {"running": running, "ended": ended, "waiting": waiting, "num_blocks": num_blocks}
        cases.append({**case, "block_size": size})
    return cases


ADMIT = Exercise(
    id="11a.4",
    minutes=3,
    name="admit",
    signature=("running", "ended", "waiting", "num_blocks", "block_size"),
    cases=draw_admissions,
    reference=Scheduler.admit,
    drive=admit_one,
    misconceptions=(
        Misconception("nothing_kept", admitted_beside_nothing),
        Misconception("one_kept", admitted_beside_one, within=("nothing_kept",)),
        Misconception("queue_counted", admitted_beside_the_queue),
        Misconception("one_too_many", admitted_beside_itself),
        Misconception("hits_forgotten", admitted_without_hits),
        Misconception("always", admitted_in_any_case),
    ),
)

# 11a.5 -----------------------------------------------------------------------------------------------------


def packed_beyond_the_budget(self, step, seq, budget):
    start, end = seq.num_computed, len(seq.tokens)
    step.append((seq, start, end))
    return end - start


def packed_up_to_the_budget(self, step, seq, budget):
    """Takes the budget for a position."""
    start = seq.num_computed
    end = max(start, min(len(seq.tokens), budget))
    step.append((seq, start, end))
    return end - start


def packed_last_token(self, step, seq, budget):
    step.append((seq, len(seq.tokens) - 1, len(seq.tokens)))
    return 1


def packed_with_inclusive_end(self, step, seq, budget):
    start = seq.num_computed
    end = min(len(seq.tokens), start + budget)
    step.append((seq, start, end - 1))
    return end - start


def packed_returning_end(self, step, seq, budget):
    start = seq.num_computed
    end = min(len(seq.tokens), start + budget)
    step.append((seq, start, end))
    return end


def packed_returning_the_rest(self, step, seq, budget):
    start = seq.num_computed
    end = min(len(seq.tokens), start + budget)
    step.append((seq, start, end))
    return budget - (end - start)


def packed_returning_nothing(self, step, seq, budget):
    start = seq.num_computed
    step.append((seq, start, min(len(seq.tokens), start + budget)))


def pack_in_turn(fn, lengths, computed, budget):
    """Pack the running sequences in turn, as ``schedule`` does; return the ranges and what each call returned."""
    scheduler = _scheduler("pack", fn, num_blocks=64, block_size=4, budget=budget)
    step: list = []
    returned = []
    seqs = [_sequence(number, range(length)) for number, length in enumerate(lengths)]
    for seq, start in zip(seqs, computed, strict=True):
        seq.num_computed = start
    for seq in seqs:
        if budget < 1:
            break
        returned.append(scheduler.pack(step, seq, budget))
        if not isinstance(returned[-1], int):
            break
        budget -= returned[-1]
    ranges = [(seq.id, start, end) for seq, start, end in step]
    return {"step": ranges, "returned": returned, "num_computed": [seq.num_computed for seq in seqs]}


def draw_shares(rng) -> list[dict]:
    """Draw decodes, whole prompts and later chunks; the budget ends within a prompt, between two, or not at all."""
    cases = []
    for i in range(48):
        lengths, computed = [], []
        for _ in range(2 + i // 16):
            done = rng.choice([0, 4, 16, rng.randint(1, 40)])
            missing = 1 if rng.random() < 0.4 and done else rng.randint(2, 30)
            lengths.append(done + missing)
            computed.append(done)
        due = sum(lengths) - sum(computed)
        budget = due + rng.randint(0, 9) if i % 4 == 0 else rng.randint(1, due)
        cases.append({"lengths": lengths, "computed": computed, "budget": budget})
    return cases


PACK = Exercise(
    id="11a.5",
    minutes=5,
    name="pack",
    signature=("lengths", "computed", "budget"),
    cases=draw_shares,
    reference=Scheduler.pack,
    drive=pack_in_turn,
    misconceptions=(
        Misconception("beyond_budget", packed_beyond_the_budget),
        Misconception("budget_is_end", packed_up_to_the_budget),
        Misconception("last_token", packed_last_token),
        Misconception("inclusive_end", packed_with_inclusive_end),
        Misconception("returns_end", packed_returning_end),
        Misconception("returns_rest", packed_returning_the_rest),
        Misconception("returns_nothing", packed_returning_nothing),
    ),
)


def _scheduler(method, fn, num_blocks, block_size, budget) -> Scheduler:
    """Return nano's scheduler with one method of the learner's."""
    rules = type("Scheduler", (Scheduler,), {method: fn})
    return rules(BlockManager(num_blocks, block_size), max_num_seqs=8, max_num_batched_tokens=budget)


def _sequence(number, tokens) -> Sequence:
    return Sequence(number, list(tokens), len(tokens), SamplingParams())
