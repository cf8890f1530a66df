"""The cost of preempting a sequence: copy its blocks to the host and back, or compute its tokens again. Lesson 12.

    swap       bytes / to_host + bytes / to_device
    recompute  tokens / prefill

Both are linear in the tokens. So for one model on one machine the same one is always cheaper, whatever the length: the
prefill speed decides (``break_even_prefill``). It depends on the sequence only if other sequences hold a part of its
tokens, which is not computed again. Source: Kwon et al. 2023, sections 4.5 and 7.3.
"""

import math
from dataclasses import dataclass

from minikv.errors import ArgumentError, check_count


@dataclass(frozen=True)
class TransferRates:
    """``to_host`` and ``to_device`` in bytes a second, ``prefill`` in tokens a second.

    Raises ``ArgumentError`` unless all three are positive and finite.
    """

    to_host: float
    to_device: float
    prefill: float

    def __post_init__(self) -> None:
        for what in ("to_host", "to_device", "prefill"):
            _check_rate(what, getattr(self, what))


def swap_seconds(num_bytes: int, rates: TransferRates) -> float:
    """Seconds to copy ``num_bytes`` to the host, and back when the sequence goes on."""
    check_count("num_bytes", num_bytes, least=0)
    return num_bytes / rates.to_host + num_bytes / rates.to_device


def recompute_seconds(tokens: int, rates: TransferRates) -> float:
    """Seconds of a prefill of ``tokens``: those that no other sequence keeps in the cache."""
    check_count("tokens", tokens, least=0)
    return tokens / rates.prefill


def cheaper_to_swap(num_bytes: int, tokens: int, rates: TransferRates) -> bool:
    """Whether moving ``num_bytes`` out and in takes less time than computing ``tokens`` again."""
    return swap_seconds(num_bytes, rates) < recompute_seconds(tokens, rates)


def break_even_prefill(token_bytes: int, to_host: float, to_device: float) -> float:
    """The prefill speed in tokens a second at which a token of ``token_bytes`` costs the same either way.

    Above that speed recomputing is cheaper. The rates are in bytes a second, as in ``TransferRates``.
    """
    check_count("token_bytes", token_bytes)
    _check_rate("to_host", to_host)
    _check_rate("to_device", to_device)
    return 1 / (token_bytes / to_host + token_bytes / to_device)


def _check_rate(what: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ArgumentError("out_of_range", what=what, value=value, low=0, high=math.inf)
