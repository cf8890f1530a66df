"""Rules: two decisions of a scheduler that may be replaced, and the block counts that they use."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from minikv.blocks import NULL_BLOCK, BlockManager
from minikv.engine.core.sequence import Sequence
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import RequestTooLargeError

if TYPE_CHECKING:
    from minikv.engine.core.scheduler import Scheduler


class Rules:
    """Which sequence is preempted, and how many free blocks admission reserves. A subclass decides otherwise:

    Scheduler(manager, rules=MyRules())
    """

    def choose_victim(
        self, scheduler: "Scheduler", candidates: list[Sequence], asked: int
    ) -> Sequence | None:
        """Return the one of ``candidates`` to preempt, so that ``asked`` blocks are free in every KV cache group.

        The candidates are all sequences younger than the one that lacks blocks, at least one, the oldest first. If the
        victim frees too few, the rest is asked again. None: the sequence that lacks blocks waits. The oldest must never
        wait for ever, or no request would end.
        """
        return cheapest_victim(scheduler.manager, candidates, asked)

    def owed_blocks(self, scheduler: "Scheduler", kv_cache_group: int) -> int:
        """Return the blocks of one group that running sequences still need; admission does not use them."""
        return outstanding_blocks(scheduler, kv_cache_group)


def peak_blocks(num_tokens: int, window: int | None, block_size: int) -> int:
    """Return the most blocks of one group that a sequence holds at once until it has ``num_tokens`` cached tokens.

    Without a window that is ceil(tokens / block). A window of w tokens needs at most 1 + ceil((w - 1) / block) blocks:
    the query at the first position of a block reads w - 1 tokens before it. This holds token by token; a longer chunk
    needs more.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, 1 + -(-(window - 1) // block_size))


def held_blocks(num_placed: int, num_computed: int, window: int | None, block_size: int) -> int:
    """Return the blocks of one group that a running sequence holds now, shared ones included."""
    gone = 0 if window is None else max(0, num_computed - window + 1) // block_size
    # The next query, at position num_computed, reads from num_computed - window + 1 on; the blocks before that are
    # freed.
    return -(-num_placed // block_size) - gone


def refuse_what_never_fits(
    scheduler: "Scheduler", request_id: str | int, prompt: int, params: SamplingParams
) -> None:
    """Raise ``RequestTooLargeError`` for a request that could not run even alone.

    Either it has more samples than a step has sequences, or more tokens than the model takes, or one of its sequences
    does not fit into the empty pool. The last token is never computed, so it needs no slot.
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
    """Return the most tokens of one sequence in the empty pool, which ends where one group's blocks run out."""
    size = manager.block_size
    return min(
        group.num_blocks * size
        for group in manager.kv_cache_groups
        if group.window is None or 1 + -(-(group.window - 1) // size) > group.num_blocks
    )


def outstanding_blocks(scheduler: "Scheduler", kv_cache_group: int) -> int:
    """Return the blocks of one group that the running sequences still need for their tokens and one more each."""
    manager, running = scheduler.manager, scheduler.running_sequences
    size, window = manager.block_size, manager.kv_cache_groups[kv_cache_group].window
    total = 0
    if window is None and not scheduler.has_gaps:
        # The general case below, written out for speed: each waiting request asks this of all running ones. A negative
        # operand makes // round towards the smaller number, so -n // size is -ceil(n / size).
        for seq in running:
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
    """Return the sequence to preempt so that ``asked`` blocks are free in every group; None without candidates.

    Of those that free enough it is the one that loses the fewest tokens; tokens in leading shared blocks will be found
    again. Otherwise it is the one that frees most. Of two equal ones it is the younger.
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
