"""Attention over the blocks of the cache: the function that a model of transformers calls once a layer.

`attend` stores the new K and V in their slots, then `paged_attention` lets every query look at its sequence's
blocks: plain torch, which is the specification. On a GPU, decode steps run `paged_decode_kernel` instead,
which reads each block where it lies and makes no copy.
"""

from typing import Any

import torch
from torch import Tensor

from minikv.errors import ConfigError, MiniKVError
from minikv.nano.kv_cache import KVCache
from minikv.nano.runner import Batch

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on macOS and Windows: plain torch does the same
    triton = None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch | None = None,
    kv_cache: KVCache | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer, as transformers' ``AttentionInterface`` calls it: [1, T, Hq, Dv].

    ``query`` [1, Hq, T, Dk], ``key`` [1, Hkv, T, Dk] and ``value`` [1, Hkv, T, Dv] are those of the T new
    tokens. The T tokens belong to many sequences, one after the other; ``batch`` says which. A key of an MLA
    layer arrives expanded, one for each head, and is stored so.
    """
    if batch is None or kv_cache is None:
        raise ConfigError("nano_cannot", model=type(module).__name__, why=MiniKVError("nano_no_arguments"))
    if s_aux is not None:
        raise ConfigError("nano_cannot", model=type(module).__name__, why=MiniKVError("nano_sinks"))
    layer = module.layer_idx
    kv_cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), batch.slots)
    rows = query[0].transpose(0, 1)  # [T, Hq, Dk]
    scale = rows.shape[-1] ** -0.5 if scaling is None else scaling
    run = decode_on_gpu if rows.is_cuda and batch.is_decode else paged_attention
    k, v, window = kv_cache.k[layer], kv_cache.v[layer], kv_cache.windows[layer]
    out = run(rows, k, v, batch, scale, window, softcap)
    return out.unsqueeze(0), None  # [1, T, Hq, Dv]


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of ``query`` [T, Hq, Dk] over the blocks of its sequences: [T, Hq, Dv].

    ``k_cache`` [num_blocks, block_size, Hkv, Dk], ``v_cache`` [..., Dv]. A query at position p sees positions
    0 to p, or with a ``window`` the last ``window`` of them. ``softcap`` c bends a logit x into
    c * tanh(x / c), as in Gemma 2.
    """
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])
    for sequences, rows, columns in batch.groups:  # n sequences with q queries each
        blocks = batch.block_tables[sequences, :columns]  # [n, W]
        k = k_cache[blocks].flatten(1, 2)  # [n, S, Hkv, Dk], S = W * block_size
        v = v_cache[blocks].flatten(1, 2)  # [n, S, Hkv, Dv]
        n, length, heads, _ = k.shape
        q = query[rows].view(n, -1, heads, query.shape[1] // heads, query.shape[2])  # [n, q, Hkv, G, Dk]
        logits = torch.einsum("nqhgd,nshd->nhgqs", q, k).float() * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        query_at = batch.positions[rows].view(n, 1, 1, -1, 1)
        key_at = torch.arange(length, device=query.device)  # padding lies behind every query
        hidden = key_at > query_at  # [n, 1, 1, q, S]
        if window is not None:
            hidden |= key_at <= query_at - window
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
        out[rows] = torch.einsum("nhgqs,nshd->nqhgd", weights, v).reshape(-1, *out.shape[1:])
    return out


def decode_on_gpu(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`paged_attention` where every sequence has one query, as one launch of the Triton kernel."""
    num_seqs, query_heads, k_dim = query.shape
    _, block_size, heads, v_dim = v_cache.shape
    group = query_heads // heads
    out = query.new_empty(num_seqs, query_heads, v_dim)
    paged_decode_kernel[(num_seqs, heads)](
        query.contiguous(), k_cache, v_cache, batch.block_tables, batch.lengths, out, scale,
        window or 0, softcap or 0.0, batch.block_tables.stride(0), block_size, heads,
        group, k_dim, v_dim,
        GROUP=max(16, triton.next_power_of_2(group)),  # tl.dot wants 16 rows
        K_DIM=max(16, triton.next_power_of_2(k_dim)), V_DIM=max(16, triton.next_power_of_2(v_dim)), TILE=32,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit
    def paged_decode_kernel(
        query, k_cache, v_cache, block_tables, lengths, out, scale,
        window, softcap, table_stride, block_size, heads,
        group, k_dim, v_dim,
        GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """One program for a sequence and a KV head: ``group`` queries, which share the head, over all tokens.

        The constants are sizes rounded up to powers of two, as Triton wants them; masks cut off the surplus.
        """
        seq, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(lengths + seq).to(tl.int32)
        rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
        first_row = (seq * heads + head) * group  # of query seen as [B * Hq, Dk]
        real = (rows < group)[:, None]
        q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0)

        best = tl.full([GROUP], -float("inf"), tl.float32)  # the largest logit so far
        total = tl.zeros([GROUP], tl.float32)  # the sum of exp(logit - best)
        summed = tl.zeros([GROUP, V_DIM], tl.float32)  # the same sum, each term times its value
        first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
        for start in range(first, length, TILE):
            at = start + tl.arange(0, TILE)  # positions of this tile's keys
            seen = at < length
            block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
            slot = block.to(tl.int64) * block_size + at % block_size
            token = (slot * heads + head)[:, None]  # row of the cache seen as [slots * Hkv, D]
            k = tl.load(k_cache + token * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)
            v = tl.load(v_cache + token * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)

            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [GROUP, TILE]
            if softcap > 0:
                bent = tl.exp(-2 * tl.abs(logits) / softcap)  # tanh(x) = (1 - e^-2x) / (1 + e^-2x) for x >= 0
                logits = tl.where(logits < 0, -softcap, softcap) * (1 - bent) / (1 + bent)
            logits = tl.where(seen, logits, -float("inf"))
            # Online softmax: where a larger logit turns up, what was summed is scaled down to it.
            better = tl.maximum(best, tl.max(logits, 1))
            shrink = tl.exp(best - better)
            weights = tl.exp(logits - better[:, None])
            total = total * shrink + tl.sum(weights, 1)
            summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            best = better
        row = out + (first_row + rows)[:, None] * v_dim + dv
        tl.store(row, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))
