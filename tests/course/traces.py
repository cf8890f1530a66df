"""Traces of eviction made up from a seed, without a model: what the heat-map has to draw of any of them."""

import numpy as np

from minikv.eviction.policies.budget import Budget
from minikv.eviction.study.trace import EvictionTrace


def made_up_trace(
    seed: int, *, layers: int = 2, heads: int = 2, scope: str = "head", length: int = 24, prompt: int = 8
) -> EvictionTrace:
    """Random scores, and after each step the sinks, the recent and random others up to a random capacity."""
    random = np.random.default_rng(seed)
    sinks, heavy, recent = (int(random.integers(low, 4)) for low in (0, 0, 1))
    capacity, steps = sinks + heavy + recent, length - prompt + 1
    shape = (layers, heads, steps, length)
    scores, kept = np.full(shape, np.nan, np.float32), np.zeros(shape, bool)
    for layer in range(layers):
        resident = [set(range(prompt)) for _ in range(heads)]
        for step in range(steps):
            seen = prompt + step
            shared = random.normal(size=length)
            for head in range(heads):
                if step:
                    resident[head].add(seen - 1)
                values = shared if scope == "layer" else random.normal(size=length)
                for token in resident[head]:
                    scores[layer, head, step, token] = values[token]
                sure = {token for token in resident[head] if token < sinks or token >= seen - recent}
                others = sorted(resident[head] - sure, key=lambda token: -values[token])
                resident[head] = sure | set(others[: capacity - len(sure)])
                kept[layer, head, step, list(resident[head])] = True
    held = kept.sum((0, 1, 3)).astype(np.int64) * 64
    return EvictionTrace(
        tokens=random.integers(4, 190, length),
        prompt=prompt,
        layers=tuple(range(0, 2 * layers, 2)),
        scores=scores,
        kept=kept,
        predicted=random.integers(0, 196, steps),
        bytes_held=held,
        token_bytes=64 * layers * heads,
        budget=Budget(n_sink=sinks, budget=heavy, n_recent=recent, evict_every=1),
        capacity=(capacity,) * layers,
        policy="random",
        scope=scope,
    )
