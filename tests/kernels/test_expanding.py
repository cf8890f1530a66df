"""MLA prefill with K and V expanded: the absorbed result, and the queries from which on it costs less."""

import pytest
import torch

from minikv.kernels import expanding, latent_prefill, paged_prefill
from minikv.kernels.expanding import MOST_BYTES, LatentSizes, expand, expanding_pays
from tests.kernels.test_attention import latent_case
from tests.models.running import World

DEEPSEEK = LatentSizes(heads=128, rank=512, rope=64, nope=128, value=128, itemsize=2)
NOPE, ROPE, VALUE, RANK, HEADS = 8, 16, 12, 48, 4


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(
    ("lengths", "queries"), [([37, 16], [37, 16]), ([50, 70, 33], [1, 20, 33]), ([90], [17])]
)
def test_expanded_gives_what_absorbed_gives(lengths, queries, window):
    """Whole prompts, chunks behind a prefix, and a window, whose blocks are gone."""
    case, _ = latent_case(lengths, queries=queries, heads=HEADS, rank=RANK, rope=ROPE, window=window)
    normal = torch.Generator().manual_seed(3)
    up = torch.randn(HEADS, NOPE + VALUE, RANK, generator=normal) * RANK**-0.5
    query = torch.randn(sum(queries), HEADS, NOPE + ROPE, generator=normal)
    rows = {"query_starts": case.query_starts, "max_queries": max(queries), "scale": 0.2, "window": window}
    q_latent = torch.einsum("thn,hnr->thr", query[..., :NOPE], up[:, :NOPE])
    latent = latent_prefill(q_latent, query[..., NOPE:].contiguous(), case.kv, **rows).out
    due = torch.einsum("thr,hvr->thv", latent, up[:, NOPE:])
    got = paged_prefill(query, expand(case.kv, up, NOPE), **rows).out
    torch.testing.assert_close(got, due, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [None, 6])
def test_a_model_answers_the_same_whichever_way_it_goes(monkeypatch, chunk):
    asked, mine = [], World("deepseek_v3")
    monkeypatch.setattr("minikv.models.attention.expanding_pays", lambda *given: asked.append(given) or True)
    assert mine.run(4, chunk=chunk).ties < len(mine.prompts)
    assert asked


@pytest.mark.parametrize(
    ("queries", "width", "pays"),
    [(2048, 2048, True), (512, 4096, True), (64, 2048, False), (2, 64, False), (256, 4096, False)],
)
def test_many_queries_expand_and_few_do_not(queries, width, pays):
    assert expanding_pays("cuda", DEEPSEEK, 1, queries, queries, width) == pays


def test_the_threshold_is_that_of_the_two_sums():
    """For DeepSeek-V3: 2 * (576 + 512) = 2,176 FLOPs a pair and head, or 2 * 320 = 640 and the expansion."""
    least = next(n for n in range(2, 4096) if expanding_pays("cuda", DEEPSEEK, 1, n, n, 4096))
    pairs = least * (4096 - least / 2)
    absorbed = 128 * (2176 * pairs + least * 2 * 512 * 256)
    expanded = 128 * (640 * pairs + 4096 * 2 * 512 * 256) + 206 * 2 * 4096 * DEEPSEEK.key_bytes
    assert expanded < absorbed < 1.01 * expanded
    assert 300 < least < 500


def test_what_is_expanded_is_bounded_and_not_done_where_no_figures_are_known(monkeypatch):
    most = MOST_BYTES // DEEPSEEK.key_bytes
    assert expanding_pays("cuda", DEEPSEEK, 1, most, most, most)
    assert not expanding_pays("cuda", DEEPSEEK, 1, most + 1, most + 1, most + 1)
    assert not expanding_pays("cpu", DEEPSEEK, 1, 2048, 2048, 2048)
    monkeypatch.setitem(expanding.FLOPS_PER_BYTE, "cpu", 10)
    assert expanding_pays("cpu", DEEPSEEK, 1, 2048, 2048, 2048)
