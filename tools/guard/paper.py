"""The guard's cases without a tensor: walks of a block manager, simulated fleets and the planner's objects."""

import random
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.engine import EventLog
from minikv.plan.preemption import TransferRates
from minikv.simulate import Assumptions, Fleet, Load, Replica, StepTime, hit_rates, simulate, sweep
from minikv.simulate.arrival import Arrival
from tools.guard import Case, refusal

STEPS = 2000
ARRAYS = ("admitted", "first_token", "finish", "replica", "cached_tokens", "host_tokens", "preemptions")
WALKS: dict[str, tuple[list[tuple[int, int | None]], int, int]] = {  # groups, block size, host blocks
    "plain": ([(24, None)], 4, 0),
    "one token a block": ([(40, None)], 1, 12),
    "window": ([(20, None), (12, 6)], 4, 10),
    "two windows": ([(16, 5), (14, 9)], 2, 0),
    "host": ([(18, None)], 4, 20),
}


def walk(kv_cache_groups: list[tuple[int, int | None]], size: int, host: int) -> list[Any]:
    """Random operations, each with its answer or its error, then the state; the same ones each time."""
    draw = random.Random(f"{kv_cache_groups} {size} {host}")
    pools = [KVCacheGroup(*group) for group in kv_cache_groups]
    manager = BlockManager(pools, size, host_blocks=HostBlocks(host, size, len(kv_cache_groups)))
    manager.keep_reclaimed(bool(host))
    names, lines = [f"s{number}" for number in range(7)], []
    stems = [[draw.randrange(50) for _ in range(3 * size)] for _ in range(3)]
    for number in range(STEPS):
        running = manager.sequences()
        new, seq = draw.choice(names), draw.choice(running if running and draw.random() < 0.9 else names)
        tokens = draw.choice(stems)[: draw.randrange(3 * size + 1)] + [
            draw.randrange(50) for _ in range(draw.randrange(9))
        ]
        group, count = draw.randrange(-1, len(kv_cache_groups) + 1), draw.randrange(-1, 5 * size)
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("match", (tokens, draw.choice(["", "salt"]))),
            ("allocate", (new, tokens, draw.choice(["", "", "salt"]))),
            ("allocate", (new, tokens)),
            ("fork", (seq, new)),
            ("append", (seq, draw.randrange(50))),
            ("append", (seq, draw.choice([True, "word", 2**70, 7]))),
            ("append_tokens", (seq, tokens)),
            ("append_tokens", (seq, [1, 2.5] if number % 9 == 0 else tokens[:2])),
            ("can_reserve_slots", ([seq],)),
            ("reserve_slot", (seq,)),
            ("fill_slot", (seq, draw.randrange(50))),
            ("fill_slot", (seq, 7)),
            ("commit", (seq,)),
            ("commit", (seq,)),
            ("commit", (seq, count)),
            ("truncate", (seq, count)),
            ("compact", (seq, count, max(group, 0))),
            ("compact", (seq, size + number % 5, 0)),
            ("drop_blocks", (seq, [draw.randrange(-1, 4) for _ in range(draw.randrange(3))])),
            ("plan_swap_out", (seq,)),
            ("plan_swap_in", (new,)),
            ("plan_save", ()),
            ("complete_transfers", (bool(number % 5),)),
            ("free", (seq,)),
            ("length", (seq, group)),
            ("block_table", (seq, group)),
            ("slot_mapping", (seq, 0, count)),
            ("num_evicted", (seq,)),
            ("host_blocks_of", (seq,)),
            ("reset_prefix_cache", ()),
        ]
        name, arguments = draw.choice(calls)
        if name in ("plan_save", "complete_transfers") and not host:
            continue
        lines.append([name, repr(arguments), answer(partial(getattr(manager, name), *arguments))])
        if number % 7 == 0:
            lines.append(state(manager))
            manager.check_invariants()
    return [*lines, state(manager), manager.text("en"), manager.text("zh"), repr(manager)]


def answer(call: Any) -> Any:
    """What ``call`` returns as text, or its error."""
    said: list[str] = []
    refused = refusal(lambda: said.append(repr(call())))
    return said[0] if said else refused


def state(manager: BlockManager) -> list[Any]:
    """Everything that can be seen of a manager."""
    pools = [asdict(pool.stats()) for pool in (*manager.pools, *manager.host_pools)]
    tables = [manager.block_tables(group).tolist() for group in range(len(manager.pools))]
    counts = [[len(table), *(block for block in chain(*table) if block >= 0)] for table in tables]
    slots = [manager.decode_slots(kv_cache_group=group).tolist() for group in range(len(manager.pools))]
    cached = [[content.block for content in pool.cached()] for pool in (*manager.pools, *manager.host_pools)]
    return [list(map(str, manager.sequences())), pools, counts, slots, cached, repr(manager.stats())]


def fleet_case(**options: Any) -> list[Any]:
    """A synthetic load on a fleet: the answers in both languages, and as data."""
    trace = Load(
        num_requests=60, rate=30.0, prompt_tokens=1500, output_tokens=40, turns=3, think_seconds=1.0, seed=4
    ).trace()
    fleet = Fleet.plan("llama-3.1-8b", "H200", **options)
    outcome = simulate(trace, fleet)
    answers = outcome.answers()
    arrays = {name: getattr(outcome, name).tolist() for name in ARRAYS}
    return [answers.text("en"), answers.text("zh"), repr(outcome), repr(fleet), *arrays.items()]


def sweep_case() -> list[Any]:
    trace = Load(num_requests=30, rate=20.0, prompt_tokens=900, output_tokens=20, seed=1).trace()
    fleet = partial(Fleet.plan, "llama-3.1-8b", "H200")
    rows = sweep(trace, fleet, block_size=[16, 64], replicas=[1, 2])
    return [
        line for row in rows for line in (row.settings, "" if row.answers is None else row.answers.text("en"))
    ]


def replica_case(how: str | None) -> list[Any]:
    """The events of one replica under pressure, on the clock of the roofline."""
    rates = {"swap": TransferRates(1e9, 1e9, 1e3), "recompute": TransferRates(1e3, 1e3, 1e9), None: None}[how]
    trace = Load(
        num_requests=12, rate=1000.0, prompt_tokens=24, output_tokens=30, spread=0.5, hash_block=4, seed=2
    ).trace()
    log, step_time = EventLog(), StepTime.of_model("Llama-3.1-8B", "H200", assumptions=Assumptions())
    manager = BlockManager(32, 4, host_blocks=HostBlocks(80 if how else 0, 4))
    replica = Replica(
        step_time, manager, (4 * 131072,), rates=rates, emit=log, max_num_seqs=6, max_batched_tokens=32
    )
    for index in range(len(trace)):
        replica.enqueue(Arrival(trace, index, 4))
        replica.step()
    while replica.step():
        pass
    return [asdict(event) for event in log.events]


def hit_rate_case() -> list[Any]:
    trace = Load(num_requests=80, rate=10.0, prompt_tokens=600, output_tokens=50, turns=4, seed=3).trace()
    return hit_rates(trace, [None, 20, 100, 1000])


CASES: dict[str, Case] = {
    **{f"blocks {name}": partial(walk, *options) for name, options in WALKS.items()},
    "simulate one": fleet_case,
    "simulate four": partial(fleet_case, replicas=4, router="prefix", block_size=64),
    "simulate host": partial(fleet_case, host_kv_bytes=2**36),
    "simulate sweep": sweep_case,
    "simulate hit rates": hit_rate_case,
    **{f"replica {how}": partial(replica_case, how) for how in (None, "swap", "recompute")},
}
