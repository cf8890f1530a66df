"""The bytes and FLOPs of one step of a mixed batch, of prefill chunks and of decodes, on one rank.

Write s for the tokens of a chunk that begins at position a and ends before position e, and n for the tokens that a
decode sees, itself included:

    weights     every matrix once for the whole step, but only experts that some token is routed to
    products    2 * parameters for each token; the lm_head only for the last token of an item
    attention   a decode attends to n cached tokens, the queries of a chunk to a + 1, a + 2, ..., e of them (causal)
    cache       a decode reads n tokens, a chunk e: once, however many queries it has

In a layer with a window w no query attends to more than w tokens. Norms, softmax, activations and the few bytes written
are left out. ``roofline.decode_work`` is the same count for decodes of equal length.

MLA has two ways to the same result (DeepSeek-V2, 2024, section 2.1). Absorbed, a query attends to the latent itself;
every decode is counted so. Expanded, a query attends to K and V of each head. That costs less a pair, but the latents
before the chunk are multiplied with kv_b_proj again. A chunk takes the way with fewer FLOPs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minikv.errors import ConfigError, check_count
from minikv.plan.activations import routed_experts
from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.spec.cache_spec import CacheSpec, model_dtype_of
from minikv.plan.spec.config import Config, read_config
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.weights.weight_bytes import weight_list

_ATTENDING = ("full", "sliding", "chunked", "latent")  # layers with attention that is counted here
REDUCES = 2  # all-reduces of a layer: behind the attention and behind the MLP (Shoeybi et al. 2019)


@dataclass(frozen=True)
class AttentionCost:
    """The attention of all layers with the same ``window`` (None: none), on one rank.

    ``pair_flops`` are the FLOPs of a query with a cached token, ``token_bytes`` the bytes of a cached token. For
    latents, ``expanded_flops`` are those of a pair after expanding, ``expand_flops`` those of expanding one latent.
    """

    window: int | None
    pair_flops: int
    token_bytes: int
    expanded_flops: int | None = None
    expand_flops: int = 0

    def seen(self, context: int) -> int:
        """Tokens that a query attends to, given the ``context`` tokens up to itself: at most the window."""
        return context if self.window is None else min(context, self.window)

    def pairs(self, start: int, end: int) -> int:
        """Pairs of a query at a position from ``start`` to ``end - 1`` and a token that it attends to."""
        window = self.window
        if window is None or end <= window:
            return (end * (end + 1) - start * (start + 1)) // 2
        inside = max(start, window)  # from here on a query attends to a whole window
        head = (inside * (inside + 1) - start * (start + 1)) // 2
        return head + (end - inside) * window

    def saved(self, start: int, end: int) -> int:
        """FLOPs that a chunk of these positions saves by expanding the latents; 0 where absorbing is cheaper."""
        if self.expanded_flops is None:
            return 0
        less = self.pairs(start, end) * (self.pair_flops - self.expanded_flops)
        return max(0, less - start * self.expand_flops)

    def read(self, start: int, end: int) -> int:
        """Cached tokens that a chunk of these positions reads, its own included."""
        return end if self.window is None else min(end, self.window - 1 + end - start)


@dataclass(frozen=True)
class StepWork:
    """One step on one rank: ``tokens`` go through the model, and ``rows`` of them through the lm_head.

    ``reduced_bytes`` are each rank's bytes in the step's all-reduces: 0 for one rank.
    """

    tokens: int
    rows: int
    weight_bytes: int
    cache_bytes: int
    weight_flops: int
    attention_flops: int
    reduced_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes

    @property
    def flops(self) -> int:
        return self.weight_flops + self.attention_flops


@dataclass(frozen=True)
class StepCost:
    """The costs of a token, a row of logits and a cached token on one of ``tp`` ranks; ``step_cost`` makes it.

    ``dense_bytes`` are read in every step, ``expert_bytes`` in part (``experts_touched``). ``token_flops``: products
    with weight matrices for one token, without the lm_head; ``row_flops``: the lm_head's. ``reduce_bytes``: those of
    a token in all all-reduces.
    """

    name: str
    tp: int
    dense_bytes: int
    expert_bytes: int
    num_experts: int
    top_k: int
    token_flops: int
    row_flops: int
    attention: tuple[AttentionCost, ...]
    reduce_bytes: int

    def weight_bytes(self, tokens: int) -> int:
        """Bytes of weights that a step of ``tokens`` tokens reads, assuming uniform routing."""
        if not self.expert_bytes:
            return self.dense_bytes
        touched = experts_touched(self.num_experts, self.top_k, tokens) / self.num_experts
        return self.dense_bytes + int(self.expert_bytes * touched)

    def work(self, prefill: Iterable[tuple[int, int]] = (), decode: Iterable[int] = ()) -> StepWork:
        """A step of chunks (start, end) and of decodes, each given by the tokens that it sees, itself included.

        Every item counts with one row of logits.
        """
        chunks, contexts = list(prefill), list(decode)
        tokens = len(contexts) + sum(end - start for start, end in chunks)
        pairs = [
            sum(map(each.seen, contexts)) + sum(each.pairs(*chunk) for chunk in chunks)
            for each in self.attention
        ]
        read = [
            sum(map(each.seen, contexts)) + sum(each.read(*chunk) for chunk in chunks)
            for each in self.attention
        ]
        work = self.counted(tokens, len(contexts) + len(chunks), pairs, read)
        saved = sum(each.saved(*chunk) for each in self.attention for chunk in chunks)
        return replace(work, attention_flops=work.attention_flops - saved) if saved else work

    def counted(self, tokens: int, rows: int, pairs: Iterable[int], read: Iterable[int]) -> StepWork:
        """A step from its counts: ``pairs`` and ``read`` tokens, one number for each of ``attention``; all absorbed."""
        flops = sum(each.pair_flops * count for each, count in zip(self.attention, pairs, strict=True))
        cache = sum(each.token_bytes * count for each, count in zip(self.attention, read, strict=True))
        products = tokens * self.token_flops + rows * self.row_flops
        return StepWork(
            tokens, rows, self.weight_bytes(tokens), cache, products, flops, tokens * self.reduce_bytes
        )


def experts_touched(num_experts: int, top_k: int, batch: int) -> float:
    """The number of experts that a step of ``batch`` tokens uses on average, if routing is uniform.

    A token misses an expert with probability 1 - top_k / num_experts, and tokens are independent.
    """
    return num_experts * (1 - (1 - top_k / num_experts) ** batch)


def step_cost(
    config: Any, *, tp: int = 1, kv_dtype: str | None = None, weight_bytes: int | None = None
) -> StepCost:
    """The costs of a model on one of ``tp`` ranks. ``config`` and ``kv_dtype``: as for ``CacheSpec.from_config``.

    Weights are in the checkpoint's dtype; an untied embedding is not read. ``weight_bytes`` are those of one rank where
    the weights are stored otherwise; each matrix gets its share. Heads are divided over the ranks, rounded up.
    Raises ``ConfigError`` ("roofline_unknown") for layers with attention that is not counted here (recurrent, cross,
    sparse), and what ``weight_list`` raises.
    """
    check_count("tp", tp)
    if weight_bytes is not None:
        check_count("weight_bytes", weight_bytes)
    reader = read_config(config)
    spec = CacheSpec.from_config(config, tp=tp, kv_dtype=kv_dtype)
    unknown = [layer for layer in spec.layers if layer.kind not in _ATTENDING or layer.top_k is not None]
    if unknown:
        kind = "sparse" if unknown[0].kind in _ATTENDING else unknown[0].kind
        raise ConfigError("roofline_unknown", name=spec.name, kind=kind, known=", ".join(_ATTENDING))
    heads = -(-reader.count("num_attention_heads") // tp)
    weights, (num_experts, top_k) = weight_list(config, tp=tp), routed_experts(reader)
    tied = not any(weight.kind == "lm_head" for weight in weights)
    dense = [weight for weight in weights if weight.kind != "expert" and (tied or weight.kind != "embedding")]
    experts = [weight for weight in weights if weight.kind == "expert"]
    # Vectors (norms, biases) are no matrix products; a token uses top_k of the experts.
    matrices = [weight for weight in dense if len(weight.shape) > 1]
    row = sum(2 * weight.num_parameters for weight in matrices if weight.kind in ("lm_head", "embedding"))
    token = sum(2 * weight.num_parameters for weight in matrices) - row
    if experts:
        token += sum(2 * weight.num_parameters for weight in experts) * top_k // num_experts
    itemsize = find_kv_dtype(model_dtype_of(reader, [])).itemsize
    whole = sum(weight.bytes for weight in weights)
    stored = whole if weight_bytes is None else weight_bytes
    reduced = REDUCES * len(spec.layers) * reader.count("hidden_size") * itemsize if tp > 1 else 0
    return StepCost(
        name=spec.name,
        tp=tp,
        dense_bytes=sum(weight.bytes for weight in dense) * stored // whole,
        expert_bytes=sum(weight.bytes for weight in experts) * stored // whole,
        num_experts=num_experts,
        top_k=top_k,
        token_flops=token,
        row_flops=row,
        attention=_attention(spec, heads, reader),
        reduce_bytes=reduced,
    )


def _attention(spec: CacheSpec, heads: int, reader: Config) -> tuple[AttentionCost, ...]:
    """One entry for each window."""
    if all(layer.kind == "latent" for layer in spec.layers):
        return (_latent_attention(spec.layers, heads, reader),)
    costs: dict[int | None, tuple[int, int]] = {}
    for layer in spec.layers:
        flops, num_bytes = costs.get(layer.window, (0, 0))
        costs[layer.window] = (flops + _pair_flops(layer, heads), num_bytes + layer.token_bytes)
    return tuple(AttentionCost(window, *cost) for window, cost in costs.items())


def _latent_attention(layers: Sequence[LayerSpec], heads: int, reader: Config) -> AttentionCost:
    """All layers of MLA, which have no windows."""
    nope, value = reader.count("qk_nope_head_dim"), reader.count("v_head_dim")
    expanded = 2 * heads * (nope + reader.count("qk_rope_head_dim") + value)
    return AttentionCost(
        window=None,
        pair_flops=sum(_pair_flops(layer, heads) for layer in layers),
        token_bytes=sum(layer.token_bytes for layer in layers),
        expanded_flops=len(layers) * expanded,
        expand_flops=sum(2 * heads * layer.k_dim * (nope + value) for layer in layers),
    )


def _pair_flops(layer: LayerSpec, heads: int) -> int:
    """FLOPs of one layer's attention for one query token and one cached token, all heads."""
    if layer.kind == "latent":  # scores over latent and rope key, values from the latent
        return 2 * heads * (layer.k_dim + layer.v_dim + layer.k_dim)
    return 2 * heads * (layer.k_dim + layer.v_dim)
