"""The policies of the literature, each in a few lines. Lesson 14.

random      a baseline: a uniform sample of all tokens seen
streaming   StreamingLLM (Xiao et al., 2023, arXiv:2309.17453): sinks and the most recent tokens
h2o         H2O (Zhang et al., 2023, arXiv:2306.14048): the tokens that got most attention, the heavy hitters
snapkv      SnapKV (Li et al., 2024, arXiv:2404.14469): what the last queries of the prompt look at
pyramidkv   PyramidKV (Cai et al., 2024, arXiv:2406.02069): SnapKV with more budget for the lower layers
tova        TOVA (Oren et al., 2024, arXiv:2401.06104): what the last query looks at
knorm       L2 norm (Devoto et al., 2024, arXiv:2406.11430): keys of a small norm
keydiff     KeyDiff (Park et al., 2025, arXiv:2504.15364): keys unlike the mean key
leverage, cur, lagkv, expected-attention    see ``from_keys`` and ``expected``
echo        our own, see ``echo``: what the text's own words would find if they were asked again
echo-layers echo, with a budget for each layer that is measured on the model at hand
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from minikv.errors import ArgumentError, check_choice, check_count
from minikv.eviction.policies.choices import PolicyName
from minikv.eviction.policies.echo import Echo, EchoLayers
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.from_keys import CUR, LagKV, Leverage
from minikv.eviction.policies.mean_key import key_lengths, mean_direction
from minikv.eviction.policies.policy import Needs, Policy, Seen, View, check_reduction


@dataclass(frozen=True)
class Random(Policy):
    """A token's score is a random number: the kept tokens are a uniform sample of all tokens seen.

    The number is a hash of ``seed``, layer, head and position, so it does not change from step to step and a run can be
    repeated.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)

    def score(self, view: View) -> Tensor:
        """[B, H, S] in [0, 1)."""
        heads = torch.arange(view.keys.shape[1], device=view.positions.device).view(1, -1, 1)
        mixed = view.positions + (heads << 40) + (view.layer << 48)
        for word in (self.seed % 2**31 + 1, 0x2545F491, 0x1B873593):
            mixed = (mixed ^ (mixed >> 29) & (2**35 - 1)) * 0x5851F42D4C957F2D + word  # wraps as int64 does
        return ((mixed >> 33) & (2**24 - 1)).float() / 2**24


@dataclass(frozen=True)
class StreamingLLM(Policy):
    """The most recent tokens, a sliding window, beside the sinks that ``select`` protects."""

    def score(self, view: View) -> Tensor:
        """[B, H, S]: the position."""
        return view.positions.float()


@dataclass(frozen=True)
class H2O(Policy):
    """Heavy hitters: the attention probability that a token has received.

    ``reduce`` "sum" adds it up over all queries, as the paper does, which favours early tokens: more queries could see
    them. "mean" divides by the number of queries that could see the token. "max" takes the largest of one query.
    "decay" adds up shares that shrink by ``decay`` with every later query. ``group``: how the query heads of a KV head
    are joined, before the queries are.
    """

    needs: ClassVar[Needs] = Needs.PROBS
    reduce: str = "sum"
    decay: float = 0.98
    group: str = "sum"

    def __post_init__(self) -> None:
        check_reduction("reduce", self.reduce, ("sum", "mean", "max", "decay"))
        check_reduction("group", self.group)
        if not isinstance(self.decay, int | float) or not 0 < self.decay <= 1:
            raise ArgumentError("out_of_range", what="decay", value=self.decay, low=0, high=1)

    @property
    def over_queries(self) -> str:
        """ "max" or "sum"."""
        return "max" if self.reduce == "max" else "sum"

    @property
    def over_group(self) -> str:
        """As given."""
        return self.group

    def query_weight(self, age: Tensor) -> Tensor | None:
        """``decay ** age`` for "decay"."""
        return (
            torch.full_like(age, self.decay, dtype=torch.float32) ** age if self.reduce == "decay" else None
        )

    def observe(self, sums: Tensor | None, seen: Seen) -> Tensor:
        """The state with this forward's probabilities in it."""
        if sums is None:
            return seen.state
        if self.reduce == "max":
            return torch.maximum(seen.state, sums)
        kept = self.decay**seen.queries if self.reduce == "decay" else 1.0
        return seen.state * kept + sums

    def score(self, view: View) -> Tensor:
        """The state; for "mean" over the queries since the token's own, or since the scores were forgotten."""
        if self.reduce != "mean":
            return view.state
        first = view.positions.clamp(min=view.since)
        return view.state / (view.positions.amax(-1, keepdim=True) - first + 1).clamp(min=1)


