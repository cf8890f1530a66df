"""Plan: a step in the making. What is put into it has been placed by the block manager already."""

from array import array
from dataclasses import dataclass, field

from minikv.blocks import UNKNOWN, Copy
from minikv.engine.sequence import Sequence, SequenceId
from minikv.engine.step import Scheduled


@dataclass
class Plan:
    """A step in the making, with ``budget`` tokens left. ``seqs[i]`` is the sequence of ``items[i]``."""

    budget: int
    items: list[Scheduled] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    def put(self, seq: Sequence, start: int, end: int, decode: bool) -> None:
        """The tokens ``start`` to ``end - 1`` of ``seq`` are in the step; the manager has placed them."""
        samples: tuple[SequenceId, ...] = ()
        if end == len(seq.tokens):
            samples = (seq.id, *(other.id for other in seq.pending)) if seq.pending else (seq.id,)
        self.seqs.append(seq)
        if end == start + 1:
            tokens: tuple[int, ...] | array = (seq.tokens[start],)
        else:
            chunk = seq.tokens[start:end]
            tokens = chunk if isinstance(chunk, array) else tuple(chunk)
        self.items.append(Scheduled(seq.id, start, tokens, decode, samples))
        self.budget -= end - start
        seq.num_placed = end

    def put_ahead(self, seq: Sequence) -> None:
        """A decode of ``seq`` is in the step, of the token that the step before draws; the manager has placed it."""
        self.seqs.append(seq)
        self.items.append(Scheduled(seq.id, seq.num_placed, (UNKNOWN,), True, (seq.id,)))
        self.budget -= 1
        seq.num_placed += 1

    def guess(self, place: int, seq: Sequence, drafts: list[int]) -> None:
        """``drafts`` come behind the token of the decode at ``place`` of ``items``; the manager has placed them."""
        item = self.items[place]
        self.items[place] = item._replace(tokens=(*item.tokens, *drafts), drafts=len(drafts))
        self.budget -= len(drafts)
        seq.num_placed += len(drafts)
