"""The block counts that each printed figure of a log allows, and the wrong figure where no count fits all.

Two decimals of GiB, a count of tokens, a concurrency: each is an interval of block counts. Figures of one pool have a
count in common. Where they have none, one of them is left out at a time. If the others then agree, the figure left out
is wrong, and the others say what it should be.
"""

import math
from fractions import Fraction
from itertools import product
from typing import Any

from minikv.plan.logs.lines import LogFacts, Refusal
from minikv.plan.logs.setup import Setup
from minikv.plan.logs.vllm_pool import VllmPool, printed_interval
from minikv.units import gib

Reason = tuple[str, dict[str, Any]]  # a key of messages/vllm.toml, and its values
Interval = tuple[int, int]  # first and last, both included
EVERY_COUNT: Interval = (0, 2**62)

# Ranks of one engine differ by the memory of other processes. That is an unlikely reason for a pool under this
# share of the printed GiB.
LEAST_RANK_SHARE = 0.75


def fitting_blocks(
    pool: VllmPool, setup: Setup, facts: LogFacts, without: str = "", poorer: bool = False
) -> Interval | None:
    """The block counts, first and last, that agree with all printed figures; None where none does.

    ``without``: a figure that is left out: "gib", "tokens", "blocks" or "concurrency". ``poorer``: a rank that the log
    does not show may have less than the printed GiB.
    """
    if facts.refusal:
        return None if _refusal_misses(pool, setup, facts, facts.refusal) else EVERY_COUNT
    allowed = _allowed_blocks(pool, setup, facts, poorer)
    for ends in product(*(ways for figure, ways in allowed.items() if figure != without)):
        first = max((low for low, _ in ends), default=EVERY_COUNT[0])
        last = min((high for _, high in ends), default=EVERY_COUNT[1])
        if first <= last:
            return first, last
    return None


def contradiction(
    facts: LogFacts, ways: list[tuple[Setup, VllmPool]]
) -> tuple[Setup, VllmPool, tuple[Reason, ...]]:
    """The wrong figures, each with its value by the others, and the reading of the log that they are for.

    ``ways``: the readings of a log that fits none, the likeliest first.
    """
    if facts.refusal:
        missed = [(*way, _refusal_misses(way[1], way[0], facts, facts.refusal)) for way in ways]
        # A reading that gives the needed GiB to the digit comes first: then another figure is wrong.
        setup, pool, reason = min(missed, key=lambda way: way[2] is None or way[2][0] == "needed_differs")
        return setup, pool, () if reason is None else (reason,)
    for setup, pool in ways:
        allowed = _allowed_blocks(pool, setup, facts, poorer=True)
        missing = [name for name in allowed if fitting_blocks(pool, setup, facts, name, poorer=True)]
        if missing:
            break
    else:
        setup, pool = ways[0]
        allowed = _allowed_blocks(pool, setup, facts)
    if any(set(names) in ({"gib", "tokens"}, {"gib", "blocks"}) for names in (allowed, missing)):
        return setup, pool, (_differs(pool, setup, facts),)
    if len(missing) == 1:
        return setup, pool, (_misses(missing[0], pool, setup, facts),)
    lines = [_figure(name, allowed[name], setup, facts) for name in missing or allowed]
    return setup, pool, (("numbers_differ", {}), *lines)


def _allowed_blocks(
    pool: VllmPool, setup: Setup, facts: LogFacts, poorer: bool = False
) -> dict[str, list[Interval]]:
    """The block counts that each printed figure allows, one interval for each way of printing it in vLLM."""
    allowed: dict[str, list[Interval]] = {}
    if facts.available_bytes:
        low, high = facts.available_bytes
        if poorer and len(facts.available_gib) < setup.tp * setup.pp:
            low = math.ceil(LEAST_RANK_SHARE * low)
        allowed["gib"] = [(pool.num_blocks(low), pool.num_blocks(high))]
    if facts.tokens:
        allowed["tokens"] = [pool.blocks_that_print(min(facts.tokens), **setup.printing)]
    if facts.blocks:
        allowed["blocks"] = [(min(facts.blocks), min(facts.blocks))]
    if facts.concurrency is not None and setup.max_model_len is not None:
        # By whole blocks a request, or by tokens as in older versions.
        a_request = [Fraction(pool.blocks_per_request(setup.max_model_len, setup.batched_tokens))]
        if len(pool.groups) == 1 and pool.groups[0].block_size:
            a_request.append(Fraction(setup.max_model_len, pool.groups[0].block_size))
        printed, half = Fraction(facts.concurrency), Fraction(1, 200)
        allowed["concurrency"] = [
            (math.ceil((printed - half) * each), math.floor((printed + half) * each)) for each in a_request
        ]
    return allowed


