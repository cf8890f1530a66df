"""Decode on a CPU of pages that have to be copied: sequences of about equal length are computed together. Lesson 10.

For a history of a hundred tokens, one sequence at a time costs more in torch calls than in arithmetic. So the sequences
are sorted by the tokens that they read, and cut into groups so that their keys and values, padded to the longest, fit
into one tile. A group is a gather and one ``scaled_dot_product_attention``, with the G query heads of a KV head as G
queries. The padding holds another request's tokens. It is overwritten with 0 before it is read, because a masked NaN
would still give NaN.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minikv.kernels.kv_tiles import TILE_BYTES, BlockReader
from minikv.kernels.paged_kv import PagedKV

MOST_BYTES = 2**24  # of the keys and values of a group that are copied as they are stored
LEAST_SHARE = 0.75  # the shortest sequence of a group reads at least this share of the longest's tokens


def decode_in_groups(query: Tensor, kv: PagedKV, *, scale: float, window: int | None, out: Tensor) -> Tensor:
    """Write the attention of ``query`` [B, Hq, Dk] into ``out`` [B, Hq, Dv] for all sequences that are in a group.

    Returns the indices of the others: those without a token, longer than a tile, or without others of about their
    length.
    """
    # torch's attention multiplies bfloat16 as it is stored, and adds up in float32.
    as_stored = kv.k_scale is None and kv.k.dtype == kv.v.dtype == query.dtype == torch.bfloat16
    dtype, lengths = query.dtype if as_stored else torch.float32, kv.lengths
    keys, values = BlockReader(kv.k, kv.k_scale, dtype), BlockReader(kv.v, kv.v_scale, dtype)
    size, heads = keys.block_size, keys.heads
    starts = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_(min=0)
    first = starts // size  # the block of the first token that the query sees
    spans, order = (lengths - first * size).sort(descending=True)
    tokens = spans.tolist()
    block_bytes = dtype.itemsize * size * heads * (keys.dim + values.dim)
    # What is not converted is copied quickly: then a sequence alone gains, too, and so do long ones.
    most, least = (MOST_BYTES, 1) if as_stored else (TILE_BYTES, 2)
    groups = list(_groups(tokens, size, most // block_bytes, least))
    if not groups:
        return order
    # From here on everything is sorted by length. Padding reads block 0, which always exists.
    width = max(-(-tokens[group.start] // size) for group in groups)
    # The table's columns from the first visible block on. Places before the window or past the length are hidden.
    columns = torch.arange(width) + first[order].unsqueeze(1)
    beyond = columns * size >= lengths[order].unsqueeze(1)
    blocks = kv.block_tables[order].gather(1, columns.masked_fill(beyond, 0).long()).masked_fill_(beyond, 0)
    place = torch.arange(width * size)
    hidden = (place < (starts - first * size)[order].unsqueeze(1)) | (place >= spans.unsqueeze(1))
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None, None]
    queries = query[order].to(dtype).unflatten(1, (heads, -1))  # [B, Hkv, G, Dk]
    for group in groups:
        count = -(-tokens[group.start] // size)
        end = count * size
        padding = hidden[group, :end].flatten().nonzero().flatten()
        named = blocks[group, :count].flatten()
        # [group * end, Hkv, D] -> [group, Hkv, end, D]
        k, v = (
            reader.read(named).index_fill_(0, padding, 0).unflatten(0, (-1, end)).transpose(1, 2)
            for reader in (keys, values)
        )
        own = mask[group, ..., :end] if len(padding) else None
        part = scaled_dot_product_attention(queries[group], k, v, attn_mask=own, scale=scale)
        out[order[group]] = part.flatten(1, 2).to(out.dtype)
    alone = torch.ones(len(order), dtype=torch.bool)
    for group in groups:
        alone[group] = False
    return order[alone]


def _groups(tokens: Sequence[int], block_size: int, most_blocks: int, least: int) -> Iterator[slice]:
    """Cut sequences, the longest first, into runs of ``least`` or more; ``tokens`` has the tokens that each reads."""
    start = 0
    while start < len(tokens):
        most = most_blocks // max(1, -(-tokens[start] // block_size))
        end = start + (most > 0 and tokens[start] > 0)
        while end < len(tokens) and end - start < most and tokens[end] >= LEAST_SHARE * tokens[start] > 0:
            end += 1
        if end - start >= least:
            yield slice(start, end)
        start = max(end, start + 1)
