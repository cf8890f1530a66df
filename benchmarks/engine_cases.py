"""What the engine's benchmark runs: a random Qwen3 (``minikv.models``), and loads of requests of random tokens."""

import math

import numpy as np

from minikv.course.your_engine.ways import RaceLoad, RaceRequest
from minikv.models.random_weights import MEDIUM as MEDIUM
from minikv.models.random_weights import QWEN3_06B as QWEN3_06B
from minikv.models.random_weights import SMALL as SMALL
from minikv.models.random_weights import SPREAD as SPREAD
from minikv.models.random_weights import ModelShape as ModelShape
from minikv.models.random_weights import config_of as config_of
from minikv.models.random_weights import random_model as random_model


def mixed(count: int, least: int, most: int, vocabulary: int) -> RaceLoad:
    """Prompts and answers of ``least`` to ``most`` tokens, each length as likely."""
    random = np.random.default_rng(0)
    sizes = random.integers(least, most + 1, (count, 2)).tolist()
    requests = [RaceRequest(_tokens(random, size, vocabulary), new) for size, new in sizes]
    return RaceLoad(f"{count} of {least}-{most} tokens in and out", tuple(requests))


def skewed(count: int, least: int, most: int, vocabulary: int) -> RaceLoad:
    """The same bounds, but the logarithm of a length is exponential: many short answers, and a few long ones."""
    random = np.random.default_rng(1)
    span = math.log(most / least)
    falls = np.minimum(random.exponential(0.25, (count, 2)), 1)
    sizes = np.rint(least * np.exp(span * falls)).astype(int).tolist()
    requests = [RaceRequest(_tokens(random, size, vocabulary), new) for size, new in sizes]
    return RaceLoad(f"{count} skewed, {least}-{most} tokens", tuple(requests))


def shared_prefix(count: int, shared: int, own: int, new: int, vocabulary: int) -> RaceLoad:
    """Prompts whose first ``shared`` tokens are the same, with ``own`` tokens behind them."""
    random = np.random.default_rng(2)
    prefix = _tokens(random, shared, vocabulary)
    requests = [RaceRequest(prefix + _tokens(random, own, vocabulary), new) for _ in range(count)]
    return RaceLoad(f"{count} that share {shared} of {shared + own} tokens", tuple(requests))


def _tokens(random: np.random.Generator, size: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(random.integers(1, vocabulary, size).tolist())
