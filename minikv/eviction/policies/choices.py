"""The words that eviction takes, each set once, for type checkers and for the checks at run time. No torch."""

from typing import Literal

from minikv.errors import check_choice

PolicyName = Literal["random", "streaming", "h2o", "snapkv", "pyramidkv", "tova", "knorm", "keydiff"]
"""The keys of ``POLICIES``."""

Scope = Literal["layer", "head"]
"""All heads of a layer keep the same tokens, or each its own."""

Positions = Literal["original", "reindexed"]
"""A kept token keeps its place in the text, or the kept ones count 0, 1, 2, ... anew."""

When = Literal["always", "prefill"]
"""After every forward, or only after those of several tokens."""

OtherCaches = Literal["refuse", "pass"]
"""A cache of another class raises, or is used as it is."""

Unit = Literal["token", "block"]
"""What a paged cache drops."""

PerBlock = Literal["max", "sum"]
"""A block counts as much as its best token, or as all of them."""


def check_choices(scope: str, unit: str, per_block: str) -> None:
    """Raise ``ArgumentError`` for a word that a paged eviction does not take."""
    check_choice("scope", scope, Scope)
    check_choice("unit", unit, Unit)
    check_choice("per_block", per_block, PerBlock)
