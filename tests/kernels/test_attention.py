"""The reference attention against dense attention in float64: the specification is itself specified."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from minikv.kernels import latent_decode, latent_prefill, merge_splits, paged_decode, paged_prefill
from minikv.kernels.attention import QUERY_ROWS
from tests.kernels.dense import Case, dense, make_case

# Of float32 arithmetic; the rounding of the output to its own dtype comes on top.
CLOSE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LENGTHS = [1, 15, 16, 17, 33, 100]
VARIANTS = {
    "plain": {},
    "window": {"window": 20},
    "window of one": {"window": 1},
    "softcap": {"softcap": 2.0, "sharpness": 4.0},
    "sinks": {"sinks": True},
    "all": {"window": 33, "softcap": 5.0, "sinks": True, "sharpness": 3.0},
    "multi-head": {"group": 1, "kv_heads": 3},
    "multi-query": {"group": 8, "kv_heads": 1},
    "value dim": {"dims": (192, 128)},
    "wide": {"wide": True, "dims": (96, 32)},
    "block of 1": {"block_size": 1},
    "block of 7": {"block_size": 7},
    "block of 256": {"block_size": 256},
    "int64": {"index_dtype": torch.int64},
}


def close(got, want, dtype):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double().cpu(), want, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def decode(case: Case, **more):
    return paged_decode(case.query, case.kv, **case.options, **more)


def prefill(case: Case, **more):
    rows = {"query_starts": case.query_starts, "max_queries": case.max_queries}
    return paged_prefill(case.query, case.kv, **rows, **case.options, **more)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_decode_is_dense_attention(dtype, variant):
    case = make_case(LENGTHS, dtype=dtype, **VARIANTS[variant])
    got = decode(case, return_lse=True, return_scores=True)
    out, lse, scores = dense(case)
    close(got.out, out, dtype)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores.double(), scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_is_dense_attention(variant):
    case = make_case(LENGTHS, queries=[1, 15, 5, 17, 1, 60], **VARIANTS[variant])
    got = prefill(case, return_lse=True)
    out, lse, _ = dense(case)
    close(got.out, out, torch.float32)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_quantized_cache_is_read_as_what_it_stores(stored, scaled):
    if scaled == (stored == torch.bfloat16) or (stored == torch.int8 and not scaled):
        pytest.skip("scales are for 8 bits, and int8 needs them")
    case = make_case(LENGTHS, stored=stored, scaled=scaled, window=40)
    close(decode(case).out, dense(case)[0], torch.float32)
    case = make_case(LENGTHS, queries=[1, 3, 16, 2, 20, 50], stored=stored, scaled=scaled)
    close(prefill(case).out, dense(case)[0], torch.float32)


def test_a_row_of_length_zero_is_padding():
    case = make_case([0, 20, 0], queries=[1, 1, 1])
    got = decode(case, return_lse=True, return_scores=True)
    assert not got.out[[0, 2]].any()
    assert got.lse[[0, 2]].eq(-torch.inf).all()
    assert not got.scores[[0, 2]].any()
    assert got.out[1].isfinite().all()


def test_no_sequence_at_all():
    case = make_case([5])
    none = replace(case.kv, block_tables=case.block_tables[:0], lengths=case.lengths[:0])
    got = paged_decode(case.query[:0], none, scale=1.0, return_scores=True)
    assert got.out.shape == (0, 8, 64)
    assert got.scores.shape == (0, 2, 32)


def test_chunks_of_a_prompt_are_the_prompt():
    """Prefill in chunks, with the tokens so far as the length, gives each token what one prefill gives it."""
    case = make_case([QUERY_ROWS + 90], queries=[QUERY_ROWS + 90], window=70)
    whole = prefill(case).out
    parts, ends = [], [1, 90, 91, 200, QUERY_ROWS + 90]
    for start, end in pairwise([0, *ends]):
        so_far, rows = replace(case.kv, lengths=torch.tensor([end])), torch.tensor([0, end - start])
        part = paged_prefill(case.query[start:end], so_far, rows, max_queries=end - start, **case.options)
        parts.append(part.out)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)


def test_a_sequence_of_more_than_one_tile():
    case = make_case([5000], group=2, dims=(128, 128), kv_heads=4, sharpness=2.0)
    got = decode(case, return_lse=True, return_scores=True)
    out, _, scores = dense(case)
    close(got.out, out, torch.float32)
    torch.testing.assert_close(got.scores.double(), scores, rtol=1e-4, atol=1e-7)


def test_more_than_two_to_the_17_tokens():
    case = make_case([2**17 + 5], group=2, kv_heads=1, dims=(64, 64), sharpness=2.0)
    got = decode(case, return_scores=True)
    out, _, scores = dense(case)
    torch.testing.assert_close(got.out.double(), out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores.double(), scores, rtol=1e-4, atol=1e-7)


def test_scores_share_out_what_the_sink_leaves():
    case = make_case(LENGTHS, sinks=True, group=4)
    got = decode(case, return_lse=True, return_scores=True)
    sink = torch.exp(case.options["sinks"] - got.lse).view(len(LENGTHS), 2, 4).sum(-1)
    torch.testing.assert_close(got.scores.sum(-1), 4 - sink, rtol=1e-5, atol=1e-5)


def test_large_logits_overflow_nothing():
    case = make_case([300], sharpness=3000.0)
    out = decode(case).out
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), dense(case)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_merged_splits_are_the_whole(splits):
    case = make_case([97])
    want = decode(case, return_lse=True)
    edges = torch.linspace(0, 97, splits + 1).int().tolist()
    outs, lses = [], []
    for low, high in pairwise(edges):
        part = Case(
            case.query, *_flat(case, low, high), torch.tensor([[0]]), torch.tensor([high - low]),
            case.query_starts, [], [], case.options,
        )  # fmt: skip
        got = decode(part, return_lse=True)
        outs.append(got.out)
        lses.append(got.lse)
    outs.append(torch.full_like(outs[0], 0))  # a split without a key
    lses.append(torch.full_like(lses[0], -torch.inf))
    out, lse = merge_splits(torch.stack(outs), torch.stack(lses))
    torch.testing.assert_close(out, want.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, want.lse, rtol=1e-6, atol=1e-6)


def test_splits_without_a_key_are_no_number_of_keys():
    out, lse = merge_splits(torch.zeros(3, 2, 4), torch.full((3, 2), -torch.inf))
    assert out.eq(0).all()
    assert lse.eq(-torch.inf).all()


def _flat(case, low, high):
    """Tokens ``low`` to ``high`` of the one sequence as caches of one block."""
    return [x[0][low:high].float().unsqueeze(0) for x in (case.keys, case.values)]


def latent_case(lengths, *, queries=None, heads=16, rank=48, rope=16, window=None, **more):
    """A wide cache whose latent is key and value: K = [latent, rope], V = latent."""
    return make_case(
        lengths, queries=queries, kv_heads=1, group=heads, dims=(rank, rope), wide=True, window=window, **more
    ), rank


def absorbed(case, rank, rope=16, seed=5):
    """Queries for the latent and for the rope key, and the case as ``dense`` reads it."""
    count, heads, _ = case.query.shape
    query = torch.randn(count, heads, rank + rope, generator=torch.Generator().manual_seed(seed))
    keys = [torch.cat(pair, -1) for pair in zip(case.keys, case.values, strict=True)]
    options = {"scale": 0.1, "window": case.options["window"]}
    as_dense = Case(
        query,
        case.k_cache,
        case.k_cache,
        case.block_tables,
        case.lengths,
        case.query_starts,
        keys,
        case.keys,
        options,
    )
    return query[..., :rank], query[..., rank:].contiguous(), as_dense, options


@pytest.mark.parametrize("window", [None, 20])
def test_latent_decode_is_dense_attention_over_latents(window):
    case, rank = latent_case(LENGTHS, window=window)
    q_latent, q_rope, as_dense, options = absorbed(case, rank)
    got = latent_decode(q_latent, q_rope, case.kv, return_lse=True, return_scores=True, **options)
    out, lse, scores = dense(as_dense)
    close(got.out, out, torch.float32)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores.double(), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 20])
def test_latent_prefill_is_dense_attention_over_latents(window):
    case, rank = latent_case(LENGTHS, queries=[1, 15, 5, 17, 1, 60], window=window)
    q_latent, q_rope, as_dense, options = absorbed(case, rank)
    rows = {"query_starts": case.query_starts, "max_queries": 60}
    got = latent_prefill(q_latent, q_rope, case.kv, **rows, return_lse=True, **options)
    out, lse, _ = dense(as_dense)
    close(got.out, out, torch.float32)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-5)


def test_absorbing_is_the_attention_of_mla():
    """q (latent W_UK)^T = (q W_UK^T) latent^T, and (P latent) W_UV = P (latent W_UV), in a small MLA layer."""
    heads, nope, rope, value, rank = 4, 8, 16, 12, 48
    generator = torch.Generator().manual_seed(3)
    case, _ = latent_case([37, 16], heads=heads, rank=rank, rope=rope)
    w_uk = torch.randn(heads, nope, rank, generator=generator, dtype=torch.float64) * rank**-0.5
    w_uv = torch.randn(heads, value, rank, generator=generator, dtype=torch.float64) * rank**-0.5
    q_nope = torch.randn(2, heads, nope, generator=generator, dtype=torch.float64)
    q_rope = torch.randn(2, heads, rope, generator=generator)
    scale = (nope + rope) ** -0.5
    q_latent = torch.einsum("bhn,hnr->bhr", q_nope, w_uk).float()
    got = latent_decode(q_latent, q_rope, case.kv, scale=scale).out
    for row in range(2):
        latent, key_rope = case.keys[row][:, 0], case.values[row][:, 0]
        k_nope = torch.einsum("sr,hnr->shn", latent, w_uk)
        v = torch.einsum("sr,hvr->shv", latent, w_uv)
        logits = torch.einsum("hn,shn->hs", q_nope[row], k_nope) + q_rope[row].double() @ key_rope.t()
        want = torch.einsum("hs,shv->hv", torch.softmax(logits * scale, -1), v)
        mine = torch.einsum("hr,hvr->hv", got[row].double(), w_uv)
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)
