"""Rules: two decisions of a scheduler that may be taken otherwise, and what they rest on: blocks needed and held."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from minikv.blocks import NULL_BLOCK, BlockManager
from minikv.engine.core.sequence import Sequence
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import RequestTooLargeError

if TYPE_CHECKING:
    from minikv.engine.core.scheduler import Scheduler


class Rules:
    """Which sequence is preempted, and how many free blocks admission leaves alone. A subclass decides otherwise:

    Scheduler(manager, rules=MyRules())
    """

    def choose_victim(
        self, scheduler: "Scheduler", candidates: list[Sequence], asked: int
    ) -> Sequence | None:
        """Which of ``candidates`` to preempt, so that ``asked`` blocks get free in every KV cache group.

        The candidates are all sequences that are younger than the one that lacks blocks, at least one, the oldest
        first. If the victim frees too few, the others are asked for again. None: the sequence that lacks blocks waits.
        The oldest must not be left to wait, or no request would ever end.
        """
        return cheapest_victim(scheduler.manager, candidates, asked)

    def owed_blocks(self, scheduler: "Scheduler", kv_cache_group: int) -> int:
        """Blocks of one group that the running sequences still need; admission does not use them."""
        return outstanding_blocks(scheduler, kv_cache_group)


def peak_blocks(num_tokens: int, window: int | None, block_size: int) -> int:
    """The most blocks of one group that a sequence holds at once on its way to ``num_tokens`` cached tokens.

    Without a window ceil(tokens / block). With one of w tokens never more than 1 + ceil((w - 1) / block): the query at
    the first position of a block reads w - 1 tokens before it. That holds token by token; a longer chunk takes more.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, 1 + -(-(window - 1) // block_size))


def held_blocks(num_placed: int, num_computed: int, window: int | None, block_size: int) -> int:
    """The blocks of one group that a running sequence holds now, those it shares included."""
    gone = 0 if window is None else max(0, num_computed - window + 1) // block_size
    return -(-num_placed // block_size) - gone


def refuse_what_never_fits(
    scheduler: "Scheduler", request_id: str | int, prompt: int, params: SamplingParams
) -> None:
    """Raise ``RequestTooLargeError`` for a request that could never run, not even alone.

    It has more samples than a step has sequences, more tokens than the model takes, or a sequence of it would not fit
    into the empty pool: its last token is never computed, so that one needs no slot.
    """
    manager, max_tokens, longest = scheduler.manager, params.max_tokens, scheduler.max_model_len
    if params.n > scheduler.max_num_seqs:
        raise RequestTooLargeError(
            "request_too_many", request=request_id, n=params.n, most=scheduler.max_num_seqs
        )
    if longest is not None and prompt + max_tokens > longest:
        raise RequestTooLargeError(
            "request_beyond_model", request=request_id, prompt=prompt, max_tokens=max_tokens, most=longest
        )
    stored = prompt + max_tokens - 1
    for number, group in enumerate(manager.kv_cache_groups):
        most = stored if group.window is not None else scheduler.most_resident(stored)
        asked = peak_blocks(most, group.window, manager.block_size)
        if asked > group.num_blocks:
            raise RequestTooLargeError(
                "request_never_fits" if most == stored else "request_never_fits_at_once",
                request=request_id,
                prompt=prompt,
                max_tokens=max_tokens,
                kv_cache_group=number,
                asked=asked,
                total=group.num_blocks,
                fits=_longest(manager) + 1,
                most=most,
            )


def _longest(manager: BlockManager) -> int:
    """Tokens that the empty pool can hold of one sequence: it ends where the first group's blocks do."""
    size = manager.block_size
    return min(
        group.num_blocks * size
        for group in manager.kv_cache_groups
        if group.window is None or 1 + -(-(group.window - 1) // size) > group.num_blocks
    )


def outstanding_blocks(scheduler: "Scheduler", kv_cache_group: int) -> int:
    """Blocks of a group that the running sequences still need for the tokens that they have, and for one more each."""
    manager, running = scheduler.manager, scheduler.running_sequences
    size, window = manager.block_size, manager.kv_cache_groups[kv_cache_group].window
    total = 0
    if window is None and not scheduler.has_gaps:
        for seq in running:  # what follows, written out: it is asked for each that waits, of all that run
            more = -(-(len(seq.tokens) + 1) // size) + -seq.num_placed // size
            total += more + len(seq.pending) if more > 0 else len(seq.pending)
        return total
    for seq in running:
        absent = 0 if window is not None else seq.num_placed - manager.length(seq.id, kv_cache_group)
        held = held_blocks(seq.num_placed - absent, seq.num_computed - absent, window, size)
        peak = len(seq.tokens) + 1
        peak = scheduler.most_resident(peak, seq) if window is None else peak
        total += max(0, peak_blocks(peak, window, size) - held) + len(seq.pending)
    return total


def cheapest_victim(manager: BlockManager, candidates: Iterable[Sequence], asked: int) -> Sequence | None:
    """Which sequence to preempt so that ``asked`` blocks get free in every group; None without candidates.

    Of those that free enough, the one that loses the fewest tokens (those in blocks that another sequence holds will
    be found again); of those that do not, the one that frees most. The younger of two that are equal.
    """
    best, best_key = None, None
    for seq in candidates:
        tables = [manager.block_table(seq.id, group) for group in range(len(manager.pools))]
        freed, kept = [], []
        for pool, table in zip(manager.pools, tables, strict=True):
            shared = [block == NULL_BLOCK or pool.ref_count(block) > 1 for block in table]
            freed.append(pool.num_free + len(table) - sum(shared))
            kept.append(next((place for place, other in enumerate(shared) if not other), len(shared)))
        lost = max(0, seq.num_computed - min(kept) * manager.block_size)
        enough = min(freed) >= asked
        key = (not enough, lost if enough else -min(freed), -seq.order[0], -seq.order[1])
        if best_key is None or key < best_key:
            best, best_key = seq, key
    return best
