"""forget: a layer's tokens by their scores, down to its capacity; and what is written down about it. Lesson 14.

In a decode step the few worst go and the last tokens take their slots: it costs the copy of a few tokens. After a
prompt, or where slots have to lie in order, what stays is gathered into new storage.
"""

from typing import Any

from torch import Tensor

from minikv.eviction.buffers import take
from minikv.eviction.layer_checks import check_score
from minikv.eviction.select import few_worst, select


def forget(layer: Any, score: Tensor) -> None:
    """Let ``layer`` keep its sinks, its recent window and the best of ``score`` [B, H or 1, S]."""
    budget, rules, record = layer.rules.budget, layer.rules, layer.record
    shape = (*layer.keys.shape[:2], layer.resident)
    check_score(score, shape)
    extra = layer.resident - budget.capacity
    if layer.new == 1 and extra <= budget.evict_every and not rules.in_order:
        _drop_worst(layer, score, extra)
    else:
        places = None if layer.in_order else layer.positions
        options = {"n_sink": budget.n_sink, "n_recent": budget.n_recent, "budget": budget.budget}
        scored = score.expand(shape)
        layer.compact(select(scored, valid=layer.valid, scope=rules.scope, positions=places, **options))
    record.evictions += 1
    record.dropped += extra
    if budget.n_sink == 0:
        gone = ~(layer.positions == 0).any(-1).all()
        record.first_gone = gone | record.first_gone


def _drop_worst(layer: Any, score: Tensor, extra: int) -> None:
    budget, places = layer.rules.budget, layer.positions
    kept = {"n_sink": budget.n_sink, "n_recent": budget.n_recent}
    dropped = few_worst(score, places, extra, scope=layer.rules.scope, **kept)
    dropped = dropped.expand(*layer.keys.shape[:2], extra)
    ages = places.amax(-1, keepdim=True) - take(places, dropped)
    layer.record.dropped_few(ages, budget.n_recent + budget.evict_every, score)
    layer.drop(dropped)
