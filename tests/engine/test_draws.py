"""The uniform numbers of a sequence: Philox's, uniform, and the same in whatever order they are asked for."""

import math

import numpy as np
import pytest

from minikv.engine.sampler import Draws
from minikv.errors import ArgumentError


def test_draws_belong_to_seed_sample_and_place_alone():
    forward, backward, again = Draws(3, 1), Draws(3, 1), Draws(3, 1)
    numbers = [forward[i] for i in range(300)]
    assert [backward[i] for i in reversed(range(300))] == numbers[::-1]
    assert [again[i] for i in (250, 0, 64, 63, 250)] == [numbers[i] for i in (250, 0, 64, 63, 250)]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == 300
    others = [Draws(3, 2), Draws(4, 1), Draws(1, 3), Draws(0, 0), Draws(2**62, 2**62)]
    assert len({draws[0] for draws in [forward, *others]}) == 6
    assert 0 <= forward[2**60] < 1


def philox(counter, key):
    """Philox4x64-10 as its paper writes it: four 64-bit words for one counter (Salmon et al., 2011)."""
    words, key = [counter, 0, 0, 0], list(key)
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [
            (right >> 64) ^ words[1] ^ key[0],
            right % 2**64,
            (left >> 64) ^ words[3] ^ key[1],
            left % 2**64,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
    return words


def test_a_seed_means_the_same_numbers_in_every_version():
    """They are Philox's words under the key (seed, sample), four for each counter from 1 on."""
    draws = Draws(2**40 + 42, 3)
    for i in (0, 1, 2, 3, 4, 63, 64, 199, 10**9):
        assert draws[i] == (philox(i // 4 + 1, [2**40 + 42, 3])[i % 4] >> 11) / 2**53


def test_draws_are_uniform():
    numbers = np.array([[Draws(8, sample)[i] for i in range(100)] for sample in range(100)])
    counts = np.bincount((numbers.ravel() * 50).astype(int), minlength=50)
    assert ((counts - 200) ** 2 / 200).sum() < 49 + 4 * math.sqrt(2 * 49)
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.04, "between samples"
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.04, "between tokens"


@pytest.mark.parametrize(
    ("seed", "number", "at"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1.0), (None, 0, 0)]
)
def test_draws_refuse_what_is_no_count(seed, number, at):
    with pytest.raises(ArgumentError, match="whole number"):
        Draws(seed, number)[at]
