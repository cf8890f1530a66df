"""Budget: how many tokens a layer keeps, and how many it may hold meanwhile. No torch. Lesson 14."""

from dataclasses import dataclass

from minikv.errors import check_count


@dataclass(frozen=True)
class Budget:
    """The tokens of one layer, in tokens. ``budget`` counts heavy hitters only: sinks and recent tokens come on top.

    ``n_sink``: the first tokens of a text, always kept. ``n_recent``: the last ones, always kept; at least 1, since a
    new token has received little attention yet, and would be the first to go. ``evict_every``: after how many new
    tokens the layer evicts.

        >>> Budget(n_sink=4, budget=20, n_recent=8, evict_every=4).capacity
        32
        >>> Budget(n_sink=4, budget=20, n_recent=8, evict_every=4).peak_resident
        35

    Raises ``ArgumentError`` for what is no count.
    """

    n_sink: int
    budget: int
    n_recent: int
    evict_every: int = 1

    def __post_init__(self) -> None:
        for what, least in (("n_sink", 0), ("budget", 0), ("n_recent", 1), ("evict_every", 1)):
            check_count(what, getattr(self, what), least)

    @property
    def capacity(self) -> int:
        """Tokens resident after an eviction: ``n_sink + budget + n_recent``."""
        return self.n_sink + self.budget + self.n_recent

    @property
    def peak_resident(self) -> int:
        """The most tokens resident between two forwards. Within a forward its own new tokens come on top."""
        return self.capacity + self.evict_every - 1
