"""Eviction, the device's half of a step: it updates the record, moves tokens, and observes the forward."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.blocks import BlockManager
from minikv.engine.core.sequence import SequenceId
from minikv.engine.core.step import Step
from minikv.engine.ext.eviction import BlockEviction, Eviction, EvictionConfig, Note
from minikv.errors import ArgumentError
from minikv.eviction.paged.eviction import check_policy, layers_without_window
from minikv.eviction.paged.evictor import PagedEvictor, drop_worst_blocks
from minikv.eviction.paged.records import PagedObserver, SavedRecord, fields_of, record_bytes
from minikv.eviction.policies.choices import PerBlock
from minikv.eviction.policies.literature import policy_of
from minikv.eviction.policies.policy import Needs, Policy
from minikv.models import Adapter
from minikv.plan import CacheSpec

if TYPE_CHECKING:
    from minikv.engine.factory import EngineConfig


class EvictionWorker:
    """``evictor`` driven by steps; ``journal`` is that of ``Eviction``. ``per_block``: how a block's score is made."""

    def __init__(self, evictor: PagedEvictor, journal: deque[Note], per_block: PerBlock = "max"):
        self.evictor, self.journal, self.per_block = evictor, journal, per_block
        self._group = next(iter(evictor.layers))
        self._saved: dict[SequenceId, SavedRecord] = {}

    def before_copies(self, step: Step) -> None:
        """Apply the journal since the last step, then the step's evictions.

        A sequence that evicted but found no block is in no item, and may have been aborted since: it is left out.
        """
        self._tell_all()
        records = self.evictor.records
        plans = step.work.get("evictions", ())
        self.evictor.carry_out([plan for plan in plans if plan.seq_id in records])

    def drop_blocks(self, manager: BlockManager, seq_id: SequenceId) -> int:
        """Evict whole blocks now; return how many tokens of ``seq_id`` were evicted."""
        self._tell_all()
        return drop_worst_blocks(self.evictor, manager, seq_id, self.per_block)

    def observer(self, step: Step) -> PagedObserver | None:
        """Return the observer of the forward of ``step``."""
        batch, names = step.batch, [item.id for item in step.items]
        gone = [0] * len(names) if batch.absent is None else batch.absent[self._group].tolist()
        lengths = [length - lost for length, lost in zip(batch.lengths.tolist(), gone, strict=True)]
        return self.evictor.observer(names, [len(item.tokens) for item in step.items], lengths, gone)

    def _tell_all(self) -> None:
        while self.journal:
            self._tell(self.journal[0])
            self.journal.popleft()

    def _tell(self, note: Note) -> None:
        """Apply a note. It stays in the journal until it is done, so an interrupted one can be applied again."""
        records = self.evictor.records
        if note.op == "save":
            if note.id in records:
                self._saved[note.id] = records.copy(note.id)
                records.remove(note.id)
        elif note.op == "restore":
            if note.id in self._saved:
                self._remove(note.id)
                records.restore(note.id, self._saved[note.id])
                del self._saved[note.id]
        elif note.op == "fork" and note.child is not None:
            self._remove(note.child)
            records.fork(note.id, note.child)
        else:
            self._remove(note.id)
            self._saved.pop(note.id, None)  # its record was on the host, and it began again or ended there
            if note.op == "add":
                records.add(note.id)

    def _remove(self, seq_id: SequenceId) -> None:
        if seq_id in self.evictor.records:
            self.evictor.records.remove(seq_id)


@dataclass(frozen=True)
class Reserve:
    """The record's size for ``rows`` sequences of ``places`` tokens, in bytes: the most that an LLM will need."""

    rows: int
    places: int
    num_bytes: int


def reserve(
    spec: CacheSpec,
    params: EvictionConfig,
    wanted: "EngineConfig",
    ranks: int,
    longest: int | None,
    *,
    keeps_prefixes: bool = False,
) -> Reserve:
    """Return the size of the records of ``params`` beside the cache. ``longest``: the most tokens of a sequence.

    ``keeps_prefixes``: a later run uses the prefixes of this one. Raises ``ArgumentError`` for settings that do not go
    with eviction, before there is a cache.
    """
    if not isinstance(params, EvictionConfig):
        raise ArgumentError("eviction_params", kind=type(params).__name__)
    drafts, copies = wanted.prompt_lookup > 0, wanted.reads == "gather"
    for what, given in (("prompt_lookup", drafts), ("tp", ranks > 1), ("reads='gather'", copies)):
        if given:
            raise ArgumentError("eviction_engine", what=what)
    if any(layer.kind == "latent" and layer.itemsize == 1 for layer in spec.layers):
        raise ArgumentError("eviction_latent_dtype", dtype=spec.kv_dtype, name=spec.name)
    policy = policy_of(params.policy)
    if keeps_prefixes and looks_at_attention(policy):
        raise ArgumentError("eviction_prefix_dir", policy=type(policy).__name__)
    most = params.tokens.peak_resident + chunk_of(params, wanted)
    rows, places = wanted.max_num_seqs, most if longest is None else min(most, longest)
    heads = sum(layer.kv_heads for layer in spec.layers if layer.token_bytes and layer.window is None)
    fields = len(fields_of(policy))
    return Reserve(rows, places, record_bytes(heads, fields, rows, places))


def looks_at_attention(policy: Policy) -> bool:
    """Return whether ``policy`` depends on the queries that a token has met; then requests share no prefix."""
    return bool(policy.needs & (Needs.PROBS | Needs.WINDOW))


def chunk_of(params: EvictionConfig, wanted: "EngineConfig") -> int:
    """Return the tokens of a prompt between two evictions; no step computes more."""
    return min(params.chunk, wanted.max_batched_tokens)


def make_evictor(cache: Any, manager: BlockManager, params: EvictionConfig, room: Reserve) -> PagedEvictor:
    """Return the device's half of ``params`` on ``cache``. Raises ``ArgumentError`` for settings without eviction."""
    layers, policy = layers_without_window(cache, manager), policy_of(params.policy)
    check_policy(policy, params.tokens, cache, layers, params.scope, params.unit)
    return PagedEvictor(cache, layers, policy, params.tokens, params.scope, room.rows, room.places)


def make_eviction(params: EvictionConfig, wanted: "EngineConfig", evictor: PagedEvictor) -> Eviction:
    """Return the scheduler's half, with the worker that carries out its plans."""
    kind = Eviction if params.unit == "token" else BlockEviction
    chunk, shares = chunk_of(params, wanted), not looks_at_attention(evictor.policy)
    eviction = kind(params.tokens, chunk, shares=shares)
    eviction.worker = EvictionWorker(evictor, eviction.journal, params.per_block)
    return eviction


def check_reads(adapter: Adapter) -> None:
    """Raise ``ArgumentError`` where the model computes attention over copies: its masks count places, not positions."""
    if adapter.reads != "paged":
        raise ArgumentError("eviction_model_copies", kind=type(adapter.model).__name__)
