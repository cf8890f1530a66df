"""Attention over blocks equals dense attention: in plain torch, and in the Triton kernel, interpreted on a CPU."""

import pytest
import torch

from minikv.nano.attention import decode_on_gpu, paged_attention, triton
from minikv.nano.runner import make_batch
from minikv.nano.sequence import SamplingParams, Sequence

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Without a GPU the interpreter runs it; with one it is what `python -m tools.gpu` runs.
kernel = pytest.mark.gpu if DEVICE == "cuda" else lambda test: test
SHAPES = {  # (KV heads, queries of each, k_dim, v_dim, block size)
    "mha": (3, 1, 16, 16, 4),
    "gqa, odd sizes": (2, 3, 10, 14, 5),
    "mqa": (1, 20, 32, 32, 1),
    "wide values": (2, 2, 24, 40, 16),
}
OPTIONS = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 0.7},
    "both": {"window": 3, "softcap": 2.0},
}


def world(shape, ends, news):
    """A step in which sequence i has ``ends[i]`` tokens and computes the last ``news[i]``, with its dense K and V."""
    heads, group, k_dim, v_dim, size = SHAPES[shape]
    torch.manual_seed(0)
    blocks = torch.randperm(sum(-(-end // size) for end in ends) + 3).tolist()
    k_cache = torch.full((len(blocks), size, heads, k_dim), 1e4)  # what nobody wrote must not be seen
    v_cache = torch.full((len(blocks), size, heads, v_dim), 1e4)
    step, dense = [], []
    for end, new in zip(ends, news, strict=True):
        table = [blocks.pop() for _ in range(-(-end // size))]
        k, v = torch.randn(end, heads, k_dim), torch.randn(end, heads, v_dim)
        for i in range(end):
            k_cache[table[i // size], i % size], v_cache[table[i // size], i % size] = k[i], v[i]
        step.append((Sequence(0, [0] * end, end, SamplingParams(), table), end - new, end))
        dense.append((k, v))
    query = torch.randn(sum(news), heads * group, k_dim)
    return query, k_cache, v_cache, make_batch(step, size, torch.device("cpu")), step, dense


def by_hand(query, step, dense, scale, window=None, softcap=None):
    """One query at a time, in float64."""
    rows, out = iter(query.double()), []
    for (_, start, end), (k, v) in zip(step, dense, strict=True):
        group = query.shape[1] // k.shape[1]
        for at in range(start, end):
            first = 0 if window is None else max(0, at - window + 1)
            keys, values = (x[first : at + 1].double().repeat_interleave(group, 1) for x in (k, v))
            logits = torch.einsum("nhd,hd->hn", keys, next(rows)) * scale
            logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            out.append(torch.einsum("hn,nhd->hd", logits.softmax(-1), values))
    return torch.stack(out).float()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_torch_is_dense_attention(shape, options):
    query, k, v, batch, step, dense = world(shape, ends=(1, 9, 23, 40, 40), news=(1, 1, 1, 17, 40))
    found = paged_attention(query, k, v, batch, 0.3, **OPTIONS[options])
    torch.testing.assert_close(
        found, by_hand(query, step, dense, 0.3, **OPTIONS[options]), atol=1e-5, rtol=1e-4
    )


@kernel
@pytest.mark.skipif(triton is None, reason="Triton runs on Linux")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_triton_kernel_is_plain_torch(shape, options):
    query, k, v, batch, *_ = world(shape, ends=(1, 9, 32, 33, 70), news=(1,) * 5)
    assert batch.is_decode
    plain = paged_attention(query, k, v, batch, 0.3, **OPTIONS[options])
    moved = type(batch)(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in vars(batch).values()))
    found = decode_on_gpu(query.to(DEVICE), k.to(DEVICE), v.to(DEVICE), moved, 0.3, **OPTIONS[options])
    torch.testing.assert_close(found.cpu(), plain, atol=1e-5, rtol=1e-4)
