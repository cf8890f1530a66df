"""How many blocks a sequence needs and holds, and which sequence it costs least to take blocks from."""

from collections.abc import Callable, Iterable

from minikv.blocks import NULL_BLOCK, BlockManager
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.sequence import Sequence
from minikv.errors import RequestTooLargeError


def peak_blocks(num_tokens: int, window: int | None, block_size: int) -> int:
    """The most blocks of one kind that a sequence holds at once on its way to ``num_tokens`` cached tokens.

    Without a window ceil(tokens / block). With one of w tokens never more than 1 + ceil((w - 1) / block): the query at
    the first position of a block reads w - 1 tokens before it. That holds token by token; a longer chunk takes more.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, 1 + -(-(window - 1) // block_size))


def held_blocks(num_placed: int, num_computed: int, window: int | None, block_size: int) -> int:
    """The blocks of one kind that a running sequence holds now, those it shares included."""
    gone = 0 if window is None else max(0, num_computed - window + 1) // block_size
    return -(-num_placed // block_size) - gone


def refuse_what_never_fits(
    manager: BlockManager,
    request_id: str | int,
    prompt: int,
    params: SamplingParams,
    *,
    max_num_seqs: int,
    max_model_len: int | None,
    most_resident: int | None = None,
) -> None:
    """Raise ``RequestTooLargeError`` for a request that could never run, not even alone.

    It has more samples than a step has sequences, more tokens than the model takes, or a sequence of it would not fit
    into the empty pool: its last token is never computed, so that one needs no slot. ``most_resident``: the most
    tokens that a sequence has at once in a layer without a window, if eviction takes some.
    """
    max_tokens = params.max_tokens
    if params.n > max_num_seqs:
        raise RequestTooLargeError("request_too_many", request=request_id, n=params.n, most=max_num_seqs)
    if max_model_len is not None and prompt + max_tokens > max_model_len:
        raise RequestTooLargeError(
            "request_beyond_model",
            request=request_id,
            prompt=prompt,
            max_tokens=max_tokens,
            most=max_model_len,
        )
    size, stored = manager.block_size, prompt + max_tokens - 1
    for number, kind in enumerate(manager.kinds):
        most = stored if most_resident is None or kind.window is not None else min(stored, most_resident)
        asked = peak_blocks(most, kind.window, size)
        if asked > kind.num_blocks:
            code = "request_never_fits" if most == stored else "request_never_fits_evicting"
            raise RequestTooLargeError(
                code,
                request=request_id,
                prompt=prompt,
                max_tokens=max_tokens,
                kind=number,
                asked=asked,
                total=kind.num_blocks,
                fits=_longest(manager) + 1,
                most=most,
            )


def _longest(manager: BlockManager) -> int:
    """Tokens that the empty pool can hold of one sequence: it ends where the first kind's blocks do."""
    size = manager.block_size
    return min(
        kind.num_blocks * size
        for kind in manager.kinds
        if kind.window is None or 1 + -(-(kind.window - 1) // size) > kind.num_blocks
    )


def outstanding_blocks(
    manager: BlockManager,
    running: Iterable[Sequence],
    kind: int,
    most_tokens: Callable[[Sequence, int], int] | None = None,
) -> int:
    """Blocks that the running sequences still need for the tokens that they have, and for one more each.

    ``most_tokens``: how many of its tokens a sequence has at most at once, where eviction takes some; None: all.
    """
    size, window = manager.block_size, manager.kinds[kind].window
    total = 0
    if window is None and most_tokens is None:
        for seq in running:  # what follows, written out: it is asked for each that waits, of all who run
            more = -(-(len(seq.tokens) + 1) // size) + -seq.num_placed // size
            total += more + len(seq.pending) if more > 0 else len(seq.pending)
        return total
    for seq in running:
        lost = 0 if window is not None else manager.num_evicted(seq.id, kind)
        held = held_blocks(seq.num_placed - lost, seq.num_computed - lost, window, size)
        peak = len(seq.tokens) + 1
        peak = most_tokens(seq, peak) if window is None and most_tokens is not None else peak
        total += max(0, peak_blocks(peak, window, size) - held) + len(seq.pending)
    return total


def cheapest_victim(manager: BlockManager, candidates: Iterable[Sequence], asked: int) -> Sequence | None:
    """Whom to preempt so that ``asked`` blocks get free in every kind; None where there is nobody.

    Of those that free enough, the one that loses the fewest tokens (those in blocks that another sequence holds will
    be found again); of those that do not, the one that frees most. The younger of two that are equal.
    """
    best, best_rank = None, None
    for seq in candidates:
        tables = [manager.block_table(seq.id, kind) for kind in range(len(manager.pools))]
        freed, kept = [], []
        for pool, table in zip(manager.pools, tables, strict=True):
            shared = [block == NULL_BLOCK or pool.ref_count(block) > 1 for block in table]
            freed.append(pool.num_free + len(table) - sum(shared))
            kept.append(next((place for place, other in enumerate(shared) if not other), len(shared)))
        lost = max(0, seq.num_computed - min(kept) * manager.block_size)
        enough = min(freed) >= asked
        rank = (not enough, lost if enough else -min(freed), -seq.order[0], -seq.order[1])
        if best_rank is None or rank < best_rank:
            best, best_rank = seq, rank
    return best


def lost_tokens(manager: BlockManager, seq: Sequence) -> int:
    """Tokens of ``seq`` that would be computed again: those behind the blocks that another sequence holds as well.

    What a window has given back counts as lost: others may have written there since.
    """
    tables = [manager.block_table(seq.id, kind) for kind in range(len(manager.pools))]
    kept = 0
    for blocks in zip(*tables, strict=True):
        held = zip(manager.pools, blocks, strict=True)
        if any(block == NULL_BLOCK or pool.ref_count(block) == 1 for pool, block in held):
            break
        kept += 1
    return max(0, seq.num_computed - kept * manager.block_size)
