"""Lessons 11a and 11b: runs requests through the scheduler without a forward: what runs in each step, at what cost.

The scheduler does not know whether a forward runs between ``schedule`` and ``finish``. So the lesson can follow a load
of any size in a second, step by step, and every figure is the scheduler's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from minikv.blocks import BlockManager
from minikv.engine import EventLog, Events, Rules, SamplingParams, Scheduler, Step, summary

NO_TOKEN = 0  # what every "forward" samples; its value does not matter


@dataclass(frozen=True)
class Ask:
    """A request: its prompt's token ids, the number of tokens to generate, and the step before which it arrives."""

    prompt: tuple[int, ...]
    new: int
    arrival: int = 0


@dataclass(frozen=True)
class Ran:
    """The result of a load. Counts are tokens; rows of ``chart``, ``parts`` and ``ends`` are requests, columns steps.

    - ``parts`` tokens of a request went through the forward of a step; ``ends`` tokens had their K and V in the cache.
    - ``computed`` tokens went through a forward; ``recomputed`` of them had been computed before.
    - ``given_up`` tokens lost their K and V by preemption; ``found`` tokens were in the prefix cache.
    - ``first`` and ``last`` are the steps, from 0, in which each request got its first and last token.
    """

    chart: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    num_blocks: int
    block_size: int
    tokens: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    computed: int
    recomputed: int
    generated: int
    preemptions: int
    given_up: int
    found: int
    hit_rate: float

    @property
    def steps(self) -> int:
        return len(self.tokens)

    @property
    def held(self) -> list[list[int]]:
        """The blocks that each request holds in each step; a block that two share counts for both."""
        return [[-(-end // self.block_size) for end in row] for row in self.ends]

    @property
    def tax(self) -> float:
        """The share of computed tokens that had been computed before: the recompute tax of vLLM #54644."""
        return self.recomputed / self.computed


def random_load(number: int, prompt: tuple[int, int], new: tuple[int, int], seed: int = 0) -> list[Ask]:
    """Draw ``number`` requests that share no prefix; lengths are drawn from the two ranges, both ends included."""
    rng = Random(seed)
    return [
        Ask(tuple(rng.randrange(100_000) for _ in range(rng.randint(*prompt))), rng.randint(*new))
        for _ in range(number)
    ]


def run_load(
    asks: Sequence[Ask],
    num_blocks: int,
    *,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_batched_tokens: int = 512,
    rules: Rules | None = None,
) -> Ran:
    """Run all requests to their end. ``rules``: the scheduler's, None for the engine's own."""
    log, clock = EventLog(), count()
    scheduler = Scheduler(
        BlockManager(num_blocks, block_size),
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        rules=rules,
        extensions=[Events(log)],
        clock=lambda: float(next(clock)),
    )
    book = _Book(len(asks), num_blocks, block_size)
    last_arrival = max((ask.arrival for ask in asks), default=0)
    while book.steps <= last_arrival or scheduler.has_work:
        for number, ask in enumerate(asks):
            if ask.arrival == book.steps:
                scheduler.add(number, ask.prompt, SamplingParams(max_tokens=ask.new))
        waiting = {seq_id.request for seq_id in scheduler.waiting}
        step = scheduler.schedule() if scheduler.has_work else None
        book.record(step, waiting, scheduler)
        if step is not None:
            scheduler.finish(step, [NO_TOKEN] * len(step.sampled))
    return book.ran(summary(log.events), log)


def run_batches(asks: Sequence[Ask], size: int, num_blocks: int, **options: Any) -> Ran:
    """Run static batches: the next ``size`` requests begin when the last one of the batch before has ended."""
    begun, parts = 0, []
    for first in range(0, len(asks), size):
        batch = [Ask(ask.prompt, ask.new) for ask in asks[first : first + size]]
        parts.append((begun, run_load(batch, num_blocks, **options)))
        begun += parts[-1][1].steps
    rows = [("." * start + row).ljust(begun) for start, part in parts for row in part.chart]

    def padded(start: int, row: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) * start + row + (0,) * (begun - start - len(row))

    computed = sum(part.computed for _, part in parts)
    found = sum(part.found for _, part in parts)
    return Ran(
        chart=tuple(rows),
        parts=tuple(padded(start, row) for start, part in parts for row in part.parts),
        ends=tuple(padded(start, row) for start, part in parts for row in part.ends),
        num_blocks=num_blocks,
        block_size=parts[0][1].block_size,
        tokens=tuple(tokens for _, part in parts for tokens in part.tokens),
        first=tuple(start + step for start, part in parts for step in part.first),
        last=tuple(start + step for start, part in parts for step in part.last),
        computed=computed,
        recomputed=sum(part.recomputed for _, part in parts),
        generated=sum(part.generated for _, part in parts),
        preemptions=sum(part.preemptions for _, part in parts),
        given_up=sum(part.given_up for _, part in parts),
        found=found,
        hit_rate=found / (found + computed) if found + computed else 0.0,
    )


class _Book:
    """Records what every step did to every request.

    A cell of the chart: "." waits, "#" computes more than one token, "o" one, "-" holds blocks and computes nothing,
    "x" has just lost its blocks, " " has not arrived or has ended.
    """

    def __init__(self, requests: int, num_blocks: int, block_size: int):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.rows: list[list[str]] = [[] for _ in range(requests)]
        self.parts: list[list[int]] = [[] for _ in range(requests)]
        self.ends: list[list[int]] = [[] for _ in range(requests)]
        self.tokens: list[int] = []
        self.reached = [0] * requests  # tokens of each request that have been computed at least once
        self.first: list[int] = [-1] * requests
        self.last = [-1] * requests
        self.recomputed = 0

    @property
    def steps(self) -> int:
        return len(self.tokens)

    def record(self, step: Step | None, waiting: set, scheduler: Scheduler) -> None:
        """Record what ``step`` computes and which requests wait; call it before ``finish``."""
        cells = dict.fromkeys(waiting, ".")
        cells |= {seq_id.request: "-" for seq_id in scheduler.running}
        computed: dict[int, tuple[int, int]] = {}
        for item in step.items if step else ():
            number = int(item.id.request)
            cells[number] = "#" if len(item.tokens) > 1 else "o"
            computed[number] = len(item.tokens), item.end
            self.recomputed += max(0, min(item.end, self.reached[number]) - item.start)
            self.reached[number] = max(self.reached[number], item.end)
            if item.samples:
                self.first[number] = self.steps if self.first[number] < 0 else self.first[number]
                self.last[number] = self.steps
        cells |= {seq_id.request: "x" for seq_id in (step.preempted if step else ())}
        for number, row in enumerate(self.rows):
            row.append(cells.get(number, " "))
            idle = 0, self.ends[number][-1] if row[-1] == "-" else 0
            part, end = computed.get(number, idle)
            self.parts[number].append(part)
            self.ends[number].append(end)
        self.tokens.append(step.num_tokens if step else 0)

    def ran(self, metrics: Any, log: EventLog) -> Ran:
        return Ran(
            chart=tuple("".join(row) for row in self.rows),
            parts=tuple(map(tuple, self.parts)),
            ends=tuple(map(tuple, self.ends)),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            tokens=tuple(self.tokens),
            first=tuple(self.first),
            last=tuple(self.last),
            computed=metrics.computed_tokens,
            recomputed=self.recomputed,
            generated=metrics.generated_tokens,
            preemptions=metrics.preemptions,
            given_up=metrics.lost_tokens,
            found=sum(event.tokens for event in log.of("hit")),
            hit_rate=metrics.hit_rate,
        )
