"""Swap or recompute: the two estimates, where they meet, and what is refused."""

import math
import random

import pytest

from minikv.errors import ArgumentError
from minikv.plan.preemption import (
    TransferRates,
    break_even_prefill,
    cheaper_to_swap,
    recompute_seconds,
    swap_seconds,
)

PCIE = TransferRates(to_host=20e9, to_device=25e9, prefill=10_000)


def test_by_hand():
    """1,000 tokens of 131,072 bytes (Llama-3.1-8B): 6.55 ms out, 5.24 ms in, against 100 ms of prefill."""
    assert swap_seconds(131_072_000, PCIE) == pytest.approx(0.0065536 + 0.00524288)
    assert recompute_seconds(1000, PCIE) == pytest.approx(0.1)
    assert cheaper_to_swap(131_072_000, 1000, PCIE)
    slow = TransferRates(to_host=1e9, to_device=1e9, prefill=10_000)
    assert not cheaper_to_swap(131_072_000, 1000, slow)


def test_nothing_to_compute_again_is_never_swapped():
    assert not cheaper_to_swap(1, 0, PCIE)
    assert not cheaper_to_swap(0, 0, PCIE), "nothing is gained where both cost nothing"


def test_the_break_even_speed_parts_the_two():
    draw = random.Random(3)
    for _ in range(200):
        token_bytes = draw.randrange(1, 10**6)
        to_host, to_device = draw.uniform(1e6, 1e11), draw.uniform(1e6, 1e11)
        tokens = draw.randrange(1, 10**5)
        even = break_even_prefill(token_bytes, to_host, to_device)
        for factor, swaps in ((0.99, True), (1.01, False)):
            rates = TransferRates(to_host, to_device, even * factor)
            assert cheaper_to_swap(tokens * token_bytes, tokens, rates) is swaps


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "fast", None])
@pytest.mark.parametrize("what", ["to_host", "to_device", "prefill"])
def test_a_rate_is_positive_and_finite(what, value):
    rates = {"to_host": 1.0, "to_device": 1.0, "prefill": 1.0}
    with pytest.raises(ArgumentError) as error:
        TransferRates(**rates | {what: value})
    assert error.value.values["what"] == what


def test_counts_are_counts():
    for wrong in (lambda: swap_seconds(-1, PCIE), lambda: recompute_seconds(1.5, PCIE)):
        with pytest.raises(ArgumentError):
            wrong()
    with pytest.raises(ArgumentError):
        break_even_prefill(0, 1.0, 1.0)
    with pytest.raises(ArgumentError):
        break_even_prefill(1, 0.0, 1.0)
