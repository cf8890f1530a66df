"""Lesson 13: the same model with larger numbers in its keys, in a few channels or in all of them."""

from typing import Any

import torch


@torch.no_grad()
def enlarge_keys(model: Any, factor: float, pairs: int = 1) -> Any:
    """Multiply the first ``pairs`` pairs of channels of every key by ``factor``, and divide those of every query by it.

    ``model`` is a Llama; it is changed in place and returned. RoPE rotates channel i together with channel i + head_dim
    / 2, so a pair holds both. Every product of a query and a key stays the same, exactly so where ``factor`` is a power
    of 2.
    """
    for layer in model.model.layers:
        attention = layer.self_attn
        half = attention.head_dim // 2
        channels = [channel for pair in range(pairs) for channel in (pair, pair + half)]
        for projection, by in ((attention.k_proj, factor), (attention.q_proj, 1 / factor)):
            rows = projection.weight.view(-1, attention.head_dim, projection.in_features)
            rows[:, channels] *= by
    return model
