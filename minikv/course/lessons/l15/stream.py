"""Lessons 14b, 15 and 15b: texts read token by token under an eviction policy, and a grade for each part of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.eviction import EvictionReport, Policy, eviction_report, install_kv_eviction
from minikv.eviction.policies.choices import PolicyName
from minikv.eviction.study.tasks import Case
from minikv.models.cache_argument import cache_argument, cache_in

PROMPT = 32  # tokens; the others come one by one


def read(
    model: Any,
    cases: Sequence[Case],
    policy: PolicyName | Policy,
    *,
    end: int = 193,
    next_position: Callable[[Any], int] | None = None,
    **options: Any,
) -> tuple[Tensor, EvictionReport]:
    """Return the log-probabilities [texts, end, vocabulary] of the first ``end`` tokens, and the report.

    ``next_position(cache)`` is the position of the next token; by default, how many tokens the text has so far.
    ``options`` are those of ``install_kv_eviction``.
    """
    tokens = torch.stack([torch.from_numpy(case.tokens) for case in cases])
    cache, logs, step = None, [], 0
    with torch.no_grad(), install_kv_eviction(model, policy=policy, **options):
        while step < end:
            new = tokens[:, step : step + (PROMPT if step == 0 else 1)]
            place = step if next_position is None or cache is None else next_position(cache)
            places = place + torch.arange(new.shape[1])[None]
            out = model(new, position_ids=places, use_cache=True, **cache_argument(model, cache))
            cache, step = cache_in(out), step + new.shape[1]
            logs.append(out.logits.log_softmax(-1))
        return torch.cat(logs, 1), eviction_report(model)


def graded(logs: Tensor, cases: Sequence[Case], start: int, end: int) -> tuple[float, float]:
    """Return the right answers in %, and the perplexity of the ordinary words, from ``start`` to before ``end``."""
    right, nats = [], []
    for row, case in enumerate(cases):
        asked = [(each.positions[0], each.answers[0][0]) for each in case.asked]
        right += [int(logs[row, place].argmax()) == answer for place, answer in asked if start <= place < end]
        nats += [-logs[row, place, case.tokens[place + 1]] for place in case.plain if start <= place < end]
    return 100 * sum(right) / len(right), float(torch.stack(nats).mean().exp())
