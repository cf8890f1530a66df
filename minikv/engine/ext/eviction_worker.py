"""Eviction, the device's half of a step: it updates the record, moves tokens, and observes the forward."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.blocks import BlockManager
from minikv.engine.core.sequence import SequenceId
from minikv.engine.core.step import Step
from minikv.engine.ext.eviction import BlockEviction, Eviction, EvictionConfig, SequenceEvent
from minikv.errors import ArgumentError
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.paged.asking import query_bytes
from minikv.eviction.paged.eviction import check_policy, fitted_policy, layers_without_window
from minikv.eviction.paged.records import PagedObserver, SavedRecord, fields_of, record_bytes
from minikv.eviction.paged.runner import EvictionRunner, drop_worst_blocks
from minikv.eviction.policies.choices import PerBlock
from minikv.eviction.policies.literature import policy_of
from minikv.eviction.policies.policy import Needs, Policy
from minikv.models import Adapter
from minikv.plan import CacheSpec

if TYPE_CHECKING:
    from minikv.engine.factory import EngineConfig


class EvictionWorker:
    """``runner`` driven by steps; ``event_log`` is that of ``Eviction``. ``per_block``: how a block's score is made."""

    def __init__(self, runner: EvictionRunner, event_log: deque[SequenceEvent], per_block: PerBlock = "max"):
        self.runner, self.event_log, self.per_block = runner, event_log, per_block
        self._group = next(iter(runner.layers))
        self._saved: dict[SequenceId, SavedRecord] = {}

    def before_copies(self, step: Step) -> None:
        """Apply the events since the last step, then the step's evictions.

        A sequence that evicted but found no block is in no item, and may have been aborted since: it is left out.
        """
        self._apply_events()
        records = self.runner.records
        plans = step.work.get("evictions", ())
        self.runner.carry_out([plan for plan in plans if plan.seq_id in records])

    def drop_blocks(self, manager: BlockManager, seq_id: SequenceId) -> int:
        """Evict whole blocks now; return how many tokens of ``seq_id`` were evicted."""
        self._apply_events()
        return drop_worst_blocks(self.runner, manager, seq_id, self.per_block)

    def observer(self, step: Step) -> PagedObserver | None:
        """Return the observer of the forward of ``step``."""
        batch, names = step.batch, [item.id for item in step.items]
        gone = [0] * len(names) if batch.absent is None else batch.absent[self._group].tolist()
        lengths = [length - lost for length, lost in zip(batch.lengths.tolist(), gone, strict=True)]
        return self.runner.observer(names, [len(item.tokens) for item in step.items], lengths, gone)

    def _apply_events(self) -> None:
        while self.event_log:
            self._apply(self.event_log[0])
            self.event_log.popleft()

    def _apply(self, event: SequenceEvent) -> None:
        """Apply an event. It stays in the log until it is done, so an interrupted one can be applied again."""
        records = self.runner.records
        if event.op == "save":
            if event.id in records:
                self._saved[event.id] = records.copy(event.id)
                records.remove(event.id)
        elif event.op == "restore":
            if event.id in self._saved:
                self._remove(event.id)
                records.restore(event.id, self._saved[event.id])
                del self._saved[event.id]
        elif event.op == "fork" and event.child is not None:
            self._remove(event.child)
            records.fork(event.id, event.child)
        else:
            self._remove(event.id)
            self._saved.pop(event.id, None)  # its record was on the host, and it began again or ended there
            if event.op == "add":
                records.add(event.id)

    def _remove(self, seq_id: SequenceId) -> None:
        if seq_id in self.runner.records:
            self.runner.records.remove(seq_id)


@dataclass(frozen=True)
class Reserve:
    """The record's size for ``rows`` sequences of ``places`` tokens, in bytes: the most that an LLM will need.

    ``policy`` is the one fitted to the model, ``turning`` the rotary embedding by which it turns queries.
    """

    rows: int
    places: int
    num_bytes: int
    policy: Policy
    turning: Rotary | None


def reserve(
    model: Any,
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
    policy, turning = fitted_policy(policy, model, spec, params.tokens, params.scope)
    most = params.tokens.peak_resident + chunk_of(params, wanted, policy)
    rows, places = wanted.max_num_seqs, most if longest is None else min(most, longest)
    full = [layer for layer in spec.layers if layer.token_bytes and layer.window is None]
    num_bytes = record_bytes(sum(layer.kv_heads for layer in full), len(fields_of(policy)), rows, places)
    if policy.needs & Needs.QUERIES:
        query_heads = model.config.get_text_config(decoder=True).num_attention_heads
        if Needs.ECHO in policy.needs:  # it keeps a query of each layer that reads these K and V
            read = [spec.layers[layer.reads_layer] for layer in spec.layers if layer.reads_layer is not None]
            full += [layer for layer in read if layer.window is None]
        dims = [layer.k_dim + layer.v_dim * (layer.kind == "latent") for layer in full]
        num_bytes += rows * query_heads * sum(query_bytes(policy, dim) for dim in dims)
    return Reserve(rows, places, num_bytes, policy, turning)


def looks_at_attention(policy: Policy) -> bool:
    """Return whether ``policy`` depends on the queries that a token has met; then requests share no prefix."""
    return bool(policy.needs & Needs.ATTENTION)


def chunk_of(params: EvictionConfig, wanted: "EngineConfig", policy: Policy) -> int:
    """Return the tokens of a prompt between two evictions; no step computes more.

    Pieces that have to be whole leave a token for every other sequence of a step.
    """
    others = wanted.max_num_seqs - 1 if in_pieces(policy) else 0
    return min(params.chunk, max(1, wanted.max_batched_tokens - others))


def in_pieces(policy: Policy) -> bool:
    """Return whether the score of a token depends on which others are computed with it."""
    return Needs.ECHO in policy.needs


def make_eviction_runner(
    cache: Any, manager: BlockManager, params: EvictionConfig, room: Reserve
) -> EvictionRunner:
    """Return the device's half of ``params`` on ``cache``. Raises ``ArgumentError`` for settings without eviction."""
    layers, policy = layers_without_window(cache, manager), room.policy
    check_policy(policy, params.tokens, cache, layers, params.scope, params.unit)
    sizes = room.rows, room.places, room.turning
    return EvictionRunner(cache, layers, policy, params.tokens, params.scope, *sizes)


def make_eviction(params: EvictionConfig, wanted: "EngineConfig", runner: EvictionRunner) -> Eviction:
    """Return the scheduler's half, with the worker that carries out its plans."""
    kind = Eviction if params.unit == "token" else BlockEviction
    policy = runner.policy
    chunk, shares = chunk_of(params, wanted, policy), not looks_at_attention(policy)
    pieces = wanted.max_batched_tokens if in_pieces(policy) else None
    eviction = kind(params.tokens, chunk, shares=shares, step_tokens=pieces)
    eviction.worker = EvictionWorker(runner, eviction.event_log, params.per_block)
    return eviction


def check_reads(adapter: Adapter) -> None:
    """Raise ``ArgumentError`` where the model computes attention over copies: its masks count places, not positions."""
    if adapter.reads != "paged":
        raise ArgumentError("eviction_model_copies", kind=type(adapter.model).__name__)
