"""Router: which replica gets a request. A replica's cache is its own, so where a request goes decides what it finds.

    round-robin     one after the other
    least-loaded    the one with the fewest tokens left to compute
    prefix          the one that has most of the prompt cached, unless it has too much to do

The bound of ``prefix`` is that of consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018):
whoever has more than ``bound`` times the mean load, and a prompt like this one on top, is left out. Where nobody is
left who has any of the prompt, the least loaded gets it, computes the prefix, and has it from then on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from minikv.errors import ArgumentError, check_choice


class Target(Protocol):
    """What a router may ask of a replica."""

    @property
    def load(self) -> int:
        """Tokens that the requests sent there still have to compute, those of prompts and of outputs."""

    def cached_tokens(self, prompt: Any) -> int:
        """How many of the prompt's tokens a request would find in the cache now, host memory included."""


class Prompt(Protocol):
    """A request on its way."""

    index: int
    prompt_tokens: int
    output_tokens: int


class Router(Protocol):
    """A router may remember what it has sent; a simulation makes its own."""

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        """The place in ``replicas`` of the one that gets the request."""


@dataclass
class RoundRobin:
    """Looks at nothing."""

    _next: int = field(default=0, repr=False)

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


@dataclass
class LeastLoaded:
    """The first of those with the smallest load."""

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        loads = [replica.load for replica in replicas]
        return loads.index(min(loads))


@dataclass
class PrefixAware:
    """The longest cached prefix within ``bound``; of equals the least loaded, of these the first.

    Replica i is left out if load_i > bound * (mean of the loads) + (tokens of the prompt): an idle fleet leaves
    nobody out.
    """

    bound: float = 1.25

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not isinstance(self.bound, int | float) or not self.bound >= 1:
            raise ArgumentError("simulate_bound", value=self.bound)

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        loads = [replica.load for replica in replicas]
        most = self.bound * sum(loads) / len(loads) + prompt.prompt_tokens
        best, best_rank = loads.index(min(loads)), None
        for place, replica in enumerate(replicas):
            cached = replica.cached_tokens(prompt) if loads[place] <= most else 0
            if cached:
                rank = (-cached, loads[place])
                if best_rank is None or rank < best_rank:
                    best, best_rank = place, rank
        return best


RouterName = Literal["round-robin", "least-loaded", "prefix"]
ROUTERS: dict[RouterName, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix": PrefixAware,
}


def find_router(router: "RouterName | Router") -> Router:
    """A new router of that name, or the object itself. Raises ``ArgumentError`` for what is neither."""
    if isinstance(router, str):
        check_choice("router", router, ROUTERS)
        return ROUTERS[router]()
    if not callable(getattr(router, "choose", None)):
        raise ArgumentError("simulate_type", what="router", kind="Router", value=type(router).__name__)
    return router
