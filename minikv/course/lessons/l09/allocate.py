"""Exercise 09.6: `BlockManager.allocate` of minikv.nano, its known mistakes and its cases."""

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.block_manager import BlockManager
from minikv.nano.sequence import SamplingParams, Sequence

# Bound here: while a learner's wrong answer replaces nano's method, it can still call the right one.
nanos_allocate = BlockManager.allocate


def sequence(number: int, tokens: list[int], num_prompt: int) -> Sequence:
    return Sequence(number, list(tokens), num_prompt, SamplingParams())


def after_earlier(manager: BlockManager, earlier: list[tuple[list[int], bool]]) -> None:
    """Allocate and publish the ``earlier`` prompts, one after the other; True: the sequence has ended since."""
    for number, (tokens, ended) in enumerate(earlier):
        seq = sequence(number, tokens, len(tokens))
        assert nanos_allocate(manager, seq)
        manager.publish(seq, len(tokens))
        if ended:
            manager.free(seq)


def books(manager: BlockManager, earlier: list[tuple[list[int], bool]]) -> dict:
    """Return ref counts, free list, and how many blocks of each earlier prompt can still be found."""
    found = [len(manager.find_prefix([*tokens, 0])) for tokens, _ in earlier]
    return {
        "ref_counts": list(manager.ref_counts),
        "free_blocks": list(manager.free_blocks),
        "found": found,
    }


def all_allocations(
    fn,
    num_blocks: int,
    block_size: int,
    earlier: list[tuple[list[int], bool]],
    requests: list[tuple[list[int], int, int]],
) -> list[dict]:
    """Return what ``fn`` answers to each request (tokens, num_prompt, keep_free) in turn, and the manager's state then.

    Blocks that were not found are empty, so their order in the table does not matter: they are listed sorted.
    """
    manager = type("BlockManager", (BlockManager,), {"allocate": fn})(num_blocks, block_size)
    after_earlier(manager, earlier)
    seen = []
    for number, (tokens, num_prompt, keep_free) in enumerate(requests, len(earlier)):
        seq = sequence(number, tokens, num_prompt)
        answer = manager.allocate(seq, keep_free=keep_free)
        cached = max(0, seq.num_cached) // block_size
        table = [*seq.block_table[:cached], *sorted(seq.block_table[cached:])]
        state = {"answer": answer, "block_table": table}
        state |= {"num_computed": seq.num_computed, "num_cached": seq.num_cached}
        seen.append(state | books(manager, earlier))
    return seen


def _counts(manager: BlockManager, tokens: list[int]) -> tuple[list[int], int, int]:
    """Return the prefix found, the blocks to take besides, and how many blocks of the prefix are free now."""
    prefix = manager.find_prefix(tokens)
    fresh = manager.blocks_for(len(tokens)) - len(prefix)
    return prefix, fresh, sum(block in manager.free_blocks for block in prefix)


def _hold(manager: BlockManager, prefix: list[int]) -> None:
    for block in prefix:
        manager.free_blocks.pop(block, None)
        manager.ref_counts[block] += 1


def _enter(manager: BlockManager, seq: Sequence, table: list[int], prefix: list[int]) -> bool:
    seq.block_table = table
    seq.num_computed = seq.num_cached = len(prefix) * manager.block_size
    return True


def allocated_without_a_search(self, seq, keep_free=0):
    need = self.blocks_for(len(seq.tokens))
    if need + keep_free > len(self.free_blocks):
        return False
    return _enter(self, seq, [self._take() for _ in range(need)], [])


def allocated_with_found_ones_counted_free(self, seq, keep_free=0):
    prefix, fresh, _ = _counts(self, seq.tokens)
    if fresh + keep_free > len(self.free_blocks):
        return False
    _hold(self, prefix)
    return _enter(self, seq, prefix + [self._take() for _ in range(fresh)], prefix)


def allocated_as_if_nothing_were_found(self, seq, keep_free=0):
    """Checks that all blocks are free, also those of a prefix that other sequences hold."""
    prefix, fresh, _ = _counts(self, seq.tokens)
    if fresh + len(prefix) + keep_free > len(self.free_blocks):
        return False
    _hold(self, prefix)
    return _enter(self, seq, prefix + [self._take() for _ in range(fresh)], prefix)


def allocated_fresh_first(self, seq, keep_free=0):
    prefix, fresh, reused = _counts(self, seq.tokens)
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    taken = [self._take() for _ in range(fresh)]
    _hold(self, prefix)
    return _enter(self, seq, prefix + taken, prefix)


def allocated_down_to_the_last(self, seq, keep_free=0):
    return nanos_allocate(self, seq)


def allocated_until_it_failed(self, seq, keep_free=0):
    """Takes blocks first and notices later that there are too few: the blocks taken stay taken."""
    prefix, fresh, _ = _counts(self, seq.tokens)
    _hold(self, prefix)
    table = list(prefix)
    for _ in range(fresh):
        if len(self.free_blocks) <= keep_free:
            return False
        table.append(self._take())
    return _enter(self, seq, table, prefix)


def allocated_without_holding(self, seq, keep_free=0):
    prefix, fresh, reused = _counts(self, seq.tokens)
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    for block in prefix:
        self.free_blocks.pop(block, None)
    return _enter(self, seq, prefix + [self._take() for _ in range(fresh)], prefix)


