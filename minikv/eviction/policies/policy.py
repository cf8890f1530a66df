"""Policy: which of the cached tokens matter. A small frozen dataclass with one method to write, ``score``. Lesson 14b.

A policy looks at a ``View`` of one layer and gives each resident token a number; ``select`` keeps the largest beside
the sinks and the recent window. ``needs`` says what the policy reads, so that nothing else is computed:

    @dataclass(frozen=True)
    class Oldest(Policy):
        def score(self, view):
            return -view.positions.float()
"""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar

from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import Scope

REDUCTIONS = ("sum", "mean", "max")


class Needs(Flag):
    """What a policy reads of a layer besides positions, keys and values, which lie in the cache anyway.

    ``PROBS``: the attention probabilities of every query on every resident token, reduced to ``View.state``.
    ``WINDOW``: those of the last ``Policy.window`` queries, as ``View.window_probs``. ``ORDER``: resident tokens in the
    order of their positions, for a policy that looks at a token's neighbours. ``ECHO``: what the query before a token
    would give it if it were asked ``Policy.echo_shift`` places later, added to its state when it arrives.
    ``EXPECTED``: as ``View.window_probs`` what the next ``Policy.expected_over`` queries may be expected to give.
    ``QUERIES``: either of these two, for which a cache has to see queries. ``ATTENTION``: what depends on the queries
    that a token has met.
    ``LENGTHS`` and ``MEAN_KEY``: ``View.lengths`` and ``View.mean_key``. They follow from the keys, but are kept, so
    that the keys are not read once more. ``MEAN_KEY`` needs ``LENGTHS``.
    """

    NOTHING = 0
    PROBS = auto()
    WINDOW = auto()
    ORDER = auto()
    ECHO = auto()
    LENGTHS = auto()
    MEAN_KEY = auto()
    EXPECTED = auto()
    QUERIES = ECHO | EXPECTED
    ATTENTION = PROBS | WINDOW | QUERIES


@dataclass(frozen=True, eq=False)
class View:
    """One layer's resident tokens. B rows, H KV heads (1 where the cache keeps latents), S resident tokens.

    ``keys`` [B, H, S, Dk] and ``values`` [B, H, S, Dv] as cached (keys rotated, except with ``positions="reindexed"``,
    where they are cached without position); on a latent layer the latent and the rope part.
    ``state`` [B, H, S] float32: the policy's state after the attention so far, zeros where the policy needs none.
    ``window_probs`` [B, H, S] float32: the mean probability that the last queries gave to the token, over the queries
    and the query heads, or the one that later queries may be expected to give; None unless the policy needs it.
    ``positions`` [B, H, S] int64: a token's place in its text, from 0; -1 for padding. ``valid`` [B, S] bool: False for
    padding. ``since``: the place of the first query that the state knows of: 0, or after ``reset_eviction_scores``
    [B, 1, 1] int64.

    ``lengths`` [B, H, S] float32: the L2 norms of the keys. ``mean_key`` [B, H, D] float32: the direction of the mean
    of all keys of length 1, itself of length 1. ``along_mean`` [B, H, S] float32: each key times ``mean_key``, where
    attention has computed it on its way. All three are None where they are not kept:
    see ``minikv.eviction.policies.mean_key``.
    """

    keys: Tensor
    values: Tensor
    state: Tensor
    window_probs: Tensor | None
    positions: Tensor
    valid: Tensor
    layer: int = 0
    num_layers: int = 1
    latent: bool = False
    since: Tensor | int = 0
    lengths: Tensor | None = None
    mean_key: Tensor | None = None
    along_mean: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Seen:
    """The column sums of a forward come with these.

    ``state`` [B, H, S] float32 before this forward, zeros for its own tokens; ``queries``: how many tokens it computed;
    ``positions`` [B, H, S] int64, as in ``View``.
    """

    state: Tensor
    queries: int
    positions: Tensor


@dataclass(frozen=True)
class Policy:
    """The rule that scores tokens. A subclass writes ``score``; the rest has defaults.

    ``needs``: see ``Needs``. ``over_queries`` ("sum" | "max") and ``over_group`` ("sum" | "mean" | "max") say how the
    probabilities of a forward become one number for each KV head and token, before ``observe`` sees them: first over
    the query heads that share the KV head, then over its queries, so that the result does not depend on how a prompt is
    cut into chunks. ``window``: the queries of ``window_probs``.
    """

    needs: ClassVar[Needs] = Needs.NOTHING

    @property
    def over_queries(self) -> str:
        """How the queries of a forward are joined."""
        return "sum"

    @property
    def over_group(self) -> str:
        """How the query heads of a KV head are joined."""
        return "sum"

    @property
    def window(self) -> int:
        """Queries that ``View.window_probs`` averages; 0 where the policy needs none."""
        return 0

    @property
    def echo_shift(self) -> int:
        """With ``Needs.ECHO``: how many places later the text's own words are asked again; 0: at their own places."""
        return 0

    @property
    def echo_keys(self) -> int:
        """With ``Needs.ECHO``: how many keys stand for all in the sum that a probability is divided by."""
        return 0

    @property
    def expected_over(self) -> int:
        """With ``Needs.EXPECTED``: the places behind the text that are averaged over."""
        return 0

    def query_weight(self, age: Tensor) -> Tensor | None:
        """The weight [T] of a query that was ``age`` [T] queries before the last one of its forward; None: all 1.

        A forward's sums then do not depend on how a prompt was cut into chunks.
        """
        return None

    def score(self, view: View) -> Tensor:
        """[B, H, S] float32 (H may be 1: the same for all heads): the larger, the sooner a token is kept."""
        raise NotImplementedError

    def observe(self, sums: Tensor | None, seen: Seen) -> Tensor:
        """The state [B, H, S] float32 after a forward with the reduced probabilities ``sums`` [B, H, S].

        ``sums`` is None where the policy needs no probabilities; the state then stays as it is. Return a new tensor, or
        ``seen.state`` itself for "nothing learned": ``eviction_report`` counts both.
        """
        return seen.state if sums is None else seen.state + sums

    def fitted(self, model: Any, plan: Budget, scope: Scope) -> "Policy":
        """The policy for ``model``, ``plan`` and ``scope``: an install asks once, before it changes the model."""
        return self

    def layer_budgets(self, budget: int, num_layers: int) -> tuple[int, ...]:
        """The number of heavy hitters of each layer. The sum is ``budget * num_layers``; by default all are equal."""
        check_count("num_layers", num_layers)
        return (budget,) * num_layers


def check_reduction(what: str, value: str, known: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ``ArgumentError`` unless ``value`` is one of ``known``."""
    if value not in known:
        raise ArgumentError("unknown_choice", what=what, value=value, known=", ".join(known))
