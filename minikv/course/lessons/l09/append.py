"""Exercise 09.7: `BlockManager.append` of minikv.nano, its known mistakes and its cases."""

from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons.l09.allocate import after_earlier, books, sequence
from minikv.nano.block_manager import BlockManager

# Bound here: while a learner's wrong answer replaces nano's method, it can still call the right one.
nanos_append = BlockManager.append


def all_appends(
    fn,
    num_blocks: int,
    block_size: int,
    earlier: list[tuple[list[int], bool]],
    lengths: list[int],
    calls: list[tuple[int, int]],
) -> dict:
    """Run sequences of ``lengths``; a call (i, n) adds n tokens to sequence i and then asks ``fn`` for their blocks.

    Returns the answers, and the manager's state at the end. After a refusal the sequence keeps its tokens, and its next
    call asks again.
    """
    manager = type("BlockManager", (BlockManager,), {"append": fn})(num_blocks, block_size)
    after_earlier(manager, earlier)
    seqs = [sequence(i, [100 + i] * length, length) for i, length in enumerate(lengths)]
    for seq in seqs:
        assert manager.allocate(seq)
    answers = []
    for i, new in calls:
        refused = manager.blocks_for(len(seqs[i].tokens)) > len(seqs[i].block_table)
        seqs[i].tokens += [7] * (0 if refused else new)
        answers.append(manager.append(seqs[i]))
    tables = [list(seq.block_table) for seq in seqs]
    return {"answers": answers, "block_tables": tables} | books(manager, earlier)


def appended_late(self, seq):
    if self.blocks_for(len(seq.tokens) - 1) > len(seq.block_table):
        if not self.free_blocks:
            return False
        seq.block_table.append(self._take())
    return True


def appended_early(self, seq):
    if self.blocks_for(len(seq.tokens) + 1) > len(seq.block_table):
        if not self.free_blocks:
            return False
        seq.block_table.append(self._take())
    return True


def appended_each_time(self, seq):
    if not self.free_blocks:
        return False
    seq.block_table.append(self._take())
    return True


def appended_only_if_some_are_free(self, seq):
    return bool(self.free_blocks) and nanos_append(self, seq)


def appended_by_the_remainder(self, seq):
    """Appends a new block behind each full block, even if the sequence has it already."""
    if len(seq.tokens) % self.block_size == 1:
        if not self.free_blocks:
            return False
        seq.block_table.append(self._take())
    return True


def appended_without_a_count(self, seq):
    if self.blocks_for(len(seq.tokens)) > len(seq.block_table):
        if not self.free_blocks:
            return False
        block, _ = self.free_blocks.popitem(last=False)
        seq.block_table.append(block)
    return True


def appended_from_the_end(self, seq):
    if self.free_blocks:
        self.free_blocks.move_to_end(next(reversed(self.free_blocks)), last=False)
    return nanos_append(self, seq)


def appended_unasked(self, seq):
    """Raises ``KeyError`` where no block is free."""
    if self.blocks_for(len(seq.tokens)) > len(seq.block_table):
        seq.block_table.append(self._take())
    return True


def appended_without_an_answer(self, seq):
    return None if nanos_append(self, seq) else False


def draw_calls(rng) -> list[dict]:
    """Draw sequences that end on, below and above the end of a block, and pools that have a block too few.

    Some calls bring no new token: in a chunked prefill, each chunk asks for the sequence's blocks.
    """
    cases = []
    for i in range(42):
        size = (2, 3, 4)[i % 3]
        earlier = [([rng.randint(10, 99) for _ in range(size * rng.randint(1, 2))], True)]
        near = [0, 1, -1, 0]
        lengths = [max(1, size * rng.randint(1, 2) + rng.choice(near)) for _ in range(2 + i // 16)]
        calls = [(rng.randrange(len(lengths)), int(rng.random() < 0.8)) for _ in range(3 + i // 6)]
        need = sum(-(-length // size) for length in lengths)
        num_blocks = max(need, len(earlier[0][0]) // size) + rng.randint(0, 2 + i // 12)
        case = {"num_blocks": num_blocks, "block_size": size, "earlier": earlier}
        cases.append(case | {"lengths": lengths, "calls": calls})
    return cases


APPEND_TOKEN = Exercise(
    id="09.7",
    minutes=5,
    name="append",
    signature=("num_blocks", "block_size", "earlier", "lengths", "calls"),
    cases=draw_calls,
    reference=nanos_append,
    drive=all_appends,
    misconceptions=(
        Misconception("block_late", appended_late),
        Misconception("block_early", appended_early),
        Misconception("block_each_time", appended_each_time),
        Misconception("asks_first", appended_only_if_some_are_free),
        Misconception("by_the_remainder", appended_by_the_remainder),
        Misconception("not_counted", appended_without_a_count),
        Misconception("from_the_end", appended_from_the_end),
        Misconception("unasked", appended_unasked),
        Misconception("no_answer", appended_without_an_answer),
    ),
)
