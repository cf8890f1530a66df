"""SamplingParams: how the next token is drawn, when a sequence ends, and how many sequences a prompt gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from minikv.errors import LARGEST_COUNT, ArgumentError, check_count
from minikv.keywords import own_keywords


@own_keywords("SamplingParams")
@dataclass(frozen=True)
class SamplingParams:
    """A request's settings for the sampler. The filters apply in the order temperature, top_k, top_p, min_p.

    - ``temperature``: logits are divided by it; 0 is greedy.
    - ``top_k``: keep the k most likely tokens; 0 keeps all, and so does -1, which becomes 0.
    - ``top_p``: keep the fewest likeliest tokens with probabilities that sum to p (nucleus sampling, arXiv:1904.09751).
    - ``min_p``: keep tokens of at least min_p times the highest probability (arXiv:2407.01082); 0 keeps all.
    - ``seed``: makes a request's draws repeatable; None draws from the LLM's.
    - ``max_tokens``: tokens to generate at most, the one that stops included.
    - ``stop``: texts that end a sequence. A text or a list becomes a tuple; None is none.
    - ``stop_token_ids``: token ids that end a sequence, likewise.
    - ``ignore_eos``: go on past the model's end-of-sequence tokens.
    - ``logprobs``: how many log-probabilities to report for a token beside its own; None reports none.
    - ``n``: sequences from one prompt; they share its blocks.

    Raises ``ArgumentError`` for values outside these ranges.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False

    def __post_init__(self):
        _check_number("temperature", self.temperature, inf)
        _check_number("top_p", self.top_p, 1, with_zero=False)
        _check_number("min_p", self.min_p, 1)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        check_count("top_k", self.top_k, least=0)
        check_count("max_tokens", self.max_tokens)
        check_count("n", self.n)
        if self.seed is not None:
            check_count("seed", self.seed, least=0)
        if self.logprobs is not None:
            check_count("logprobs", self.logprobs, least=0)
        if not isinstance(self.ignore_eos, bool):
            raise ArgumentError("sampling_flag", what="ignore_eos", value=self.ignore_eos)
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ArgumentError("sampling_stop", value=stop)
        ids = _as_tuple("stop_token_ids", self.stop_token_ids)
        for token in ids:
            check_count("stop_token_ids", token, least=0)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)


def _as_tuple(what: str, value: object) -> tuple:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ArgumentError("not_a_list", what=what, value=type(value).__name__)
    return tuple(value)


def _check_number(what: str, value: Any, most: float, with_zero: bool = True) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or abs(value) > LARGEST_COUNT or not isfinite(value):
        raise ArgumentError("sampling_number", what=what, value=value)
    if not 0 <= value <= most or (value == 0 and not with_zero):
        code = "sampling_range" if with_zero else "out_of_range"
        raise ArgumentError(code, what=what, value=value, low=0, high=most)
