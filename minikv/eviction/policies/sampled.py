"""Sampled: keep a few ordinary tokens beside the ones that matter. Lesson 14.

The probabilities of a softmax add up to 1. Where only answers have been kept, a query that looks for none of them still
finds one, and the model says cities where it should go on with its sentence: recall stays whole, and the perplexity of
all other words grows up to tenfold. A few tokens drawn at random take that probability back. They also take room from
the answers, so this is for budgets that are tight, not for those that are too small.

    install_kv_eviction(model, policy=Sampled(KeyDiff(), count=8), budget=32)
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import Scope
from minikv.eviction.policies.literature import Random
from minikv.eviction.policies.policy import Needs, Policy, Seen, View


@dataclass(frozen=True)
class Wrapped(Policy):
    """``policy`` behind every method that a subclass does not change."""

    policy: Policy

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise ArgumentError("eviction_not_a_policy", kind=type(self.policy).__name__)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The policy's."""
        return self.policy.needs

    @property
    def over_queries(self) -> str:
        """The policy's."""
        return self.policy.over_queries

    @property
    def over_group(self) -> str:
        """The policy's."""
        return self.policy.over_group

    @property
    def window(self) -> int:
        """The policy's."""
        return self.policy.window

    @property
    def echo_shift(self) -> int:
        """The policy's."""
        return self.policy.echo_shift

    @property
    def echo_keys(self) -> int:
        """The policy's."""
        return self.policy.echo_keys

    @property
    def expected_over(self) -> int:
        """The policy's."""
        return self.policy.expected_over

    def query_weight(self, age: Tensor) -> Tensor | None:
        """The policy's."""
        return self.policy.query_weight(age)

    def score(self, view: View) -> Tensor:
        """The policy's."""
        return self.policy.score(view)

    def observe(self, sums: Tensor | None, seen: Seen) -> Tensor:
        """The policy's."""
        return self.policy.observe(sums, seen)

    def fitted(self, model: Any, plan: Budget, scope: Scope) -> Policy:
        """Itself, with the policy fitted."""
        return replace(self, policy=self.policy.fitted(model, plan, scope))

    def layer_budgets(self, budget: int, num_layers: int) -> tuple[int, ...]:
        """The policy's."""
        return self.policy.layer_budgets(budget, num_layers)


@dataclass(frozen=True)
class Sampled(Wrapped):
    """``policy``, and a uniform sample of ``count`` of all tokens seen, the same in all heads of a layer.

    The sample is part of the budget: a layer with a smaller budget keeps nothing else between sinks and recent
    tokens. ``seed``: see ``Random``.
    """

    count: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("count", self.count, 0)
        check_count("seed", self.seed, 0)

    def score(self, view: View) -> Tensor:
        """The policy's, and infinity for the sample: the tokens of the largest ``Random`` scores."""
        drawn = Random(self.seed).score(view)[:, :1].masked_fill(~view.valid[:, None], -1)
        best = drawn.topk(min(self.count, drawn.shape[-1])).indices
        return self.policy.score(view).masked_fill(
            torch.zeros_like(drawn, dtype=torch.bool).scatter(-1, best, True), torch.inf
        )
