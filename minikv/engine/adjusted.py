"""Changes of a row's logits before its token is drawn, as its ``SamplingParams`` ask for: biases, penalties, bans.

    logit_bias             logits[id] += bias
    repetition_penalty     of tokens in the prompt or the output: logit / r above 0, logit * r below (arXiv:1909.05858)
    frequency_penalty      logits[id] -= f * how often the id is in the output
    presence_penalty       logits[id] -= p where it is there at all
    min_tokens, bad_words  the logit of a token that may not come is -inf
    logits_processors      whatever they do, in their order

They apply in this order, the first two and the bans as transformers computes them, the other penalties as OpenAI's API
describes them. A row depends on its own tokens alone, so neither the batch nor a preemption changes an answer. Drafts
count as output for the rows behind them: such a row matters only where all drafts before it were right.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class WithHistory:
    """The params of a row that changes its logits, with the ``tokens`` before it; ``ends`` are the model's own."""

    params: SamplingParams
    tokens: Seq[int]
    num_prompt: int
    ends: frozenset[int] = frozenset()


Asked = SamplingParams | WithHistory
"""What a row of logits is drawn with."""


def plain(asked: Seq[Asked]) -> list[SamplingParams]:
    """Return the params of each row."""
    return [each.params if isinstance(each, WithHistory) else each for each in asked]


def adjusted(logits: Tensor, asked: Seq[Asked]) -> Tensor:
    """Return ``logits`` [rows, vocabulary] with the rows changed that ask for it: a copy, float32 at least, or itself.

    Raises ``ArgumentError`` where a logits processor returns another shape.
    """
    rows = [(row, each) for row, each in enumerate(asked) if isinstance(each, WithHistory)]
    if not rows:
        return logits
    changed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row, each in rows:
        changed[row] = _adjust(changed[row], each)
    return changed


def _adjust(logits: Tensor, asked: WithHistory) -> Tensor:
    params, vocabulary = asked.params, len(logits)
    biased: Any = params.logit_bias  # pairs, once they are checked
    if biased:
        ids, biases = zip(*biased, strict=True)
        logits[_on(logits, ids)] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    if params.repetition_penalty != 1:
        seen = _on(logits, sorted(set(asked.tokens)))
        own = logits[seen]
        logits[seen] = torch.where(own < 0, own * params.repetition_penalty, own / params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        counts = Counter(asked.tokens[asked.num_prompt :])
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[_on(logits, list(counts))] -= times * params.frequency_penalty + params.presence_penalty
    banned = _banned(asked)
    if banned:
        logits[_on(logits, sorted(token for token in banned if token < vocabulary))] = -inf
    for process in params.logits_processors or ():
        found = process(_on(logits, asked.tokens).unsqueeze(0), logits.unsqueeze(0))
        if not isinstance(found, Tensor) or found.shape != (1, vocabulary):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ArgumentError("sampling_processor", found=shape, vocabulary=vocabulary)
        logits = found[0]
    return logits


def _banned(asked: WithHistory) -> set[int]:
    params, tokens = asked.params, list(asked.tokens)
    banned: set[int] = set()
    if len(tokens) - asked.num_prompt < params.min_tokens:
        banned |= {*params.stop_token_ids, *asked.ends}
    words: Any = params.bad_words  # of ids, once the tokenizer has read them
    for word in words:
        *before, last = word
        if not before or tokens[-len(before) :] == before:
            banned.add(int(last))
    return banned


def _on(logits: Tensor, ids: Seq[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64, device=logits.device)