@dataclass(frozen=True)
class SnapKV(Policy):
    """What the last ``queries`` queries look at, smoothed over ``kernel`` neighbours so that a token's context stays.

    At the end of a prompt these are the question, if there is one. Give ``n_recent`` at least ``queries``.
    """

    needs: ClassVar[Needs] = Needs.WINDOW | Needs.ORDER
    queries: int = 16
    kernel: int = 5

    def __post_init__(self) -> None:
        check_count("queries", self.queries)
        check_count("kernel", self.kernel)
        if self.kernel % 2 == 0:
            raise ArgumentError("eviction_even_kernel", kernel=self.kernel)

    @property
    def window(self) -> int:
        """As given."""
        return self.queries

    def score(self, view: View) -> Tensor:
        """[B, H, S]: the mean probability of the window's queries, averaged over neighbours."""
        probs = _probs(view)
        return functional.avg_pool1d(probs, self.kernel, stride=1, padding=self.kernel // 2)


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV with a budget that falls evenly from the first layer to the last.

    The first layer keeps ``1 + steepness`` times the mean budget, the last ``1 - steepness`` times; the sum stays.
    """

    steepness: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.steepness, int | float) or not 0 <= self.steepness <= 1:
            raise ArgumentError("out_of_range", what="steepness", value=self.steepness, low=0, high=1)

    def layer_budgets(self, budget: int, num_layers: int) -> tuple[int, ...]:
        """Whole tokens with the sum ``budget * num_layers``; what rounding leaves over goes to the lowest layers."""
        check_count("num_layers", num_layers)
        middle = (num_layers - 1) / 2 or 1
        exact = [budget * (1 + self.steepness * (1 - layer / middle)) for layer in range(num_layers)]
        whole = [budget] if num_layers == 1 else [int(share) for share in exact]
        left = budget * num_layers - sum(whole)
        return tuple(share + (layer < left) for layer, share in enumerate(whole))


@dataclass(frozen=True)
class TOVA(Policy):
    """What the last query looks at: the token that it looks at least goes."""

    needs: ClassVar[Needs] = Needs.WINDOW

    @property
    def window(self) -> int:
        """One query."""
        return 1

    def score(self, view: View) -> Tensor:
        """[B, H, S]: the probability that the last query gave."""
        return _probs(view)


@dataclass(frozen=True)
class Knorm(Policy):
    """Keys of a small L2 norm stay: in trained models they receive the attention."""

    needs: ClassVar[Needs] = Needs.LENGTHS

    def score(self, view: View) -> Tensor:
        """[B, H, S]: minus the norm of the key."""
        return -_lengths(view)


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Keys that point elsewhere than the mean key stay: a token like many others is redundant."""

    needs: ClassVar[Needs] = Needs.LENGTHS | Needs.MEAN_KEY

    def score(self, view: View) -> Tensor:
        """[B, H, S]: minus the cosine of the key and the mean of all keys of length 1."""
        lengths, mean, along = _lengths(view), view.mean_key, view.along_mean
        if along is None:
            mean = mean_direction(view.keys, lengths, view.valid) if mean is None else mean
            along = torch.matmul(mean.unsqueeze(-2), view.keys.float().transpose(2, 3)).squeeze(-2)
        return -along / lengths


POLICIES: dict[PolicyName, type[Policy]] = {
    "random": Random,
    "streaming": StreamingLLM,
    "h2o": H2O,
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "tova": TOVA,
    "knorm": Knorm,
    "keydiff": KeyDiff,
    "leverage": Leverage,
    "cur": CUR,
    "lagkv": LagKV,
    "expected-attention": ExpectedAttention,
    "echo": Echo,
    "echo-layers": EchoLayers,
}
"""By the names that ``install_kv_eviction`` takes; each can be made without arguments."""


def policy_of(policy: PolicyName | Policy) -> Policy:
    """The policy of that name with its defaults, or the policy itself.

    Raises ``ArgumentError`` for a name that is not in ``POLICIES``, and for what is no policy.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise ArgumentError("eviction_not_a_policy", kind=type(policy).__name__)
    check_choice("policy", policy, POLICIES)
    return POLICIES[policy]()


def _lengths(view: View) -> Tensor:
    return key_lengths(view.keys) if view.lengths is None else view.lengths


def _probs(view: View) -> Tensor:
    if view.window_probs is None:
        raise ArgumentError("eviction_no_window", layer=view.layer)
    return view.window_probs