def _misses(figure: str, pool: VllmPool, setup: Setup, facts: LogFacts) -> Reason:
    """The one figure that the others contradict, with its value by the others."""
    first, last = fitting_blocks(pool, setup, facts, figure, poorer=True) or EVERY_COUNT
    if figure == "gib":
        ends = gib(first * pool.block_bytes), gib((last + 1) * pool.block_bytes)
        return "gib_misses", {"printed": facts.poorest_gib, "due": _span("{:,.2f}", *ends)}
    if figure == "tokens":
        tokens = (pool.tokens_printed(blocks, **setup.printing) for blocks in (first, last))
        return "tokens_misses", {"printed": min(facts.tokens), "due": _span("{:,}", *tokens)}
    if figure == "blocks":
        return "blocks_misses", {"printed": min(facts.blocks), "due": _span("{:,}", first, last)}
    length = setup.max_model_len or 1
    due = (pool.concurrency(blocks, length, setup.batched_tokens) for blocks in (first, last))
    return "concurrency_misses", {
        "printed": facts.concurrency,
        "length": length,
        "due": _span("{:,.2f}", *due),
    }


def _differs(pool: VllmPool, setup: Setup, facts: LogFacts) -> Reason:
    """The difference of the GiB and the tokens of a log, where either of the two may be wrong."""
    low, high = facts.available_bytes or (0, 0)
    fewest, most = (pool.tokens_printed(pool.num_blocks(end), **setup.printing) for end in (low, high))
    if facts.tokens:
        printed = min(facts.tokens)
        blocks = pool.blocks_that_print(printed, **setup.printing)[0]
    else:
        blocks = min(facts.blocks)
        printed = pool.tokens_printed(blocks, **setup.printing)
    end = fewest if printed < fewest else most
    percent = 100 * (printed - end) / end if end else math.inf
    return "differs", {
        "needed": gib(blocks * pool.block_bytes),
        "gib": facts.poorest_gib,
        "percent": percent,
    }


def _figure(figure: str, ways: list[Interval], setup: Setup, facts: LogFacts) -> Reason:
    """One of several figures that contradict each other, and the block counts that it allows."""
    first, last = ways[0]
    printed = {
        "gib": facts.poorest_gib,
        "tokens": f"{min(facts.tokens, default=0):,}",
        "blocks": f"{min(facts.blocks, default=0):,}",
        "concurrency": facts.concurrency,
    }
    values = {"printed": printed[figure], "length": setup.max_model_len or 0}
    return f"figure_{figure}", values | {"blocks": _span("{:,}", first, last) if first <= last else "0"}


def _refusal_misses(pool: VllmPool, setup: Setup, facts: LogFacts, refusal: Refusal) -> Reason | None:
    """The wrong figure in the refusal of an engine that did not start; None where its figures agree.

    The refusal has the memory that one request needs, the available memory, and the longest request that would fit.
    """

    def needs(tokens: int) -> int:
        return pool.needed_bytes(tokens, setup.batched_tokens)

    low, high = printed_interval(refusal.needed_gib)
    needed = {"tokens": refusal.needed_tokens, "needed": gib(needs(refusal.needed_tokens))}
    if not low <= needs(refusal.needed_tokens) <= high:
        return "needed_differs", needed | {"printed": refusal.needed_gib}
    if facts.available_bytes is None:
        return None
    least, most = facts.available_bytes
    if least > high:
        return "available_misses", needed | {"gib": facts.poorest_gib}
    estimated = refusal.estimated_tokens
    if estimated and (needs(estimated) > most or needs(estimated + 1) <= least):
        fitting = (_longest(needs, num_bytes, refusal.needed_tokens) for num_bytes in (least, most))
        values = {"gib": facts.poorest_gib, "printed": estimated, "due": _span("{:,}", *fitting)}
        return "estimate_differs", values | {"needed": gib(needs(estimated))}
    return None


def _longest(needs, num_bytes: int, most: int) -> int:
    """The longest request, below ``most`` tokens, that needs at most ``num_bytes``; 0 where none does."""
    first, last = 0, most
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if needs(middle) <= num_bytes else (first, middle)
    return first


def _span(form: str, first: float, last: float) -> str:
    """Both ends of an interval, or one where they print the same."""
    ends = [form.format(end) for end in (first, last)]
    return ends[0] if ends[0] == ends[1] else "-".join(ends)
