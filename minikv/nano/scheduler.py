"""Which sequences run in the next step, and with which of their tokens. Pure Python.

A step computes at most ``max_num_batched_tokens`` tokens of at most ``max_num_seqs`` sequences. Each sequence
brings what it has not computed: one token in decode, a whole prompt or a chunk of it in prefill. Both kinds
share a step (continuous batching): a sequence enters when there is room and leaves when it ends, and no step
waits for another.
"""

from collections import deque

from minikv.nano.block_manager import BlockManager
from minikv.nano.sequence import Sequence

Step = list[tuple[Sequence, int, int]]  # (sequence, start, end): its tokens start to end - 1 are computed


class Scheduler:
    """A queue of waiting sequences, and a list of running ones, which hold their blocks; the oldest first."""

    def __init__(self, blocks: BlockManager, max_num_seqs: int, max_num_batched_tokens: int):
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def schedule(self) -> Step:
        """Choose the tokens of the next step. Every block that they need is held afterwards."""
        step: Step = []
        budget = self.max_num_batched_tokens
        preemptions = self.num_preemptions
        for seq in list(self.running):  # a copy: preemption shortens the list
            if not budget:
                break
            if self.make_room(seq):
                budget -= self.pack(step, seq, budget)
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            if self.num_preemptions > preemptions or not self.admit(self.waiting[0]):
                break
            seq = self.waiting.popleft()
            self.running.append(seq)
            budget -= self.pack(step, seq, budget)
        return step

    def admit(self, seq: Sequence) -> bool:
        """Allocate the blocks of a waiting sequence. False where it has to wait.

        One block for each running sequence stays free, or what is admitted now would be preempted at once.
        """
        return self.blocks.allocate(seq, keep_free=len(self.running))

    def pack(self, step: Step, seq: Sequence, budget: int) -> int:
        """Add to ``step`` the next tokens of ``seq``, at most ``budget``; return how many."""
        start = seq.num_computed
        end = min(len(seq.tokens), start + budget)
        step.append((seq, start, end))
        return end - start

    def make_room(self, seq: Sequence) -> bool:
        """Hold a slot for the last token of ``seq``, preempting others where blocks are short.

        False where ``seq`` itself is preempted, by this call or by an older sequence in this step.
        """
        while seq in self.running:
            if self.blocks.append(seq):
                return True
            self.preempt(self.choose_victim())
        return False

    def choose_victim(self) -> Sequence:
        """The running sequence that gives up its blocks: the one that was admitted last.

        So the oldest always goes on, and every request ends.
        """
        return self.running[-1]

    def preempt(self, seq: Sequence) -> None:
        """Free the blocks of ``seq``, and let it wait as the first. K and V of its tokens are computed
        again.
        """
        self.running.remove(seq)
        self.blocks.free(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1

    def abort(self, seq: Sequence) -> None:
        """Take ``seq`` out, wherever it is, and free its blocks."""
        (self.running if seq in self.running else self.waiting).remove(seq)
        self.blocks.free(seq)

    def finish(self, step: Step, next_tokens: list[int], eos: frozenset[int]) -> None:
        """Take in what a step has computed: ``next_tokens[i]`` follows the last computed token of
        ``step[i]``.
        """
        for (seq, _, end), token in zip(step, next_tokens, strict=True):
            self.blocks.publish(seq, end)
            if end < len(seq.tokens):
                continue  # a chunk of a prompt: the token that follows is known already
            seq.append(token, eos)
            if seq.finish_reason:
                self.running.remove(seq)
                self.blocks.free(seq)
