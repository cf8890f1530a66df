"""The answers of a model to the cases of ``tasks`` while a policy evicts: recall, and perplexity. Lesson 14.

    prefill   context in one forward | eviction | span in one forward
    decode    one token a forward, from the first one on, and an eviction after each

The span is given, right answers included, also where the model would have said something else (teacher forcing). So a
chain of questions is asked as if every answer had been right, and counts as right only if all were: the result is the
same as with the model's own answers.

    >>> from minikv.eviction.study.tasks import make_cases
    >>> from minikv.models import load
    >>> score = answer(load("tiny-gqa", device="cpu").model, make_cases("multikey", 4))
    >>> score.asked, score.share > 0.9
    (64, True)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.study.tasks import Case, GradedQuestion
from minikv.models.cache_argument import cache_argument, cache_in

Evicting = Callable[[Any], AbstractContextManager[Any]]
"""Given a model, a context manager: while it is open, forwards of the model evict from the cache that they return."""

DEVIATIONS = 1.959964  # of a normal distribution, on either side: 95 % of it


@dataclass(frozen=True)
class Score:
    """The right answers, and the log-likelihood of the words between the questions.

    ``right`` of ``asked`` questions: one with several answers gives a part for each that was found. ``nats``: minus the
    sum of the log-probabilities of ``words`` fillers, each after the tokens before it. Scores can be added.
    """

    right: float
    asked: int
    nats: float = 0.0
    words: int = 0

    @property
    def share(self) -> float:
        """Of 1."""
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``share``, after Wilson (1927): between 0 and 1, and of some width at both ends too.

        It takes questions as independent. Those of one document share a kept set, which holds only so many facts, and a
        part of a right answer varies less than a whole one. Both make the true interval narrower.
        """
        return wilson(self.right, self.asked)

    @property
    def perplexity(self) -> float:
        """Of the fillers; NaN where there were none."""
        return exp(self.nats / self.words) if self.words else float("nan")

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.right + other.right,
            self.asked + other.asked,
            self.nats + other.nats,
            self.words + other.words,
        )


def wilson(right: float, asked: int, deviations: float = DEVIATIONS) -> tuple[float, float]:
    """The Wilson score interval of ``right`` of ``asked`` (E. B. Wilson, 1927, JASA 22, 209-212)."""
    check_count("asked", asked)
    if not 0 <= right <= asked:
        raise ArgumentError("out_of_range", what="right", value=right, low=0, high=asked)
    share, widened = right / asked, asked + deviations**2
    middle = (right + deviations**2 / 2) / widened
    reach = deviations / widened * sqrt(asked * share * (1 - share) + deviations**2 / 4)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def no_eviction(model: Any) -> AbstractContextManager[Any]:
    """The full cache, as an ``Evicting``."""
    return nullcontext()


def answer(
    model: Any,
    cases: Sequence[Case],
    *,
    evicting: Evicting = no_eviction,
    decode: bool = False,
    batch: int = 64,
) -> Score:
    """The ``Score`` of ``model`` on ``cases`` of one length, ``batch`` of them at a time.

    ``decode``: token by token, see above. Raises ``ArgumentError`` where there is no case, for cases of two lengths,
    and what ``evicting`` raises. The model is unchanged afterwards if ``evicting`` leaves it so.
    """
    return sum(answers(model, cases, evicting=evicting, decode=decode, batch=batch), Score(0, 0))


def answers(
    model: Any,
    cases: Sequence[Case],
    *,
    evicting: Evicting = no_eviction,
    decode: bool = False,
    batch: int = 64,
) -> list[Score]:
    """As ``answer``, one ``Score`` for each case."""
    found = span_logs(model, cases, evicting=evicting, decode=decode, batch=batch)
    return [score for logs, some in found for score in scored(logs, some)]


@torch.no_grad()
def span_logs(
    model: Any,
    cases: Sequence[Case],
    *,
    evicting: Evicting = no_eviction,
    decode: bool = False,
    batch: int = 64,
) -> Iterator[tuple[Tensor, Sequence[Case]]]:
    """Yield log-probabilities [B, n - context, vocabulary] behind the span's tokens, on the CPU, and their B cases.

    The arguments and errors are those of ``answer``.
    """
    check_count("cases", len(cases))
    check_count("batch", batch)
    sizes = {(len(case.tokens), case.context) for case in cases}
    if len(sizes) > 1:
        raise ArgumentError("eviction_case_sizes", sizes=", ".join(map(str, sorted(sizes)[:3])))
    for start in range(0, len(cases), batch):
        some = cases[start : start + batch]
        tokens = torch.from_numpy(np.stack([case.tokens for case in some])).to(model.device)
        with evicting(model):
            logits = _logits(model, tokens, some[0].context, decode)
        yield logits.float().log_softmax(-1).cpu(), some


def _logits(model: Any, tokens: Tensor, context: int, decode: bool) -> Tensor:
    """[B, n - context, vocabulary]: the logits behind every token of the span."""
    length = tokens.shape[1]
    cache, rows, start = None, [], 0
    for end in range(1, length + 1) if decode else (context, length):
        told = end - max(start, context)  # the context itself has no questions
        out = model(
            input_ids=tokens[:, start:end],
            use_cache=True,
            logits_to_keep=max(1, told),
            **cache_argument(model, cache),
        )
        cache, start = cache_in(out), end
        if told > 0:
            rows.append(out.logits)
    return torch.cat(rows, dim=1)


def scored(logs: Tensor, cases: Sequence[Case]) -> list[Score]:
    """The score of each case by ``logs`` [B, n - context, vocabulary], log-probabilities on the CPU."""
    scores = []
    for found, case in zip(logs, cases, strict=True):
        right = sum(_right(found, case.context, asked) for asked in case.asked)
        plain = torch.from_numpy(case.plain)
        words = torch.from_numpy(case.tokens)[plain + 1]
        nats = -float(found[plain - case.context, words].double().sum())
        scores.append(Score(right, len(case.asked), nats, len(plain)))
    return scores


def _right(logs: Tensor, context: int, asked: GradedQuestion) -> float:
    """The part of the answer that is among as many likeliest words; of a chain, the product of its steps."""
    part = 1.0
    for position, answer_ids in zip(asked.positions, asked.answers, strict=True):
        likeliest = logs[position - context].topk(len(answer_ids)).indices.tolist()
        part *= len({*likeliest} & {*answer_ids}) / len(answer_ids)
    return part
