"""States: a slot for each running sequence of a model with recurrent layers, and saved ones for prefixes. Lesson 11a.

    admitted    takes a slot; its first token reads nothing from it, or a copy of the state saved behind its prefix
    computed    up to a border of ``borders``: a copy of its slot is saved under the digest of that prefix
    forked      takes a slot, and a copy of its parent's states
    freed       gives the slot back: preempted, it computes its tokens again from the last saved state on

There are as many slots as a step has sequences, so whatever has a seat has a slot, and the blocks of the other layers
alone decide what waits. A cached prefix counts only up to a saved state. States are saved at two borders of blocks:

    the last one of a prompt    for the same prompt again, for what continues it, and for a preempted sequence
    where prompts part          a prefix is in blocks, but no state behind it: what comes third finds one

A chunk of a prompt ends at such a border, so a prompt takes one step more. A state that no block leads to any more goes
first, then the least recently used one. The states behind an answer are not saved: they are written over at every
token, and a copy at each border of an answer would cost a slot's bytes every ``block_size`` tokens.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minikv.blocks import Match
from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId, Tokens
from minikv.engine.core.step import Step

if TYPE_CHECKING:
    from minikv.cache.states import StateSlots


class States(Extension):
    """Gives the sequences the slots of ``slots``, one each, names them in every batch, and saves states behind them."""

    def __init__(self, slots: "StateSlots"):
        self.slots = slots
        self._free = list(range(slots.num_slots))
        self._held: dict[SequenceId, int] = {}
        self._borders: dict[SequenceId, list[int]] = {}  # not reached yet, the next one last
        # By the digest of their last block: the slot, the tokens and their salt; the least recently used first
        self._saved: OrderedDict[bytes, tuple[int, Tokens, str]] = OrderedDict()
        self._unused = list(range(slots.num_slots, slots.num_slots + slots.num_saved))

    def slot(self, seq_id: SequenceId) -> int:
        """Return the slot of a running sequence."""
        return self._held[seq_id]

    @property
    def num_free(self) -> int:
        """The slots that no sequence has."""
        return len(self._free)

    @property
    def num_saved(self) -> int:
        """The states that are saved."""
        return len(self._saved)

    def prefix(self, seq: Sequence, found: Match, stop: int) -> tuple[Match, int]:
        """Return the longest part of ``found`` with a saved state behind it; the first chunk ends at a border."""
        size, parted = self.scheduler.manager.block_size, found.num_tokens
        for place in range(parted // size, 0, -1):
            if found.digests[place - 1] in self._saved:
                shorter = self._match(seq.tokens, place * size, seq.salt)
                if shorter.num_tokens == place * size:
                    found = shorter
                    break
        else:
            found = self._match(seq.tokens, 0, seq.salt)
        wanted = {parted, (seq.num_prompt - 1) // size * size} if self.slots.num_saved else set()
        borders = sorted((each for each in wanted if each > found.num_tokens), reverse=True)
        self._borders[seq.id] = borders
        return found, min([stop, *borders])

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """End a chunk at the next border."""
        if seq.id not in self._held or not self._borders[seq.id]:
            return num_tokens
        return min(num_tokens, self._borders[seq.id][-1] - seq.num_computed)

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        if seq is None:
            return
        if change == "admit":
            self._held[seq.id] = self._free.pop()
            if cached := facts["found"].num_cached:
                digest = self._match(seq.tokens, cached, seq.salt).digests[-1]
                self._saved.move_to_end(digest)
                self.slots.copy([self._saved[digest][0]], [self._held[seq.id]])
        elif change == "commit":
            if self._borders[seq.id] and seq.num_computed == self._borders[seq.id][-1]:
                self._save(seq, self._borders[seq.id].pop())
        elif change == "fork":
            child = facts["child"]
            self._held[child.id], self._borders[child.id] = self._free.pop(), []
            self.slots.copy([self._held[seq.id]], [self._held[child.id]])
        elif change in ("free", "drop"):
            self._borders.pop(seq.id, None)
            # An allocation that was undone before the sequence was admitted has no slot.
            slot = self._held.pop(seq.id, None)
            if slot is not None:
                self._free.append(slot)

    def on_batch(self, step: Step, batch: Any) -> Any:
        """Name the slot of each sequence of the step."""
        return replace(batch, state_slots=tuple(self._held[item.id] for item in step.items))

    def _match(self, tokens: Tokens, count: int, salt: str) -> Match:
        """Return the cached prefix of the first ``count`` tokens, which are whole blocks."""
        return self.scheduler.manager.match(tokens[: count + 1], salt)

    def _save(self, seq: Sequence, border: int) -> None:
        """Save the slot of ``seq`` behind its first ``border`` tokens, if their blocks can be found."""
        known = self._match(seq.tokens, border, seq.salt)
        if known.num_tokens != border:
            return
        digest = known.digests[-1]
        if digest not in self._saved:
            if not self._unused:
                self._drop()
            self._saved[digest] = self._unused.pop(), seq.tokens[: border + 1], seq.salt
            self.slots.copy([self._held[seq.id]], [self._saved[digest][0]])
        self._saved.move_to_end(digest)

    def _drop(self) -> None:
        """Give up every state that no block leads to; without any, the least recently used one."""
        match = self.scheduler.manager.match
        lost = [
            digest
            for digest, (_, tokens, salt) in self._saved.items()
            if match(tokens, salt).num_tokens < len(tokens) - 1
        ]
        for digest in lost or [next(iter(self._saved))]:
            self._unused.append(self._saved.pop(digest)[0])
