"""The load of ``minikv bench``: requests of random tokens, of a given shape, that arrive at a given rate."""

import math
from dataclasses import dataclass

import numpy as np

from minikv.errors import LARGEST_COUNT, ArgumentError, check_count

MOST_TOKENS = 2**26  # of all prompts together: the whole load is made first, 2.5 GiB at the most


@dataclass(frozen=True)
class BenchRequest:
    """A request: it arrives ``at`` seconds after the start, with ``prompt`` token ids, for ``output`` tokens."""

    at: float
    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Shape:
    """``num_requests`` prompts, each of ``prefix_len`` shared tokens and ``input_len`` tokens of its own behind them.

    ``input_len`` and ``output_len`` are (least, most): all lengths between are equally likely. ``rate`` requests arrive
    a second, at random moments (a Poisson process); inf: all at the start. ``seed`` decides all of it.

    Raises ``ArgumentError`` for bad counts and rates, with the option's name, and for more than ``MOST_TOKENS`` tokens
    of prompts.
    """

    num_requests: int
    input_len: tuple[int, int]
    output_len: tuple[int, int]
    prefix_len: int
    rate: float
    seed: int

    def __post_init__(self):
        check_count("--num-requests", self.num_requests)
        check_count("--prefix-len", self.prefix_len, least=0)
        check_count("--seed", self.seed, least=0)
        if not self.rate > 0:  # refuses NaN, too
            raise ArgumentError("out_of_range", what="--rate", value=self.rate, low=0, high=math.inf)
        tokens = self.num_requests * (self.prefix_len + self.input_len[1])
        if tokens > MOST_TOKENS:
            what = "--num-requests * (--prefix-len + --input-len)"
            raise ArgumentError("out_of_range", what=what, value=tokens, low=0, high=MOST_TOKENS)

    def requests(self, vocabulary: int) -> list[BenchRequest]:
        """The load, in the order of arrival, of token ids below ``vocabulary``."""
        random = np.random.default_rng(self.seed)
        prefix = random.integers(vocabulary, size=self.prefix_len).tolist()
        gaps = (
            np.zeros(self.num_requests)
            if math.isinf(self.rate)
            else random.exponential(1 / self.rate, self.num_requests)
        )
        inputs = random.integers(self.input_len[0], self.input_len[1] + 1, self.num_requests)
        outputs = random.integers(self.output_len[0], self.output_len[1] + 1, self.num_requests)
        return [
            BenchRequest(at, (*prefix, *random.integers(vocabulary, size=length).tolist()), output)
            for at, length, output in zip(
                np.cumsum(gaps).tolist(), inputs.tolist(), outputs.tolist(), strict=True
            )
        ]


def span(what: str, words: str) -> tuple[int, int]:
    """(least, most) of an option such as ``--input-len 32:128``; one number is both.

    Raises ``ArgumentError`` for anything else, and for a least length of 0.
    """
    least, colon, most = words.partition(":")
    try:
        found = (int(least), int(most if colon else least))
    except ValueError:
        raise ArgumentError("bench_range", what=what, value=words) from None
    if not 1 <= found[0] <= found[1] <= LARGEST_COUNT:
        raise ArgumentError("bench_range", what=what, value=words)
    return found
