"""SamplingParams: how the next token is drawn, when a sequence ends, and how many sequences a prompt gets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    - ``min_tokens``: before so many are generated, no end-of-sequence token, stop token or stop text ends a sequence:
      the tokens cannot come, the texts do not count.
    - ``logprobs``: how many log-probabilities to report for a token beside its own; None reports none.
    - ``n``: sequences from one prompt; they share its blocks.

    Before a token is drawn, greedily or not, its logits are changed (``minikv.engine.adjusted``), in this order:

    - ``logit_bias``: {token id: number to add}.
    - ``repetition_penalty``: above 1 for fewer repetitions of prompt and output, 1 for none, below 1 for more.
    - ``frequency_penalty``, ``presence_penalty``: -2 to 2, subtracted from the logit of a token for each time that it
      is in the output, or once if it is there.
    - ``bad_words``: texts, or lists of token ids, that may not come. A text counts with and without a space before it.
    - ``logits_processors``: functions of (ids int64 [1, tokens], logits [1, vocabulary]) that return logits, as
      transformers' processors are. Each is called for every token.

    ``logprobs`` report the model's own probabilities, before all of this.

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
    min_tokens: int = 0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: Sequence[str | Sequence[int]] | None = ()
    logits_processors: Sequence[Callable[[Any, Any], Any]] | None = ()
    adjusts: bool = field(init=False, repr=False, compare=False)
    """Whether a token's logits depend on these params."""

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
        self._check_changes()
        neutral = (0, (), 1, 0, 0, (), ())
        object.__setattr__(self, "adjusts", tuple(getattr(self, name) for name in CHANGES) != neutral)

    def _check_changes(self) -> None:
        """Check what changes logits, and make tuples of it."""
        check_count("min_tokens", self.min_tokens, least=0)
        if self.min_tokens > self.max_tokens:
            raise ArgumentError(
                "out_of_range", what="min_tokens", value=self.min_tokens, low=-1, high=self.max_tokens
            )
        _check_number("repetition_penalty", self.repetition_penalty, inf, with_zero=False)
        for name in ("frequency_penalty", "presence_penalty"):
            _check_number(name, getattr(self, name), 2, -2)
        bias = self.logit_bias
        given = _as_tuple("logit_bias", [*bias.items()] if isinstance(bias, Mapping) else bias)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given):
            raise ArgumentError("sampling_bias", value=given)
        pairs = tuple(sorted((token, number) for token, number in given))
        for token, number in pairs:
            check_count("logit_bias", token, least=0)
            _check_number("logit_bias", number, inf, -inf)
        words = _as_tuple("bad_words", self.bad_words)
        for word in words:
            if not word or not isinstance(word, str | list | tuple):
                raise ArgumentError("sampling_bad_words", value=words)
            for token in () if isinstance(word, str) else word:
                check_count("bad_words", token, least=0)
        processors = _as_tuple("logits_processors", self.logits_processors)
        if not all(map(callable, processors)):
            raise ArgumentError("sampling_processors", value=processors)
        words = tuple(word if isinstance(word, str) else tuple(word) for word in words)
        for name, value in zip(
            ("logit_bias", "bad_words", "logits_processors"), (pairs, words, processors), strict=True
        ):
            object.__setattr__(self, name, value)


CHANGES = (
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "bad_words",
    "logits_processors",
)


def _as_tuple(what: str, value: object) -> tuple:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ArgumentError("not_a_list", what=what, value=type(value).__name__)
    return tuple(value)


def _check_number(what: str, value: Any, most: float, least: float = 0, with_zero: bool = True) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or abs(value) > LARGEST_COUNT or not isfinite(value):
        raise ArgumentError("sampling_number", what=what, value=value)
    if not least <= value <= most or (value == 0 and not with_zero):
        code = "sampling_range" if with_zero else "out_of_range"
        raise ArgumentError(code, what=what, value=value, low=least, high=most)
