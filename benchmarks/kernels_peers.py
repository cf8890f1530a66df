"""Decode attention by others: torch's SDPA, its compiled FlexAttention, and transformers' paged path.

Each is made from a ``Paged`` case once and returns what is timed, a call without arguments that gives [B, Hq, D].
SDPA and FlexAttention get K and V lying one by one, which a paged cache would first have to copy.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.kernels_cases import Paged

Decode = Callable[[], Tensor]


class NotHereError(Exception):
    """A peer that cannot run here, and why."""


def sdpa_grouped(case: Paged, keys: Tensor, values: Tensor) -> Decode:
    """SDPA as its documentation has it: ``enable_gqa``."""
    mask = _padding(case, keys.shape[2])
    query = case.query.unsqueeze(2)
    return lambda: sdpa(query, keys, values, mask, scale=case.heads.scale, enable_gqa=True).squeeze(2)


def sdpa_packed(case: Paged, keys: Tensor, values: Tensor) -> Decode:
    """SDPA with the query heads of a KV head as its queries: K and V are read once for all of them."""
    mask = _padding(case, keys.shape[2])
    rows, heads = len(case.query), case.heads
    query = case.query.view(rows, heads.kv, heads.query // heads.kv, heads.dim)
    return lambda: sdpa(query, keys, values, mask, scale=heads.scale).view(rows, heads.query, heads.dim)


def gathered(case: Paged, form: Callable[[Paged, Tensor, Tensor], Decode]) -> Decode:
    """``form`` of SDPA on a copy of the history that is made for it, step by step."""
    return lambda: form(case, case.gathered(case.kv.k), case.gathered(case.kv.v))()


def flex(case: Paged, keys: Tensor, values: Tensor, compiled: bool = True) -> Decode:
    """FlexAttention, compiled for this very shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, _, length, _ = keys.shape
    block_mask = None
    if _padding(case, length) is not None:
        lengths = case.kv.lengths
        block_mask = create_block_mask(
            lambda b, h, q, k: k < lengths[b], rows, None, 1, length, device=str(keys.device)
        )
    attend = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    query = case.query.unsqueeze(2)
    options: dict[str, Any] = dict(scale=case.heads.scale, enable_gqa=True, block_mask=block_mask)
    return lambda: attend(query, keys, values, **options).squeeze(2)


def transformers_paged(case: Paged) -> Decode:
    """transformers' ``sdpa`` attention on its paged cache, as continuous batching calls it for a batch of decodes.

    All sequences stand in one row behind each other, and a mask keeps them apart. Its cache is copied out by token
    (``read_index``) and the new token written (``write_index``), as ``PagedAttentionCache.update`` does; the class is
    made without its constructor, which asks for a whole model.
    """
    try:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.integrations.sdpa_paged import sdpa_attention_paged_forward as forward
    except ImportError as error:
        raise NotHereError(f"transformers has no paged path here: {error}") from error
    heads, block_size = case.heads, case.kv.k.shape[1]
    k_flat, v_flat = (x.flatten(0, 1) for x in (case.kv.k, case.kv.v))
    slots = (case.kv.block_tables.long() * block_size).unsqueeze(-1) + torch.arange(
        block_size, device=case.kv.block_tables.device
    )
    slots = slots.flatten(1)
    held = torch.arange(slots.shape[1], device=slots.device) < case.kv.lengths.unsqueeze(1)
    read, last = slots[held], slots.gather(1, case.kv.lengths.long().unsqueeze(1) - 1).squeeze(1)
    owner = torch.arange(len(slots), device=slots.device).repeat_interleave(case.kv.lengths.long())
    mask = None
    if len(slots) > 1:
        mask = (owner == torch.arange(len(slots), device=slots.device).unsqueeze(1))[None, None]

    class Cache(PagedAttentionCache):
        def __init__(self) -> None:
            pass

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, **given: Any) -> Any:
            """4.5x to 5.2x take the copies by token, later ones as the keys of a batch of one."""
            copies = []
            for flat, new in ((k_flat, key_states), (v_flat, value_states)):
                flat.index_copy_(0, last, new[0].transpose(0, 1))
                copies.append(flat.index_select(0, read))
            if "kwargs" in given:
                copies = [x.transpose(0, 1).unsqueeze(0) for x in copies]
            return tuple(copies)

    module = SimpleNamespace(num_key_value_groups=heads.query // heads.kv, layer_idx=0, is_causal=True)
    new = [flat[last].transpose(0, 1).unsqueeze(0) for flat in (k_flat, v_flat)]
    query = case.query.transpose(0, 1).unsqueeze(0)
    options = dict(scaling=heads.scale, cache=Cache(), read_index=read, write_index=last)
    return lambda: forward(module, query, *new, mask, **options)[0][0]


def _padding(case: Paged, length: int) -> Tensor | None:
    """Which of ``length`` keys a sequence has, [B, 1, 1, length]; None where it is all of them."""
    if bool((case.kv.lengths == length).all()):
        return None
    held = torch.arange(length, device=case.kv.lengths.device) < case.kv.lengths.unsqueeze(1)
    return held[:, None, None]
