"""EvictingLayer: a cache layer of transformers that evicts. Lessons 14 and 15b.

``get_seq_length`` counts every token that the layer has seen, so a model goes on with true positions; ``resident``
counts those that it still has. An attention function appends with ``update``, passes its probabilities to ``observe``
and ends with ``evict``; the storage then shrinks to the kept tokens.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from minikv.errors import ArgumentError
from minikv.eviction.hf.buffers import TokenBuffers, take
from minikv.eviction.hf.rules import LayerRules, Record
from minikv.eviction.policies.mean_key import MeanKey, key_lengths
from minikv.eviction.policies.policy import Needs, Seen, View
from minikv.eviction.policies.select import few_worst, select

# The checks of an EvictingLayer, before anything in it changes.


def check_update(layer: Any, key_states: Tensor, value_states: Tensor) -> None:
    """Raise ``ArgumentError`` for states [B, H, T, D] that cannot join those that ``layer`` holds."""
    number = layer.rules.layer
    if key_states.requires_grad or value_states.requires_grad:
        raise ArgumentError("eviction_grad", layer=number)
    if (layer.padded or layer.rules.rotary is not None) and not layer.announced:
        # Without an install the model would mask and rotate as if no token had been evicted.
        raise ArgumentError("eviction_not_announced", layer=number)
    if layer.keys is None:
        return
    held = layer.keys, layer.values
    given = key_states, value_states
    if len(held[0]) != len(given[0]):
        raise ArgumentError("eviction_batch", layer=number, have=len(held[0]), given=len(given[0]))
    if held[0].device != given[0].device:
        was, now = str(held[0].device), str(given[0].device)
        raise ArgumentError("eviction_device", layer=number, have=was, given=now)
    for old, new in zip(map(_kind, held), map(_kind, given), strict=True):
        if old != new:
            raise ArgumentError("eviction_states", layer=number, have=old, given=new)


def check_score(score: Tensor, shape: tuple[int, int, int]) -> None:
    """Raise ``ArgumentError`` unless a policy's ``score`` is [B, H, S] or [B, 1, S] of ``shape``."""
    if score.dim() != 3 or score.shape[1] not in (1, shape[1]) or score.shape[::2] != shape[::2]:
        raise ArgumentError("cache_shape", what="score", shape=list(score.shape), expected=list(shape))


def _kind(states: Tensor) -> str:
    """Heads, dimensions and dtype."""
    return f"{states.shape[1]} x {states.shape[3]} {states.dtype}"


# Places: where the columns of a padded batch stand in their rows' texts.


class Places:
    """Counts the columns of padding of each row: a token's place is its column minus their number."""

    def __init__(self, batch: int, device: torch.device):
        self._padding = torch.zeros(batch, dtype=torch.int64, device=device)

    def next(self, first: int, count: int, valid: Tensor | None) -> Tensor:
        """[B, count] int64: the places of the columns from ``first`` on, -1 for padding, which is counted.

        ``valid`` [B, count] bool: False for padding; None: there is none.
        """
        columns = torch.arange(first, first + count, device=self._padding.device)
        if valid is None:
            return columns - self._padding[:, None]
        valid = valid.to(self._padding.device)
        padding = self._padding[:, None] + (~valid).cumsum(-1)
        self._padding = padding[:, -1]
        return (columns - padding).masked_fill(~valid, -1)

    def rows(self, index: Tensor) -> None:
        """Keep the rows ``index`` of the batch, in that order."""
        self._padding = self._padding[index]


# forget: evicts a layer's tokens by their scores, down to its capacity, and counts it in the record.
#
# In a decode step the few worst go and the last tokens take their slots: it costs the copy of a few tokens. After a
# prompt, or where slots have to lie in order, the kept tokens are gathered into new storage.


