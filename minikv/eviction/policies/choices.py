"""The words that eviction takes, each set defined once, for type checkers and for the checks at run time. No torch."""

from typing import Literal

from minikv.errors import check_choice

PolicyName = Literal[
    "random",
    "streaming",
    "h2o",
    "snapkv",
    "pyramidkv",
    "tova",
    "knorm",
    "keydiff",
    "leverage",
    "cur",
    "lagkv",
    "expected-attention",
    "echo",
    "echo-layers",
]
"""The keys of ``POLICIES``."""

Scope = Literal["layer", "head"]
""""layer": all heads of a layer keep the same tokens; "head": each keeps its own."""

Positions = Literal["original", "reindexed"]
""""original": a kept token keeps its position in the text; "reindexed": kept tokens count 0, 1, 2, ..."""

When = Literal["always", "prefill"]
""""always": after every forward; "prefill": only after those of several tokens."""

OtherCaches = Literal["refuse", "pass"]
""""refuse": a cache of another class raises; "pass": it is used as it is."""

Unit = Literal["token", "block"]
"""The unit that a paged cache drops."""

PerBlock = Literal["max", "sum"]
""""max": a block counts as its best token; "sum": as all of them."""


def check_choices(scope: str, unit: str, per_block: str) -> None:
    """Raise ``ArgumentError`` for a word that a paged eviction does not take."""
    check_choice("scope", scope, Scope)
    check_choice("unit", unit, Unit)
    check_choice("per_block", per_block, PerBlock)
