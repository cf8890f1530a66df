"""Recall over the share of tokens kept: every policy on the same cases, beside the full cache. Lesson 14.

    >>> from minikv.models import load
    >>> model = load("tiny-gqa", device="cpu").model
    >>> points = list(curve(model, {"streaming": "streaming"}, [Setting(kept=0.5)], count=8))
    >>> [point.policy for point in points], points[0].score.share > points[1].score.share
    (['full cache', 'streaming'], True)

``kept`` is the share of the tokens that stay, sinks and recent window included: of the context where the eviction comes
after a prefill, of the whole text where it runs while the text is read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.install import install_kv_eviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PolicyName, Scope
from minikv.eviction.policies.layered import Layered, measure_layers
from minikv.eviction.policies.policy import Policy
from minikv.eviction.study.suite import Evicting, Score, answer
from minikv.eviction.study.tasks import SHORTEST, Case, make_cases, stream_cases

FULL = "full cache"
STREAM = "stream"
"""The task of ``stream_cases``, for an eviction while the text is read."""
# As many sinks as StreamingLLM keeps; a quarter of the capacity is the recent window.
SINKS, RECENT_SHARE = 4, 4


@dataclass(frozen=True)
class Setting:
    """A task, and the share of its tokens that may stay; see ``tasks`` and ``suite`` for the words."""

    task: str = "multikey"
    length: int = 193
    kept: float = 0.25
    seen: bool = False
    decode: bool = False

    def __post_init__(self) -> None:
        check_count("length", self.length, SHORTEST)
        if not 0 < self.kept <= 1:
            raise ArgumentError("out_of_range", what="kept", value=self.kept, low=0, high=1)

    @property
    def capacity(self) -> int:
        """Tokens that stay in the mean over the layers."""
        return max(1, round(self.kept * self.length))

    def cases(self, count: int, seed: int) -> list[Case]:
        """The cases, the same for every ``kept``."""
        if self.task == STREAM:
            return stream_cases(count, seed=seed, length=self.length)
        return make_cases(self.task, count, seed=seed, length=self.length, seen=self.seen)


@dataclass(frozen=True)
class Point:
    """One policy's ``score`` at one setting."""

    policy: str
    setting: Setting
    score: Score


def shared_out(capacity: int, evict_every: int = 1) -> Budget:
    """``capacity`` tokens as sinks, heavy hitters and recent window: at most 4, about two thirds, a quarter."""
    check_count("capacity", capacity)
    recent = max(1, capacity // RECENT_SHARE)
    sinks = min(SINKS, (capacity - recent) // 2)
    return Budget(n_sink=sinks, budget=capacity - sinks - recent, n_recent=recent, evict_every=evict_every)


def evicting_with(
    policy: PolicyName | Policy, sizes: Budget, *, scope: Scope = "layer", **options: Any
) -> Evicting:
    """``install_kv_eviction`` with these arguments, for ``answer``."""

    def evicting(model: Any) -> AbstractContextManager[Any]:
        return install_kv_eviction(
            model,
            policy=policy,
            budget=sizes.budget,
            n_sink=sizes.n_sink,
            n_recent=sizes.n_recent,
            evict_every=sizes.evict_every,
            scope=scope,
            **options,
        )

    return evicting


@dataclass(frozen=True)
class Fitted:
    """``policy`` with layer budgets that ``by`` finds on ``texts``, which are not among the cases; see ``layered``."""

    policy: Policy
    by: PolicyName | Policy
    texts: int = 4
    seed: int = 5

    def fit(self, model: Any, setting: Setting, sizes: Budget, scope: Scope) -> Policy:
        """The policy for these sizes, which are the mean over the layers."""
        cases = setting.cases(self.texts, self.seed)
        tokens = np.stack([case.tokens[: None if setting.decode else case.context] for case in cases])
        budgets = measure_layers(
            model,
            torch.from_numpy(tokens).to(model.device),
            policy=self.by,
            budget=sizes.budget,
            n_sink=sizes.n_sink,
            n_recent=sizes.n_recent,
            scope=scope,
        )
        return Layered(self.policy, budgets)


def curve(
    model: Any,
    policies: Mapping[str, PolicyName | Policy | Fitted],
    settings: Iterable[Setting],
    *,
    count: int = 40,
    seed: int = 0,
    scope: Scope = "layer",
) -> Iterator[Point]:
    """The points of ``policies``, by name, at every setting, on ``count`` cases each; yields each when it is measured.

    The full cache's point comes before the first of its task, length, and way of asking, with a ``kept`` of 1.

    Raises what ``make_cases`` and ``install_kv_eviction`` raise.
    """
    asked: dict[Setting, Sequence[Case]] = {}
    for setting in settings:
        whole = replace(setting, kept=1.0)
        if whole not in asked:
            asked[whole] = setting.cases(count, seed)
            yield Point(FULL, whole, answer(model, asked[whole]))
        for name, policy in policies.items():
            sizes = shared_out(setting.capacity)
            chosen = policy.fit(model, setting, sizes, scope) if isinstance(policy, Fitted) else policy
            evicting = evicting_with(chosen, sizes, scope=scope)
            score = answer(model, asked[whole], evicting=evicting, decode=setting.decode)
            yield Point(name, setting, score)


def best(points: Iterable[Point]) -> Point:
    """The point of the largest recall; of equal ones the first."""
    return max(points, key=lambda point: point.score.share)


def lines(points: Sequence[Point]) -> list[str]:
    """The points as text: a line for each policy, a column for each share kept.

    Recall in % with its interval, then the perplexity of the other words: neither follows from the other.
    """
    shares = sorted({point.setting.kept for point in points}, reverse=True)
    found = {(point.policy, point.setting.kept): point.score for point in points}
    told = ["recall, perplexity".ljust(24) + "".join(f"{100 * share:g} % kept".rjust(26) for share in shares)]
    for policy in dict.fromkeys(point.policy for point in points):
        cells = (_cell(found.get((policy, share))) for share in shares)
        told.append(policy.ljust(24) + "".join(cell.rjust(26) for cell in cells))
    return told


def _cell(score: Score | None) -> str:
    if score is None:
        return ""
    low, high = (100 * bound for bound in score.interval)
    beside = f"{score.perplexity:.1f}" if score.words else "-"
    return f"{100 * score.share:.1f} [{low:.0f}, {high:.0f}] {beside:>6}"
