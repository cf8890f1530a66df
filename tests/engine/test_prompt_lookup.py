"""What is guessed: the longest repetition of the end, its latest place, and what followed there."""

import random

import numpy as np
import pytest

from minikv.engine.core.step import Scheduled
from minikv.engine.ext.drafts import propose


def naive(tokens, most, longest, shortest):
    """The same, as one would say it."""
    for size in range(longest, shortest - 1, -1):
        end = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if len(tokens) > size and tokens[start : start + size] == end:
                followed = tokens[start + size :]
                return [followed[place % len(followed)] for place in range(most)]
    return []


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_definition_says(seed):
    draw, found = random.Random(seed), 0
    for _ in range(400):
        letters = draw.choice([1, 2, 3, 5, 20, 10**12])
        tokens = [draw.randrange(letters) for _ in range(draw.choice([1, 2, 3, 4, 9, 40]))]
        most, longest = draw.randint(0, 9), draw.randint(1, 5)
        shortest = draw.randint(1, longest)
        due = naive(tokens, most, longest, shortest)
        given = draw.choice([list, tuple, np.array])(tokens)
        assert propose(given, most, longest=longest, shortest=shortest) == due
        found += bool(due)
    assert 100 < found < 390


def test_a_text_that_repeats_itself_goes_on_doing_so():
    assert propose([9, 5, 6, 5, 6, 5], 7) == [6, 5, 6, 5, 6, 5, 6]
    assert propose([4, 4], 3) == [4, 4, 4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_there_is_no_guess_where_nothing_is_repeated(tokens):
    assert propose(tokens, 3) == []


def test_a_longer_repetition_wins_over_a_later_one():
    assert propose([1, 2, 3, 7, 3, 8, 1, 2, 3], 1) == [7]
    assert propose([1, 2, 3, 7, 3, 8, 1, 2, 3], 1, longest=1) == [8]


def test_the_tokens_given_are_not_changed_and_the_guesses_are_plain_numbers():
    tokens = np.array([1, 2, 1, 2])
    assert [type(token) for token in propose(tokens, 3)] == [int] * 3
    assert tokens.tolist() == [1, 2, 1, 2]


def test_what_is_right_ends_at_the_first_wrong_one():
    assert right([1, 2, 3], [1, 2, 3, 4]) == 3
    assert right([1, 2, 3], [1, 9, 3, 4]) == 1
    assert right([1, 2], [2, 2, 2]) == 0
    assert right([], [5]) == 0


def right(drafts, sampled):
    """How many of ``drafts`` behind a decode's token count, of which ``sampled`` are sampled in their places."""
    return Scheduled("a", 7, (4, *drafts), True, ("a",), len(drafts)).confirmed(sampled)
