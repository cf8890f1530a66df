"""TracedLayer: one layer that evicts in the plainest way, and records its scores. Lesson 14.

The probabilities of all query heads are one tensor, so each operation is one line. The layer of
``minikv.eviction.hf.layer`` computes the same from tiles, in place; a test compares the two.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.policy import Needs, Policy, Seen, View
from minikv.eviction.policies.select import select


@dataclass(frozen=True, eq=False)
class TraceRow:
    """A layer after a step: ``positions`` int64 and ``scores`` float32 [H, S] of the tokens that were resident, and the
    positions ``kept`` [H, keep] of the tokens that stay.
    """

    positions: Tensor
    scores: Tensor
    kept: Tensor


class TracedLayer:
    """The policy's state of layer ``layer`` of ``num_layers``, beside its K and V in a transformers cache.

    ``budget.budget`` is this layer's own; ``latent``: it keeps one row a token for all heads.
    """

    def __init__(self, policy: Policy, budget: Budget, scope: str, layer: int, num_layers: int, latent: bool):
        self.policy, self.budget, self.scope = policy, budget, scope
        self.layer, self.num_layers, self.latent = layer, num_layers, latent
        self.read = 0  # tokens, evicted ones included
        self.state = torch.zeros(0)
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.window: Tensor | None = None

    def after(self, kv: Any, probs: Tensor) -> TraceRow:
        """After a forward: observe ``probs`` [1, query heads, T, S], score, and evict from ``kv`` if it is time.

        ``kv``: a DynamicLayer with ``keys`` and ``values`` [1, H, S, D], the T new tokens at their end.
        """
        heads, resident = kv.keys.shape[1:3]
        queries = probs.shape[2]
        probs = probs.float().unflatten(1, (heads, -1))  # [1, H, G, T, S]
        self._grow(heads, queries, probs.device)
        sums = column_sums(self.policy, probs) if Needs.PROBS in self.policy.needs else None
        self.state = self.policy.observe(sums, Seen(self.state, queries, self.positions))
        if Needs.WINDOW in self.policy.needs:
            self._look(probs)
        score = self.policy.score(self._view(kv)).float().expand(1, heads, resident)
        before = self.positions[0]
        if resident >= self.budget.capacity + self.budget.evict_every:
            self._evict(kv, score)
        return TraceRow(before, score[0], self.positions[0])

    def _grow(self, heads: int, queries: int, device: torch.device) -> None:
        """Add the new tokens, with the next positions and without attention so far."""
        new = torch.arange(self.read, self.read + queries, device=device).expand(1, heads, -1)
        if not self.read:
            self.positions, self.state = new[..., :0], torch.zeros(1, heads, 0, device=device)
        self.positions = torch.cat([self.positions, new], -1)
        self.state = functional.pad(self.state, (0, queries))
        self.read += queries

    def _look(self, probs: Tensor) -> None:
        """Keep the probabilities of the last queries: [1, H, G, window, S]."""
        if self.window is not None:
            old = functional.pad(self.window, (0, probs.shape[-1] - self.window.shape[-1]))
            probs = torch.cat([old, probs], 3)
        self.window = probs[:, :, :, -self.policy.window :]

    def _view(self, kv: Any) -> View:
        return View(
            keys=kv.keys,
            values=kv.values,
            state=self.state,
            window_probs=self._window_probs(),
            positions=self.positions,
            valid=torch.ones_like(self.positions[:, 0], dtype=torch.bool),
            layer=self.layer,
            num_layers=self.num_layers,
            latent=self.latent,
        )

    def _window_probs(self) -> Tensor | None:
        """[1, H, S]: the mean over the last queries of all query heads, each normalized over the resident tokens."""
        if self.window is None:
            return None
        return (self.window / self.window.sum(-1, keepdim=True).clamp(min=1e-30)).mean((2, 3))

    def _evict(self, kv: Any, score: Tensor) -> None:
        """Gather the tokens that stay: K, V, and the state."""
        index = select(
            score,
            valid=torch.ones_like(score[:, 0], dtype=torch.bool),
            n_sink=self.budget.n_sink,
            n_recent=self.budget.n_recent,
            budget=self.budget.budget,
            scope=self.scope,
        )
        kv.keys, kv.values = _rows(kv.keys, index), _rows(kv.values, index)
        self.state, self.positions = self.state.gather(-1, index), self.positions.gather(-1, index)
        if self.window is not None:
            across = index[:, :, None, None].expand(*self.window.shape[:4], -1)
            self.window = self.window.gather(-1, across)


def column_sums(policy: Policy, probs: Tensor) -> Tensor:
    """``probs`` [B, H, G, T, S] as one number [B, H, S] a token: over the query heads, then over the queries."""
    weight = policy.query_weight(torch.arange(probs.shape[3] - 1, -1, -1, device=probs.device))
    if weight is not None:
        probs = probs * weight[:, None]
    group = policy.over_group
    joined = probs.amax(2) if group == "max" else probs.mean(2) if group == "mean" else probs.sum(2)
    return joined.amax(2) if policy.over_queries == "max" else joined.sum(2)


def _rows(cached: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` [B, H, keep] of ``cached`` [B, H, S, D], in storage of their own."""
    return cached.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, cached.shape[-1]))
