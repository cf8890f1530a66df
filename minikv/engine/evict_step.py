"""What of a step's evictions happens on the device: the record is told, tokens are moved, the forward is watched."""

from collections import deque
from typing import Any

from minikv.blocks import BlockManager
from minikv.engine.building import Wanted
from minikv.engine.evicting import Evicting, EvictionParams, Note
from minikv.engine.sequence import SequenceId
from minikv.engine.step import Step
from minikv.errors import ArgumentError
from minikv.eviction.paged_checks import check_policy, layers_without_window
from minikv.eviction.paged_evictor import PagedEvictor
from minikv.eviction.paged_observer import PagedObserver
from minikv.eviction.paged_records import SavedRecord
from minikv.eviction.policies import policy_of
from minikv.eviction.policy import Needs
from minikv.models import Adapter


class StepEvictor:
    """``evictor`` driven by steps; ``journal`` is the scheduler's."""

    def __init__(self, evictor: PagedEvictor, journal: deque[Note]):
        self.evictor, self.journal = evictor, journal
        self._kind = next(iter(evictor.layers))
        self._saved: dict[SequenceId, SavedRecord] = {}

    def before_forward(self, step: Step) -> None:
        """Everything that has happened since the last step, then the step's evictions."""
        while self.journal:
            self._tell(self.journal[0])
            self.journal.popleft()
        self.evictor.carry_out(step.evictions)

    def observer(self, step: Step) -> PagedObserver | None:
        """Who looks on while the forward of ``step`` runs."""
        batch, names = step.batch, [item.id for item in step.items]
        gone = [0] * len(names) if batch.evicted is None else batch.evicted[self._kind].tolist()
        lengths = [length - lost for length, lost in zip(batch.lengths.tolist(), gone, strict=True)]
        return self.evictor.observer(names, [len(item.tokens) for item in step.items], lengths, gone)

    def _tell(self, note: Note) -> None:
        records = self.evictor.records
        if note.op == "fork" and note.child is not None:
            records.fork(note.id, note.child)
        elif note.op == "save":
            self._saved[note.id] = records.save(note.id)
        elif note.op == "restore":
            records.restore(note.id, self._saved.pop(note.id))
        elif note.op == "remove" and note.id in records:
            records.remove(note.id)
        else:
            self._saved.pop(note.id, None)  # it lay on the host, and has begun again or ended there
            if note.op == "add":
                records.add(note.id)


def make_evictor(
    cache: Any, manager: BlockManager, params: EvictionParams, wanted: Wanted, ranks: int
) -> PagedEvictor:
    """The device's half of ``params`` on ``cache``. Raises ``ArgumentError`` for what does not go with eviction."""
    if not isinstance(params, EvictionParams):
        raise ArgumentError("eviction_params", kind=type(params).__name__)
    for what, given in (("prompt_lookup", wanted.prompt_lookup > 0), ("tp", ranks > 1)):
        if given:
            raise ArgumentError("eviction_engine", what=what)
    layers, policy = layers_without_window(cache, manager), policy_of(params.policy)
    check_policy(policy, params.tokens, cache, layers, params.scope, "token")
    return PagedEvictor(cache, layers, policy, params.tokens, params.scope)


def make_evicting(
    manager: BlockManager, params: EvictionParams, wanted: Wanted, evictor: PagedEvictor
) -> Evicting:
    """The scheduler's half."""
    looks = evictor.policy.needs & (Needs.PROBS | Needs.WINDOW)
    chunk = min(params.chunk, wanted.max_batched_tokens)
    return Evicting(manager, params.tokens, chunk, shares=not looks)


def check_reads(adapter: Adapter) -> None:
    """Raise ``ArgumentError`` where the model computes attention over copies: its masks count places, not positions."""
    if adapter.reads != "paged":
        raise ArgumentError("eviction_engine", what=f"reads={adapter.reads!r}")