def forget(layer: Any, score: Tensor) -> None:
    """Let ``layer`` keep its sinks, its recent window and the best of ``score`` [B, H or 1, S]."""
    budget, rules, record = layer.rules.budget, layer.rules, layer.record
    shape = (*layer.keys.shape[:2], layer.resident)
    check_score(score, shape)
    extra = layer.resident - budget.capacity
    if layer.new == 1 and extra <= budget.evict_every and not rules.in_order:
        _drop_worst(layer, score, extra)
    else:
        places = None if layer.in_order else layer.positions
        options = {"n_sink": budget.n_sink, "n_recent": budget.n_recent, "budget": budget.budget}
        scored = score.expand(shape)
        layer.compact(select(scored, valid=layer.valid, scope=rules.scope, positions=places, **options))
    record.evictions += 1
    record.dropped += extra
    if budget.n_sink == 0:
        gone = ~(layer.positions == 0).any(-1).all()
        record.first_gone = gone | record.first_gone


def _drop_worst(layer: Any, score: Tensor, extra: int) -> None:
    budget, places = layer.rules.budget, layer.positions
    kept = {"n_sink": budget.n_sink, "n_recent": budget.n_recent}
    dropped = few_worst(score, places, extra, scope=layer.rules.scope, **kept)
    dropped = dropped.expand(*layer.keys.shape[:2], extra)
    ages = places.amax(-1, keepdim=True) - take(places, dropped)
    layer.record.dropped_few(ages, budget.n_recent + budget.evict_every, score)
    layer.drop(dropped)


