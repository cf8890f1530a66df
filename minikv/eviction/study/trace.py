"""trace: a text read under eviction, with every score of the policy and every set that it kept. Lesson 14.

    tokens     t0 … t[p-1]     t[p]     …     t[n-1]
    steps      0               1        …     n - p          one forward each, then an eviction

The plainest way to evict: eager attention returns its probabilities, the policy scores, ``select`` chooses, and the
transformers cache is gathered. The code saves neither memory nor time: it is meant to be read, drawn, and compared with
the tokens that ``install_kv_eviction`` keeps.

    >>> from minikv.models import load, recall_documents
    >>> model = load("tiny-gqa", device="cpu").model
    >>> document = recall_documents(1, facts=6, context=48, queries=5, span=23)[0]
    >>> trace = trace_eviction(model, document.tokens, policy="h2o", prompt=24, budget=8, n_sink=4, n_recent=6)
    >>> trace.kept.shape, trace.capacity, int(trace.kept[0, 0, -1].sum())
    ((2, 2, 49, 72), (18, 18), 18)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from minikv.errors import ArgumentError, check_choice, check_count
from minikv.eviction.hf.attention import ATTRIBUTE
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PolicyName, Scope
from minikv.eviction.policies.echo import refuse_echo
from minikv.eviction.policies.literature import policy_of
from minikv.eviction.policies.policy import Policy
from minikv.eviction.study.trace_layer import TracedLayer, TraceRow
from minikv.models.cache_argument import cache_argument
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.shown import one_line


@dataclass(frozen=True, eq=False)
class EvictionTrace:
    """The scores and kept tokens of an eviction by step: L layers, H KV heads (1 where the cache keeps latents).

    ``tokens`` [n] int64, of which the first ``prompt`` were one forward, step 0; the other steps read one token each.
    ``layers``: the L layers of the model. ``scores`` [L, H, steps, n] float32: the score of each token resident after
    the step's forward, NaN for the others. ``kept`` [L, H, steps, n] bool: resident after the step's eviction.
    ``predicted`` [steps] int64: the token with the largest logit behind the step's last token. ``bytes_held`` [steps]
    int64: the storage of the whole cache, all layers, after the step; ``token_bytes``: the bytes of a token that every
    layer still holds. ``capacity``: of each traced layer.
    """

    tokens: np.ndarray
    prompt: int
    layers: tuple[int, ...]
    scores: np.ndarray
    kept: np.ndarray
    predicted: np.ndarray
    bytes_held: np.ndarray
    token_bytes: int
    budget: Budget
    capacity: tuple[int, ...]
    policy: Policy
    scope: str

    def __repr__(self) -> str:
        kept = f"at most {max(self.capacity):,} kept by {type(self.policy).__name__}"
        sizes = f"{len(self.layers)} layers, {self.heads} heads"
        return one_line("EvictionTrace", "", f"{self.length:,} tokens in {self.steps:,} steps", sizes, kept)

    @property
    def steps(self) -> int:
        """Forwards: the prompt and one for each token behind it."""
        return self.kept.shape[2]

    @property
    def heads(self) -> int:
        """KV heads of a layer; 1 where all heads read one latent."""
        return self.kept.shape[1]

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)


@torch.no_grad()
def trace_eviction(
    model: Any,
    tokens: Sequence[int] | np.ndarray | Tensor,
    *,
    policy: PolicyName | Policy,
    budget: int,
    n_sink: int = 4,
    n_recent: int = 8,
    evict_every: int = 1,
    scope: Scope = "layer",
    prompt: int = 1,
    layers: Sequence[int] | None = None,
) -> EvictionTrace:
    """Read ``tokens`` [n] with ``model`` while ``policy`` evicts; the model's own predictions are not used.

    ``model``: a decoder of transformers in eval mode; all of its layers look at the whole text. ``budget``, ``n_sink``,
    ``n_recent`` and ``evict_every``: see ``Budget``. ``scope``: "layer", all heads keep the same tokens, or "head". The
    first ``prompt`` tokens are one forward. ``layers``: which ones to record (None: all); all layers evict.

    Raises ``ArgumentError`` for tokens outside the model's vocabulary, bad counts and names, a model in training mode,
    with other layers or with eviction installed, and scope "head" on latents, which all heads share. The model is
    unchanged afterwards.
    """
    chosen, plan = policy_of(policy), Budget(n_sink, budget, n_recent, evict_every)
    refuse_echo(chosen)
    ids = _token_ids(model, tokens)
    check_count("prompt", prompt)
    if prompt > len(ids):
        raise ArgumentError("out_of_range", what="prompt", value=prompt, low=0, high=len(ids))
    latent = _latent_layers(model)
    _check_scope(scope, model, latent)
    recorded = _recorded(layers, len(latent))
    budgets = [replace(plan, budget=heavy) for heavy in chosen.layer_budgets(budget, len(latent))]
    traced = [
        TracedLayer(chosen, budgets[layer], scope, layer, len(latent), latent[layer])
        for layer in range(len(latent))
    ]
    rows: list[list[TraceRow]] = []
    predicted, bytes_held = [], []
    token_bytes = 0
    with _eager(model):
        cache = DynamicCache()
        for start, end in [(0, prompt), *((at, at + 1) for at in range(prompt, len(ids)))]:
            out = _forward(model, ids, start, end, cache)
            token_bytes = token_bytes or sum(_row_bytes(kv) for kv in cache.layers)
            rows.append(
                [layer.after(*of) for layer, *of in zip(traced, cache.layers, out.attentions, strict=True)]
            )
            predicted.append(int(out.logits[0, -1].argmax()))
            bytes_held.append(sum(_storage(kv) for kv in cache.layers))
    scores, kept = _tables([[row[layer] for row in rows] for layer in recorded], len(ids))
    return EvictionTrace(
        tokens=ids.cpu().numpy(),
        prompt=prompt,
        layers=recorded,
        scores=scores,
        kept=kept,
        predicted=np.array(predicted, np.int64),
        bytes_held=np.array(bytes_held, np.int64),
        token_bytes=token_bytes,
        budget=plan,
        capacity=tuple(budgets[layer].capacity for layer in recorded),
        policy=chosen,
        scope=scope,
    )


def _tables(rows: list[list[TraceRow]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """``scores`` and ``kept`` [L, H, steps, n] of rows that name their tokens by position."""
    shape = (len(rows), len(rows[0][0].positions), len(rows[0]), length)
    scores, kept = torch.full(shape, torch.nan), torch.zeros(shape, dtype=torch.bool)
    for layer, steps in enumerate(rows):
        for step, row in enumerate(steps):
            scores[layer, :, step].scatter_(-1, row.positions.cpu(), row.scores.cpu())
            kept[layer, :, step].scatter_(-1, row.kept.cpu(), True)
    return scores.numpy(), kept.numpy()


def _row_bytes(kv: Any) -> int:
    """Bytes of one token's K and V in a layer of the cache."""
    return sum(part[:, :, :1].numel() * part.element_size() for part in (kv.keys, kv.values))