def allocated_and_left_free(self, seq, keep_free=0):
    """Leaves found blocks in the free list after counting a reference, so this very call may take them again."""
    prefix, fresh, reused = _counts(self, seq.tokens)
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    for block in prefix:
        self.ref_counts[block] += 1
    return _enter(self, seq, prefix + [self._take() for _ in range(fresh)], prefix)


def allocated_for_the_prompt(self, seq, keep_free=0):
    tokens, seq.tokens = seq.tokens, seq.tokens[: seq.num_prompt]
    try:
        return nanos_allocate(self, seq, keep_free)
    finally:
        seq.tokens = tokens


def allocated_one_more(self, seq, keep_free=0):
    prefix = self.find_prefix(seq.tokens)
    fresh = len(seq.tokens) // self.block_size + 1 - len(prefix)
    reused = sum(block in self.free_blocks for block in prefix)
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    _hold(self, prefix)
    return _enter(self, seq, prefix + [self._take() for _ in range(fresh)], prefix)


def allocated_with_one_to_spare(self, seq, keep_free=0):
    return nanos_allocate(self, seq, keep_free + 1)


def allocated_and_computed_again(self, seq, keep_free=0):
    answer = nanos_allocate(self, seq, keep_free)
    seq.num_computed = 0
    return answer


def allocated_without_an_answer(self, seq, keep_free=0):
    return nanos_allocate(self, seq, keep_free) and None


def draw_requests(rng) -> list[dict]:
    """Draw prompts that run or have ended, then requests that share a prefix with one of them, or find nothing.

    Each of six kinds in turn. They differ in ``slack``, the number of free blocks that would be left.
    """
    cases: list[dict] = []
    while len(cases) < 48:
        kind, grown = len(cases) % 6, len(cases) // 16
        case = _drawn(rng, (2, 3, 4)[rng.randrange(3)], grown, known=kind != 3)
        tokens = case["requests"][0][0]
        manager = BlockManager(case["num_blocks"], case["block_size"])
        after_earlier(manager, case["earlier"])
        prefix, fresh, reused = _counts(manager, tokens)
        slack, next_ones = len(manager.free_blocks) - fresh - reused, list(manager.free_blocks)[:fresh]
        num_prompt = len(tokens) - (rng.randint(1, case["block_size"]) if kind == 5 else 0)
        if kind == 0:  # Other sequences hold some of the blocks that are found.
            suits, keep_free = slack >= 0 and len(prefix) > reused, slack
        elif kind == 1:  # The request lacks no more blocks than it finds among the free ones.
            suits, keep_free = -reused <= slack < 0, 0
        elif kind == 2:  # The same, but because of keep_free.
            suits, keep_free = reused > 0 <= slack, slack + rng.randint(1, max(1, reused))
        elif kind == 4:  # A found block is one of the next in the free list.
            suits, keep_free = slack >= 0 and not set(prefix).isdisjoint(next_ones), 0
        else:
            suits, keep_free = slack >= 0, max(0, slack + rng.choice([0, 1, 1] if kind == 3 else [0, -1]))
        if suits:
            case["requests"][0] = (tokens, num_prompt, keep_free)
            cases.append(case)
    return cases


def _drawn(rng, size: int, grown: int, known: bool) -> dict:
    """Draw two earlier prompts, a pool nearly or quite full, and one or two requests; sizes grow with ``grown``."""

    def some(blocks: int, more: int = 0) -> list[int]:
        return [rng.randint(10, 99) for _ in range(blocks * size + more)]

    shared = some(rng.randint(1, 1 + grown))
    earlier = [(shared + some(1), rng.random() < 0.5), (some(rng.randint(1, 2)), True)]
    rng.shuffle(earlier)
    found = shared + some(rng.randint(0, 3 + grown), rng.choice([0, 1, size - 1]))
    new = some(rng.randint(1, 2), rng.choice([0, 1, size - 1]))
    first, second = (found, new) if known else (new, found)
    requests = [(first, len(first), 0)] + [(second, len(second), 0)] * (grown > 0)
    num_blocks = sum(len(prompt) // size for prompt, _ in earlier) + rng.randint(0, 3)
    return {"num_blocks": num_blocks, "block_size": size, "earlier": earlier, "requests": requests}


ALLOCATE = Exercise(
    id="09.6",
    minutes=8,
    name="allocate",
    signature=("num_blocks", "block_size", "earlier", "requests"),
    cases=draw_requests,
    reference=nanos_allocate,
    drive=all_allocations,
    misconceptions=(
        Misconception("no_search", allocated_without_a_search),
        Misconception("found_counted_free", allocated_with_found_ones_counted_free),
        Misconception("found_not_counted", allocated_as_if_nothing_were_found, within=("no_search",)),
        Misconception("fresh_first", allocated_fresh_first),
        Misconception("keeps_nothing_free", allocated_down_to_the_last),
        Misconception("half_done", allocated_until_it_failed),
        Misconception("not_held", allocated_without_holding),
        Misconception("left_free", allocated_and_left_free),
        Misconception("prompt_alone", allocated_for_the_prompt),
        Misconception("one_more", allocated_one_more),
        Misconception("one_to_spare", allocated_with_one_to_spare),
        Misconception("computed_again", allocated_and_computed_again),
        Misconception("no_answer", allocated_without_an_answer),
    ),
)
