"""Exercise 09.2: `BlockManager.free` of minikv.nano, its known mistakes and its cases."""

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.block_manager import BlockManager
from minikv.nano.sequence import SamplingParams, Sequence

# Bound here: while a learner's wrong answer replaces nano's method, it can still call the right one.
nanos_free = BlockManager.free


def after_each_call(fn, calls: list[list[int]], ref_counts: list[int], free_list: list[int]) -> list[dict]:
    """Return the state of the manager and the sequence after each call of ``fn``, and whether it refused.

    Every block has a digest, ``bytes([block])``, so its content can be found until the block is reused.
    """
    manager = type("BlockManager", (BlockManager,), {"free": fn})(len(ref_counts), 4)
    manager.ref_counts[:] = ref_counts
    manager.free_blocks.clear()
    manager.free_blocks.update(dict.fromkeys(free_list))
    manager.digests = [bytes([block]) for block in range(len(ref_counts))]
    manager.cached = {digest: block for block, digest in enumerate(manager.digests) if digest is not None}
    seen = []
    for table in calls:
        seq = Sequence(0, [1] * 4 * len(table), 1, SamplingParams(), list(table), 4 * len(table))
        refused = False
        try:
            manager.free(seq)
        except (AssertionError, ValueError):
            refused = True
        state = {"refused": refused, "ref_counts": list(manager.ref_counts)}
        state |= {"free_blocks": list(manager.free_blocks)}
        state |= {"forgotten": sorted(set(range(len(ref_counts))) - set(manager.cached.values()))}
        seen.append(state | {"block_table": list(seq.block_table), "num_computed": seq.num_computed})
    return seen


def _held(manager, seq) -> bool:
    return all(manager.ref_counts[block] for block in seq.block_table)


def _let_go(manager, seq, blocks) -> None:
    """Drop one reference to each of ``blocks``, in this order, and empty the sequence."""
    for block in blocks:
        manager.ref_counts[block] -= 1
        if not manager.ref_counts[block]:
            manager.free_blocks[block] = None
    seq.block_table, seq.num_computed = [], 0


def freed_unchecked(self, seq):
    for block in reversed(seq.block_table):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] <= 0:
            self.free_blocks[block] = None
    seq.block_table, seq.num_computed = [], 0


def freed_half(self, seq):
    for block in reversed(seq.block_table):
        if not self.ref_counts[block]:
            raise ValueError
        self.ref_counts[block] -= 1
        if not self.ref_counts[block]:
            self.free_blocks[block] = None
    seq.block_table, seq.num_computed = [], 0


def freed_without_the_last(self, seq):
    if not _held(self, seq):
        raise ValueError
    _let_go(self, seq, seq.block_table[-2::-1])


def freed_tested_too_early(self, seq):
    if not _held(self, seq):
        raise ValueError
    for block in reversed(seq.block_table):
        if not self.ref_counts[block]:
            self.free_blocks[block] = None
        else:
            self.ref_counts[block] -= 1
    seq.block_table, seq.num_computed = [], 0


def freed_for_all(self, seq):
    if not _held(self, seq):
        raise ValueError
    for block in reversed(seq.block_table):
        self.ref_counts[block] = 0
        self.free_blocks[block] = None
    seq.block_table, seq.num_computed = [], 0


def freed_head_first(self, seq):
    if not _held(self, seq):
        raise ValueError
    _let_go(self, seq, seq.block_table)


def freed_to_the_front(self, seq):
    if not _held(self, seq):
        raise ValueError
    mine = list(seq.block_table)
    _let_go(self, seq, mine[::-1])
    for block in mine:
        if block in self.free_blocks:
            self.free_blocks.move_to_end(block, last=False)


def freed_with_the_table_kept(self, seq):
    table = list(seq.block_table)
    nanos_free(self, seq)
    seq.block_table = table


def freed_with_the_count_kept(self, seq):
    computed = seq.num_computed
    nanos_free(self, seq)
    seq.num_computed = computed


def freed_and_forgotten(self, seq):
    table = list(seq.block_table)
    nanos_free(self, seq)
    for block in table:
        digest = self.digests[block]
        if block in self.free_blocks and digest is not None:
            self.cached.pop(digest, None)
            self.digests[block] = None


def draw_frees(rng) -> list[dict]:
    """Draw sequences that share a prefix and end in turn; some are freed twice, some calls name a free block."""
    cases = []
    for i in range(40):
        count, shared = 2 + i // 12, rng.randint(1, 2 + i // 16)
        own = [rng.randint(2, 3 + i // 16) for _ in range(count)]
        num_blocks = shared + sum(own) + rng.randint(2, 4)
        blocks = rng.sample(range(num_blocks), num_blocks)
        prefix, blocks = blocks[:shared], blocks[shared:]
        tables = []
        for size in own:
            tables.append([*prefix, *blocks[:size]])
            blocks = blocks[size:]
        calls = rng.sample(tables, count)
        if i < 12 and i % 3 == 0:  # the smallest cases: one sequence of two ends
            calls = calls[:1]
        if i % 3 == 1:  # freed twice
            calls.insert(1, calls[0])
        if i % 3 == 2:  # a free block among held ones: the call must refuse
            calls.insert(0, [calls[0][0], blocks[0], *calls[0][1:]])
        ref_counts = [sum(block in table for table in tables) for block in range(num_blocks)]
        cases.append({"calls": [list(c) for c in calls], "ref_counts": ref_counts, "free_list": blocks})
    return cases


FREE = Exercise(
    id="09.2",
    minutes=6,
    name="free",
    signature=("calls", "ref_counts", "free_list"),
    cases=draw_frees,
    reference=nanos_free,
    drive=after_each_call,
    misconceptions=(
        Misconception("double_free", freed_unchecked),
        Misconception("half_done", freed_half),
        Misconception("leaks_the_last", freed_without_the_last),
        Misconception("tested_too_early", freed_tested_too_early),
        Misconception("count_ignored", freed_for_all),
        Misconception("head_first", freed_head_first),
        Misconception("to_the_front", freed_to_the_front),
        Misconception("table_kept", freed_with_the_table_kept),
        Misconception("computed_kept", freed_with_the_count_kept),
        Misconception("forgotten", freed_and_forgotten),
    ),
)