def _storage(kv: Any) -> int:
    """Bytes of the storage behind a layer's K and V: a view of a larger one would be counted whole."""
    return kv.keys.untyped_storage().nbytes() + kv.values.untyped_storage().nbytes()


def _recorded(layers: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    recorded = tuple(range(num_layers)) if layers is None else tuple(layers)
    check_count("layers", len(recorded))
    for layer in recorded:
        if layer not in range(num_layers):
            known = ", ".join(str(place) for place in range(num_layers))
            raise ArgumentError("unknown_choice", what="layer", value=layer, known=known)
    return recorded


def _forward(model: Any, ids: Tensor, start: int, end: int, cache: Any) -> Any:
    """The tokens ``start`` to ``end - 1`` at their true positions; with ``attentions``, and the last token's logits."""
    # A single query sees all resident tokens, and layers hold different numbers of them: one zero is a mask for each
    # layer, since it broadcasts. The prompt gets transformers' own causal mask.
    mask = None if start == 0 else torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=ids.device)
    return model(
        ids[None, start:end],
        attention_mask=mask,
        position_ids=torch.arange(start, end, device=ids.device)[None],
        use_cache=True,
        output_attentions=True,
        logits_to_keep=1,
        **cache_argument(model, cache),
    )


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Eager attention, which returns its probabilities; afterwards the model's own again."""
    if not type(model)._can_set_attn_implementation():
        raise ArgumentError("eviction_attention_fixed", kind=type(model).__name__)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def _latent_layers(model: Any) -> list[bool]:
    """Whether each layer keeps one latent a token. Raises unless every layer keeps the whole text."""
    if hasattr(model, ATTRIBUTE):
        raise ArgumentError("trace_installed", kind=type(model).__name__)
    if model.training:
        raise ArgumentError("models_training", kind=type(model).__name__)
    layers = CacheSpec.from_config(model.config).layers
    for place, layer in enumerate(layers):
        if layer.kind not in ("full", "latent") or layer.window is not None:
            raise ArgumentError("trace_layer_kind", layer=place, kind=layer.kind)
    return [layer.kind == "latent" for layer in layers]


def _check_scope(scope: str, model: Any, latent: Sequence[bool]) -> None:
    check_choice("scope", scope, Scope)
    if scope == "head" and any(latent):
        raise ArgumentError("eviction_head_latent", kind=type(model).__name__)


def _token_ids(model: Any, tokens: Any) -> Tensor:
    """``tokens`` as int64 [n] on the model's device, each of them in its vocabulary."""
    ids = np.asarray(tokens.cpu() if isinstance(tokens, Tensor) else tokens)
    if ids.ndim != 1 or not ids.size:
        raise ArgumentError("cache_shape", what="tokens", shape=list(ids.shape), expected="[n]")
    if ids.dtype.kind not in "iu":
        raise ArgumentError("cache_not_whole", what="tokens", value=str(ids.dtype))
    embedding = model.get_input_embeddings()
    last = embedding.num_embeddings - 1
    for token in (int(ids.min()), int(ids.max())):
        if not 0 <= token <= last:
            raise ArgumentError("llm_token", token=token, last=last)
    return torch.from_numpy(ids.astype(np.int64)).to(embedding.weight.device)