class EvictingLayer(CacheLayerMixin):
    """Keys [B, H, S, Dk] and values [B, H, S, Dv] of the resident tokens; on MLA latents and their rope part, H = 1.

    The first ``update`` makes all tensors, on its device and for its batch; after ``reset`` the next one does.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False
    keys: Any
    values: Any
    cumulative_length: int
    new: int  # tokens of the last update
    padded: bool  # whether any token was padding
    pending: bool  # whether an update waits for its evict
    coming: Tensor | None  # [B, T]: which of the next tokens are no padding
    announced: bool  # whether ``expect`` has set ``coming``
    queries: tuple[Tensor, Tensor] | None  # the last ones [B, Hq, W, D], and their places [B, W]
    _tokens: TokenBuffers | None
    _counter: Places
    _mean: MeanKey
    _since: Tensor | int  # the place of the first query that the state knows of
    in_order: bool  # whether the slots are in the order of the positions

    def __init__(self, rules: LayerRules, record: Record | None = None):
        super().__init__()
        self.rules = rules
        self.record = Record() if record is None else record
        self.paused = False
        self._clear()

    # The interface of transformers

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty buffers of the dtype, device, batch and heads of these tensors."""
        batch, heads = key_states.shape[:2]
        self.dtype, self.device = key_states.dtype, key_states.device
        shared = 1 if self.rules.scope == "layer" else heads
        empty = {
            "keys": key_states.new_empty(batch, heads, 0, key_states.shape[-1]),
            "values": value_states.new_empty(batch, heads, 0, value_states.shape[-1]),
            "positions": key_states.new_empty(batch, shared, 0, dtype=torch.int64),
        }
        if self.rules.keeps_state:
            empty["state"] = key_states.new_empty(batch, heads, 0, dtype=torch.float32)
        if self.rules.needs(Needs.LENGTHS):
            empty["lengths"] = key_states.new_empty(batch, heads, 0, dtype=torch.float32)
        self._tokens = TokenBuffers(empty)
        self._counter = Places(batch, self.device)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append tokens [B, H, T, D]; returns K and V [B, H, S, D] of all resident tokens, the new ones at the end.

        The tensors are views of the storage, good until the next eviction. Raises ``ArgumentError`` for another batch,
        device, dtype or shape than the resident tokens', for tensors that autograd follows, and for a text with padding
        or places counted anew in a model that has no eviction installed any more.
        """
        check_update(self, key_states, value_states)
        if self._tokens is None:
            self.lazy_initialization(key_states, value_states)
        self._make_writable()
        new = key_states.shape[2]
        places = self._counter.next(self.cumulative_length, new, self.coming)
        added = {"keys": key_states, "values": value_states, "positions": places.unsqueeze(1)}
        if self.rules.rotary is not None:
            turned = "values" if self.rules.latent else "keys"
            held = self.valid.sum(-1, keepdim=True) if self.resident else 0
            added[turned] = self.rules.rotary.off(added[turned], places >= 0, held)
        if self.rules.needs(Needs.LENGTHS):
            added["lengths"] = key_lengths(added["keys"], places >= 0 if self.padded else None)
            self._mean.came(added["keys"], added["lengths"])
        self._store.append(added, self.rules.budget.peak_resident + 1)
        self.cumulative_length += new
        self.new, self.pending, self.coming, self.announced = new, True, None, False
        self.record.forwards += 1
        self._publish()
        return self._turned()

    def get_seq_length(self) -> int:
        """Tokens seen so far, evicted ones and padding included: where the next token stands."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that a forward of ``query_length`` tokens will see, the tokens that are no longer there)."""
        return self.resident + query_length, self.cumulative_length - self.resident

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name in older releases of transformers

    def reset(self) -> None:
        """Forget all tokens and scores; the next ``update`` may bring another batch, on another device."""
        self._clear()
        self.record.clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Raise ``ArgumentError`` unless there is nothing to remove: evicted tokens cannot come back."""
        if tokens_to_remove:
            raise ArgumentError("eviction_crop", layer=self.rules.layer, count=abs(tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by the former row ``beam_idx[i]``."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, one behind the other."""
        if self._tokens is not None:
            rows = torch.arange(len(self.keys), device=self.device).repeat_interleave(repeats)
            self.batch_select_indices(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order. ``indices``: int64, or bool [B]."""
        if self._tokens is None:
            return
        rows = indices.to(self.device)
        self._tokens.for_rows(lambda tensor: tensor[rows])
        self._counter.rows(rows)
        self._mean.rows(rows)
        self._since = self._since if isinstance(self._since, int) else self._since[rows]
        if self.queries is not None:
            self.queries = (self.queries[0][rows], self.queries[1][rows])
        self._publish()

    # The resident tokens

    @property
    def resident(self) -> int:
        """Tokens that the layer has, padding included."""
        return 0 if self._tokens is None else self._tokens.length

    @property
    def positions(self) -> Tensor:
        """[B, H or 1, S] int64: the resident tokens' places in their texts, from 0; -1 for padding."""
        return self._store["positions"]

    @property
    def state(self) -> Tensor | None:
        """[B, H, S] float32, a view: the policy's state; None if it has none."""
        return self._store["state"] if self.rules.keeps_state else None

    @property
    def valid(self) -> Tensor:
        """[B, S] bool: False for padding. The same for all heads: padding goes first, as many columns in each."""
        return self.positions[:, 0] >= 0

    @property
    def storage_bytes(self) -> int:
        """Bytes of the storage behind keys, values, positions and state, unused room included."""
        return 0 if self._tokens is None else self._tokens.nbytes

    @property
    def due(self) -> bool:
        """Whether ``evict`` would drop tokens."""
        phase = self.rules.when == "always" or self.new > 1
        return phase and not self.paused and self.resident > self.rules.budget.peak_resident

    @property
    def mean_key(self) -> Tensor | None:
        """[B, H, D] float32: see ``View``; None if the policy needs none."""
        if not self.rules.needs(Needs.MEAN_KEY):
            return None
        if self._mean.sum is not None:
            return self._mean.sum.direction
        keep = self.new == 1 and not self.rules.in_order
        return self._mean.direction(self.keys, self._store["lengths"], self.valid, keep=keep)

    def view(self, window_probs: Tensor | None = None, along_mean: Tensor | None = None) -> View:
        """The ``View`` that a policy scores."""
        shape = (*self.keys.shape[:2], self.resident)
        state = self.state
        return View(
            keys=self.keys,
            values=self.values,
            state=torch.zeros((), device=self.device).expand(shape) if state is None else state,
            window_probs=window_probs,
            positions=self.positions.expand(shape),
            valid=self.valid,
            layer=self.rules.layer,
            num_layers=self.rules.num_layers,
            latent=self.rules.latent,
            since=self._since,
            lengths=self._store["lengths"] if self.rules.needs(Needs.LENGTHS) else None,
            mean_key=self.mean_key,
            along_mean=along_mean,
        )

    # The steps of a forward

    def expect(self, valid: Tensor | None) -> None:
        """Set the padding of the next ``update``: ``valid`` [B, T] bool, False for padding; None: no padding."""
        self.coming, self.announced = valid, True
        self.padded = self.padded or valid is not None

    def observe(self, sums: Tensor) -> None:
        """Let the policy see the probabilities of this forward, reduced to ``sums`` [B, H, S] float32."""
        state = self._store["state"]
        after = self.rules.policy.observe(sums, Seen(state, self.new, self.positions.expand_as(state)))
        if after is not state:
            state.copy_(after)
            self.record.observed += 1

    def forget_scores(self) -> None:
        """Set the state of all resident tokens to zero, and forget the last queries."""
        self.queries = None
        if self._tokens is not None and self.state is not None:
            self._make_writable()
            self.state.zero_()
            self._since = self.positions[:, :1].amax(-1, keepdim=True) + 1

    def evict(self, window_probs: Tensor | None = None, along_mean: Tensor | None = None) -> None:
        """Drop the tokens above the capacity if an eviction is due; end the forward.

        ``window_probs``, ``along_mean``: see ``View``.
        """
        self.pending = False
        if self.due:
            forget(self, self.rules.policy.score(self.view(window_probs, along_mean)))
        self.record.peak_resident = max(self.record.peak_resident, self.resident)

    def compact(self, index: Tensor) -> None:
        """Keep the slots ``index`` [B, H, keep] int64, in that order; the storage shrinks."""
        self._store.compact(index, self.rules.budget.peak_resident + 1)
        self._mean.forget()
        self._publish()

    def drop(self, dropped: Tensor) -> None:
        """Free the slots ``dropped`` [B, H, n] int64; the last tokens take them, and nothing else moves."""
        if self._mean.sum is not None:
            self._mean.went(*(take(self._store[name], dropped) for name in ("keys", "lengths")))
        self._store.drop(dropped)
        self.in_order = False
        self._publish()

    # Inside

    @property
    def _store(self) -> TokenBuffers:
        if self._tokens is None:
            raise ArgumentError("eviction_empty_layer", layer=self.rules.layer)
        return self._tokens

    def _clear(self) -> None:
        self._tokens = None
        self._mean, self._since = MeanKey(), 0
        self.in_order = True
        self.keys = self.values = self.coming = self.queries = None
        self.is_initialized = self.padded = self.pending = self.announced = False
        self.cumulative_length = self.new = 0

    def _make_writable(self) -> None:
        """Tensors made under ``inference_mode`` cannot be written to outside it: go on with copies."""
        if self.keys is not None and self.keys.is_inference() and not torch.is_inference_mode_enabled():
            self._store.for_rows(torch.clone)

    def _publish(self) -> None:
        """Set the attributes that transformers reads of a layer."""
        self.keys, self.values = self._store["keys"], self._store["values"]

    def _turned(self) -> tuple[Tensor, Tensor]:
        """K and V with the rotated one of them at the places 0, 1, ... of the resident tokens."""
        rotary = self.rules.rotary
        if rotary is None:
            return self.keys, self.values
        if self.rules.latent:
            return self.keys, rotary.on(self.values, self.valid)
        return rotary.on(self.keys, self.valid), self.values
