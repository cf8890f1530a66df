"""States: a slot for each running sequence of a model with recurrent layers. Lesson 11a.

    admitted    takes a slot; its first token reads nothing from it
    forked      takes a slot, and a copy of its parent's states
    freed       gives the slot back: preempted, it computes its tokens again

There are as many slots as a step has sequences, so whatever has a seat has a slot, and the blocks of the other layers
alone decide what waits. A cached prefix is never found: it has K and V, but the state behind it is gone. Keeping states
at the borders of blocks would cost a slot's bytes for each.
"""

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId
from minikv.engine.core.step import Step

if TYPE_CHECKING:
    from minikv.cache.states import StateSlots


class States(Extension):
    """Gives the sequences the slots of ``slots``, one each, and names them in every batch."""

    def __init__(self, slots: "StateSlots"):
        self.slots = slots
        self._free = list(range(slots.num_slots))
        self._held: dict[SequenceId, int] = {}
        self._lives = count()

    def slot(self, seq_id: SequenceId) -> int:
        """Return the slot of a running sequence."""
        return self._held[seq_id]

    @property
    def num_free(self) -> int:
        """The slots that no sequence has."""
        return len(self._free)

    def salt(self, seq: Sequence, salt: str) -> str:
        """Return another salt for each admission, so that no prefix is found without its state."""
        return f"{salt}\0{next(self._lives)}"

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        if seq is None:
            return
        if change == "admit":
            self._held[seq.id] = self._free.pop()
        elif change == "fork":
            child = facts["child"]
            self._held[child.id] = self._free.pop()
            self.slots.copy([self._held[seq.id]], [self._held[child.id]])
        elif change == "free":
            # An allocation that was undone before the sequence was admitted has no slot.
            slot = self._held.pop(seq.id, None)
            if slot is not None:
                self._free.append(slot)

    def on_batch(self, step: Step, batch: Any) -> Any:
        """Name the slot of each sequence of the step."""
        return replace(batch, state_slots=tuple(self._held[item.id] for item in step.items))
