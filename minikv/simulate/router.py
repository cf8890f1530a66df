"""Router: which replica gets a request. Replicas share no cache, so the choice decides which prefix is found.

    round-robin     one after the other
    least-loaded    the one with the fewest tokens left to compute
    prefix          the one with the longest cached prefix of the prompt, unless its load is too high

The bound of ``prefix`` is that of consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018): a
replica is left out if its load is above ``bound`` times the mean plus the tokens of the prompt. If no other replica has
any of the prompt cached, the least loaded one gets the request, computes the prefix, and has it cached from then on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from minikv.errors import ArgumentError, check_choice


class Target(Protocol):
    """What a router sees of a replica."""

    @property
    def load(self) -> int:
        """Tokens that the requests sent there still have to compute, those of prompts and of outputs."""

    def cached_tokens(self, prompt: Any) -> int:
        """Tokens of the prompt that the cache holds now, host memory included."""


class Prompt(Protocol):
    """A request on its way."""

    index: int
    prompt_tokens: int
    output_tokens: int


class Router(Protocol):
    """Chooses a replica for each request. It may keep state: a simulation makes a new one from a name."""

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        """The index in ``replicas`` of the one that gets the request."""


@dataclass
class RoundRobin:
    """Each replica in turn, for any load and cache."""

    _next: int = field(default=0, repr=False)

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


@dataclass
class LeastLoaded:
    """The replica with the smallest load; of equals the first."""

    def choose(self, prompt: Prompt, replicas: Sequence[Target]) -> int:
        loads = [replica.load for replica in replicas]
        return loads.index(min(loads))


@dataclass
class PrefixAware:
    """The replica with the longest cached prefix within ``bound``; of equals the least loaded, of these the first.

    Replica i is left out if load_i > bound * (mean of the loads) + (tokens of the prompt). So an idle fleet leaves
    none out.
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
