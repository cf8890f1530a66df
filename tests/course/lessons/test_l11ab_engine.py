"""Lessons 11a and 11b and the engine: exercises decide as the scheduler does, loads count what was computed."""

import random

from minikv.blocks import BlockManager
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l11a.load import Ask, random_load, run_batches, run_load
from minikv.engine import Rules, SamplingParams, Scheduler
from minikv.engine.core.rules import cheapest_victim
from minikv.engine.core.sequence import new_request
from minikv.engine.core.step import Scheduled
from minikv.engine.core.step import pack as engine_pack

REFERENCES = {
    each.name: each.reference for number in ("11a", "11b") for each in find_lesson(number).exercises
}


def test_who_is_admitted_is_what_the_scheduler_decides():
    """Decodes go first in the same step, so what is free and owed is counted behind them."""
    rng = random.Random(0)
    compared = waited = 0
    for _ in range(150):
        size, seats = rng.choice([2, 4, 8]), rng.randint(3, 6)
        budget = rng.randint(seats, 40)
        manager = BlockManager(rng.randint(12, 40), size)
        scheduler = Scheduler(manager, max_num_seqs=seats, max_batched_tokens=budget)
        fresh = iter(range(1, 10_000))
        # One of them will be held, one idle
        seen = [[next(fresh) for _ in range(3 * size)] for _ in range(2)]
        for name, prompt in (("held", seen[0]), ("idle", seen[1])):
            scheduler.add(name, prompt, SamplingParams(max_tokens=rng.randint(2, 3 * size)))
            while not scheduler.request(name).sequences[0].num_output:
                step = scheduler.schedule()
                scheduler.finish(step, [0] * len(step.sampled))
            if name == "idle":
                scheduler.abort("idle")
        for number in range(rng.randint(2, 4)):
            known = rng.choice([None, None, *seen])
            prompt = (known or [])[: rng.randint(0, 3 * size)]
            prompt = prompt + [next(fresh) for _ in range(rng.randint(1, 2 * size))]
            if -(-(len(prompt) + 1) // size) > manager.pools[0].num_blocks:
                continue
            scheduler.add(number, prompt, SamplingParams(max_tokens=2))
            seen = [each for each in seen if each is not known]  # no two of the waiting share a block
        if not scheduler.has_work or not scheduler.running:
            continue
        pool, [running] = manager.pools[0], [scheduler.sequence(each) for each in scheduler.running]
        placed = len(running.tokens)
        held = len(manager.block_table(running.id))
        free = pool.num_free - (-(-placed // size) - held)
        owed = -(-(placed + 1) // size) - -(-placed // size)
        waiting = []
        for seq_id in scheduler.waiting:
            found = manager.match(scheduler.sequence(seq_id).tokens).tables[0]
            waiting.append((len(scheduler.sequence(seq_id).tokens), len(found), pool.count_free(found)))
        ours = REFERENCES["admit_queue"](waiting, seats - 1, budget - 1, free, owed, size)
        step = scheduler.schedule()
        if step.preempted or pool.stats().evictions:
            continue
        assert ours == [len(item.tokens) for item in step.items[1:]]
        compared, waited = compared + 1, waited + (len(ours) < len(waiting))
    assert compared > 50
    assert waited > 15


def test_the_chunks_are_the_schedulers():
    rng = random.Random(1)
    prefills = 0
    for _ in range(60):
        budget = rng.randint(6, 30)
        scheduler = Scheduler(BlockManager(400, 4), max_num_seqs=6, max_batched_tokens=budget)
        for number in range(6):
            tokens = [1000 * number + i for i in range(rng.randint(1, 60))]
            scheduler.add(number, tokens, SamplingParams(max_tokens=rng.randint(1, 12)))
        while scheduler.has_work:
            running = [scheduler.sequence(each) for each in scheduler.running]
            have, done = [len(seq.tokens) for seq in running], [seq.num_computed for seq in running]
            step = scheduler.schedule()
            got = {item.id: (item.start, item.end) for item in step.items}
            theirs = [got.get(seq.id, (seq.num_computed, seq.num_computed)) for seq in running]
            assert REFERENCES["chunks"](have, done, budget) == theirs
            prefills += sum(seq.missing > 1 for seq in running)
            scheduler.finish(step, [0] * len(step.sampled))
    assert prefills > 100


def test_the_victim_is_the_planners():
    rng = random.Random(2)
    for _ in range(100):
        size = rng.choice([2, 4])
        manager, sequences = BlockManager(60, size), []
        prefix = list(range(2 * size))
        for number in range(rng.randint(2, 6)):
            own = [100 * (number + 1) + i for i in range(rng.randint(1, 4 * size))]
            tokens = (prefix if rng.random() < 0.5 else []) + own
            [seq] = new_request(number, number, tokens, SamplingParams(), "", 0.0).sequences
            manager.allocate(seq.id, tokens)
            manager.commit(seq.id)
            seq.num_computed = seq.num_placed = len(tokens)
            sequences.append(seq)
        pool = manager.pools[0]
        tables = [manager.block_table(seq.id) for seq in sequences]
        counts = {block: pool.ref_count(block) for table in tables for block in table}
        asker, asked = rng.randrange(len(sequences)), pool.num_free + rng.randint(1, 5)
        computed = [seq.num_computed for seq in sequences]
        ours = REFERENCES["cheapest_victim"](tables, computed, counts, asker, asked, pool.num_free, size)
        theirs = cheapest_victim(manager, sequences[asker + 1 :], asked)
        assert (None if ours is None else sequences[ours]) is theirs


def test_the_arrays_are_the_engines():
    rng = random.Random(3)
    for _ in range(50):
        manager, items, have = BlockManager(80, rng.choice([2, 4, 8])), [], []
        for number in range(rng.randint(2, 5)):
            tokens = [100 * number + i for i in range(rng.randint(1, 30))]
            [seq] = new_request(number, number, tokens, SamplingParams(), "", 0.0).sequences
            end = rng.choice([len(tokens), rng.randint(1, len(tokens))])
            start = rng.randrange(end)
            manager.allocate(seq.id, tokens[:end])
            items.append(
                Scheduled(
                    seq.id, start, tuple(tokens[start:end]), False, (seq.id,) if end == len(tokens) else ()
                )
            )
            have.append(len(tokens))
        theirs = engine_pack(manager, items)
        tables = [manager.block_table(item.id) for item in items]
        starts, ends = [item.start for item in items], [item.end for item in items]
        ours = REFERENCES["batch_arrays"](tables, starts, ends, have, manager.block_size)
        assert ours["positions"] == theirs.positions.tolist()
        assert ours["slots"] == theirs.slot_mapping[0].tolist()
        assert ours["query_starts"] == theirs.query_starts.tolist()
        assert ours["lengths"] == theirs.lengths.tolist()
        last = (theirs.query_starts[1:] - 1).tolist()
        assert ours["sampled_rows"] == [row for row, item in zip(last, items, strict=True) if item.samples]


def test_a_load_without_preemption_computes_every_token_once():
    load = random_load(20, prompt=(5, 60), new=(2, 30), seed=4)
    ran = run_load(load, 1000, max_batched_tokens=64)
    due = sum(len(ask.prompt) + ask.new - 1 for ask in load)
    assert (ran.computed, ran.recomputed, ran.preemptions, ran.tax) == (due, 0, 0, 0.0)
    assert sum(ran.tokens) == due
    assert ran.generated == sum(ask.new for ask in load)
    assert all(
        first + ask.new - 1 <= last for first, last, ask in zip(ran.first, ran.last, load, strict=True)
    )


def test_in_a_small_pool_what_is_computed_again_is_what_was_given_up_and_not_found():
    for seed in range(4):
        load = random_load(20, prompt=(5, 60), new=(10, 40), seed=seed)
        ran = run_load(load, 14, max_batched_tokens=128)
        due = sum(len(ask.prompt) + ask.new - 1 for ask in load)
        assert ran.preemptions > 3
        assert ran.computed == due + ran.recomputed
        assert ran.recomputed == ran.given_up - ran.found
        assert sum(row.count("x") for row in ran.chart) == ran.preemptions


def test_static_batches_serve_one_batch_after_the_other():
    asks = [Ask(tuple(range(50 * i, 50 * i + 4)), new) for i, new in enumerate((3, 9, 2, 5, 7, 1))]
    static = run_batches(asks, 3, 64, max_num_seqs=3, max_batched_tokens=64)
    continuous = run_load(asks, 64, max_num_seqs=3, max_batched_tokens=64)
    assert static.steps == 9 + 7
    assert static.computed == continuous.computed
    assert continuous.steps < static.steps
    assert [row.find("#") for row in static.chart] == [0, 0, 0, 9, 9, 9]
    assert max(static.last[:3]) < min(static.first[3:])


def test_a_request_that_comes_later_stands_in_the_chart_from_then_on():
    late = Ask(tuple(range(100, 140)), 3, arrival=2)
    ran = run_load([Ask(tuple(range(8)), 9), late], 64, max_batched_tokens=64)
    assert ran.chart == ("#oooooooo", "  #oo    ")


def test_a_scheduler_with_rules_of_its_own_is_asked_for_every_victim():
    """It sees those who are younger, the oldest first; whom it names is preempted; and all requests end."""
    asked = []

    class Recording(Rules):
        def choose_victim(self, scheduler, candidates, blocks):
            running = scheduler.running_sequences
            [place] = [i for i, seq in enumerate(running) if seq is candidates[0]]
            assert candidates == running[place:]
            assert place > 0, "the oldest is never among them"
            assert [seq.order for seq in candidates] == sorted(seq.order for seq in candidates)
            assert blocks > min(pool.num_free for pool in scheduler.manager.pools)
            asked.append(candidates[-1].id.request)
            return candidates[-1]

    load = random_load(20, prompt=(5, 60), new=(10, 40), seed=3)
    ran = run_load(load, 14, max_batched_tokens=128, rules=Recording())
    lost = [row.count("x") for row in ran.chart]
    assert lost == [asked.count(number) for number in range(len(load))]
    assert sum(lost) == ran.preemptions > 3
    assert ran.generated == sum(ask.new for ask in load)
    assert ran.chart != run_load(load, 14, max_batched_tokens=128).chart


def test_where_nothing_is_owed_more_are_admitted_and_mostly_more_lose_their_blocks():
    class NothingOwed(Rules):
        def owed_blocks(self, scheduler, group):
            return 0

    ours, theirs = [], []
    for seed in range(6):
        load = random_load(30, prompt=(5, 60), new=(10, 40), seed=seed)
        for rans, rules in ((ours, Rules()), (theirs, NothingOwed())):
            rans.append(run_load(load, 20, rules=rules))
            assert rans[-1].generated == sum(ask.new for ask in load)
        admitted = [sum(row[0] == "#" for row in rans[-1].chart) for rans in (ours, theirs)]
        assert admitted[0] <= admitted[1]
    assert sum(ran.preemptions for ran in ours) < sum(ran.preemptions for ran in theirs)
