"""Layered: a budget for each layer, and how to find it. The sum over the layers stays the same. Lesson 14b.

Layers attend to different tokens. In a model that recalls by induction the first layer tells a token what stood before
it, and needs only the last few tokens; the second layer finds the answer, wherever it stands. An old token in the first
layer is wasted, and a policy that chooses *within* a layer cannot know that.

    sizes = dict(budget=16, n_sink=1, n_recent=2)
    budgets = measure_layers(model, tokens, policy=Echo(), **sizes)  # (0, 32) on tiny-gqa
    install_kv_eviction(model, policy=Layered(Echo(), budgets), **sizes)

The cache takes the same bytes in all, but layers hold different numbers of tokens, so they cannot share a block table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.cache import evicting_layers
from minikv.eviction.hf.install import install_kv_eviction
from minikv.eviction.policies.choices import PolicyName, Scope
from minikv.eviction.policies.policy import Policy
from minikv.eviction.policies.sampled import Wrapped
from minikv.models.cache_argument import cache_argument


@dataclass(frozen=True)
class Layered(Wrapped):
    """``policy``, with ``budgets[i]`` heavy hitters in the i-th layer that evicts."""

    budgets: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for layer, budget in enumerate(self.budgets):
            check_count(f"budgets[{layer}]", budget, 0)

    def layer_budgets(self, budget: int, num_layers: int) -> tuple[int, ...]:
        """``budgets``. Raises ``ArgumentError`` unless there is one for each layer and their mean is ``budget``."""
        if len(self.budgets) != num_layers or sum(self.budgets) != budget * num_layers:
            kind, given = type(self.policy).__name__, list(self.budgets)
            raise ArgumentError("eviction_budgets", policy=kind, given=given, total=budget * num_layers)
        return self.budgets


def share_out(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to ``weights`` (>= 0, not all 0) with the sum ``total``: largest remainders."""
    check_count("total", total, 0)
    if not weights or min(weights) < 0 or not sum(weights) > 0:
        raise ArgumentError("eviction_weights", given=list(weights))
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda layer: (whole[layer] - exact[layer], layer))
    for layer in by_remainder[: total - sum(whole)]:
        whole[layer] += 1
    return tuple(whole)


def share_by_score(scores: Sequence[Tensor], *, budget: int, n_sink: int, n_recent: int) -> tuple[int, ...]:
    """Budgets of layers from one threshold over all of them: ``budget`` on average, and at least 0 each.

    ``scores[i]`` [B, H, S] of layer i, in one unit in all layers. Sinks and recent tokens are left out. The best of the
    others, over all rows, heads and layers together, are chosen; a layer's budget is its share of them.

    Raises ``ArgumentError`` where there are fewer tokens to choose from.
    """
    inner = [score.float()[..., n_sink : score.shape[-1] - n_recent].flatten() for score in scores]
    pooled = torch.cat(inner)
    rows = inner[0].numel() // max(1, scores[0].shape[-1] - n_sink - n_recent)
    wanted = budget * len(inner) * rows
    if not 0 < wanted <= len(pooled):
        raise ArgumentError("out_of_range", what="budget", value=budget, low=1, high=len(pooled) // rows)
    best = pooled.topk(wanted).indices
    sizes = torch.tensor([len(part) for part in inner], device=best.device)
    layer = torch.searchsorted(sizes.cumsum(0), best, right=True)
    counts = torch.bincount(layer, minlength=len(inner)).tolist()
    return share_out(budget * len(inner), counts)


@torch.no_grad()
def measure_layers(
    model: Any,
    tokens: Tensor,
    *,
    policy: PolicyName | Policy,
    budget: int,
    n_sink: int = 4,
    n_recent: int = 32,
    scope: Scope = "layer",
) -> tuple[int, ...]:
    """Budgets for ``Layered``, from texts ``tokens`` [B, n] int64 like those that will come: one forward, no eviction.

    ``policy``: one with scores in one unit in all layers, as attention probabilities are; the budgets then do for
    any other policy too. The rest as for ``install_kv_eviction``, which must not be installed yet.

    Raises what ``install_kv_eviction`` raises, and ``ArgumentError`` where the texts have no token to choose from.
    """
    install = partial(
        install_kv_eviction, model, policy=policy, scope=scope, n_sink=n_sink, n_recent=n_recent
    )
    with install(budget=tokens.shape[1]) as eviction:
        cache = eviction.new_cache()
        model(tokens, use_cache=True, **cache_argument(model, cache))
        scores = [eviction.policy.score(layer.view()) for layer in evicting_layers(cache)]
    if scope == "layer":
        scores = [score.mean(1, keepdim=True) for score in scores]
    return share_by_score(scores, budget=budget, n_sink=n_sink, n_recent=n_recent)
