"""What the block manager's bookkeeping costs, beside a textbook block manager in the same run.

    python -m benchmarks.blocks [--quick] [--json FILE]

A request is a prompt of 1,024 tokens in blocks of 16, of which 768 tokens are cached already. "Finished owner":
nobody holds the cached blocks, so that hits come off the free list; "live owner": a running sequence holds them.
"""

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.report import Row, arguments, publish
from benchmarks.textbook_blocks import TextbookManager, TextbookSequence
from minikv.blocks import BlockManager, BlockPool
from minikv.blocks.tables import BlockTables

BLOCK, PROMPT, SHARED = 16, 1024, 768
SIZES = (1_000, 10_000, 100_000, 1_000_000)
FASTER = {1_000: 2, 10_000: 2, 100_000: 10, 1_000_000: 10}
FLAT, APPEND, COMMIT_US, TABLES_US, IDLE_BYTES = 2.0, 1.25, 1.0, 10.0, 150
PEER = "textbook block manager"


def prompts(count: int) -> list[list[int]]:
    """Prompts that share their first ``SHARED`` tokens; the first of them is the owner of the prefix."""
    rng = random.Random(0)
    shared = [rng.randrange(150_000) for _ in range(SHARED)]
    return [shared + [rng.randrange(150_000) for _ in range(PROMPT - SHARED)] for _ in range(count)]


def microseconds(step: Callable[[int], None], count: int) -> float:
    """The median time of ``step(0)``, ``step(1)``, …, after two that do not count."""
    times = []
    for number in range(count):
        start = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[2:])


def request_times(num_blocks: int, live: bool, count: int) -> tuple[float, float]:
    """Microseconds of one request, ours (allocate, commit, free) and the textbook's (allocate, free)."""
    owner, *others = prompts(count + 1)
    ours, textbook = BlockManager(num_blocks, BLOCK), TextbookManager(num_blocks, BLOCK)
    ours.allocate("owner", owner)
    ours.commit("owner")
    first = TextbookSequence(owner)
    textbook.allocate(first)
    if not live:
        ours.free("owner")
        textbook.free(first)

    def our_request(number: int) -> None:
        assert ours.allocate(number, others[number]).num_cached == SHARED
        ours.commit(number)
        ours.free(number)

    def textbook_request(number: int) -> None:
        sequence = TextbookSequence(others[number])
        assert textbook.allocate(sequence) == SHARED
        textbook.free(sequence)

    slow = max(5, count * 2_000 // num_blocks) if not live else count  # deque.remove takes milliseconds there
    return microseconds(our_request, count), microseconds(textbook_request, min(count, slow))


def append_times(tokens: int) -> tuple[float, float, float]:
    """Microseconds a token: our append, our append with commit (it hashes full blocks), the textbook's append."""
    blocks = 2 * tokens // BLOCK + 2

    def per_token(begin: Callable[[], Callable[[int], object]]) -> float:
        rounds = []
        for _ in range(7):
            step = begin()
            start = time.perf_counter()
            for token in range(tokens):
                step(token)
            rounds.append(time.perf_counter() - start)
        return 1e6 * statistics.median(rounds) / tokens

    def ours() -> Callable[[int], object]:
        manager = BlockManager(blocks, BLOCK)
        manager.allocate(0, range(BLOCK))
        append = manager.append
        return lambda token: append(0, token)

    def ours_committed() -> Callable[[int], object]:
        manager = BlockManager(blocks, BLOCK)
        manager.allocate(0, range(BLOCK))
        append, commit = manager.append, manager.commit
        return lambda token: (append(0, token), commit(0))

    def textbook() -> Callable[[int], object]:
        manager, sequence = TextbookManager(blocks, BLOCK), TextbookSequence(list(range(BLOCK)))
        manager.allocate(sequence)
        append = manager.append
        return lambda token: append(sequence, token)

    return per_token(ours), per_token(ours_committed), per_token(textbook)


class Owner:
    """Whose row it is."""

    row = 0


def table_times(count: int) -> tuple[float, float]:
    """Microseconds of the tables of 256 sequences x 64 blocks in a step that gives 16 of them a block."""
    tables = BlockTables(1)
    lists = [list(range(row, row + 64)) for row in range(256)]
    for row, blocks in enumerate(lists):
        tables.add(Owner())
        tables.write(0, row, 0, blocks[:63])

    def our_step(number: int) -> None:
        for row in range(16):
            tables.write(0, 16 * row + number % 16, 63, (number,))
        assert tables.view(0).shape == (256, 64)

    return microseconds(our_step, count), microseconds(lambda _: np.array(lists, np.int32), count)


def idle_bytes(make: Callable[[], object], num_blocks: int) -> float:
    """Bytes of host memory a block of an untouched pool takes."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return taken / num_blocks


def rows(quick: bool) -> Iterator[Row]:
    count = 60 if quick else 400
    ours_at = {}
    for size in SIZES:
        ours, peer = request_times(size, live=False, count=count)
        ours_at[size] = ours
        goal = f"at least {FASTER[size]}x faster"
        claim = f"request, finished owner, {size:,} blocks"
        yield Row(claim, ours, peer, PEER, "us", goal, ours * FASTER[size] <= peer)
    for size in SIZES[:3]:
        ours, peer = request_times(size, live=True, count=count)
        claim = f"request, live owner, {size:,} blocks"
        yield Row(claim, ours, peer, PEER, "us", "no slower", ours <= peer)
    small, large = ours_at[SIZES[0]], ours_at[SIZES[-1]]
    flat = large <= FLAT * small
    yield Row("request at 1,000,000 blocks", large, small, "ours at 1,000", "us", f"within {FLAT:g}x", flat)
    append, committed, peer = append_times(20_000 if quick else 100_000)
    goal = f"no more than {APPEND}x"
    yield Row("append a token", append, peer, PEER, "us", goal, append <= APPEND * peer)
    # The textbook publishes a block when its last token is appended, before its K and V exist: it has no commit.
    claim, goal = "append a token and commit it", f"under {COMMIT_US:g} us"
    yield Row(claim, committed, peer, f"{PEER}, append alone", "us", goal, committed < COMMIT_US)
    ours, peer = table_times(count)
    claim, goal = "block tables, 256 sequences x 64 blocks, a step", f"under {TABLES_US:g} us"
    yield Row(claim, ours, peer, "array built from lists", "us", goal, ours < TABLES_US)
    size = 100_000
    ours = idle_bytes(lambda: BlockPool(size, BLOCK), size)
    peer = idle_bytes(lambda: TextbookManager(size, BLOCK), size)
    goal = f"under {IDLE_BYTES} bytes"
    yield Row("host memory of an idle block", ours, peer, PEER, "bytes", goal, ours < IDLE_BYTES)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(options.quick), options.json)


if __name__ == "__main__":
    main()
