"""How the history is cut into tiles is nobody's business but the processor cache's."""

from dataclasses import replace

import pytest
import torch

from minikv.kernels import kv_tiles, latent_decode, latent_prefill, paged_decode, paged_prefill
from tests.kernels.dense import make_case

LENGTHS, QUERIES = [1, 15, 64, 130, 100], [1, 4, 64, 3, 70]


def everything(case):
    """The results of the four operations over the same cache, the last two taking its K for latents."""
    last = case.query_starts[1:].long() - 1
    rows = dict(query_starts=case.query_starts, max_queries=case.max_queries, return_lse=True, **case.options)
    own = dict(return_lse=True, return_scores=True, **case.options)
    yield from paged_decode(case.query[last], case.kv, **own)
    yield from paged_prefill(case.query, case.kv, **rows)
    latents = replace(case.kv, k=case.k_cache[:, :, :1].contiguous(), v=case.v_cache[:, :, :1].contiguous())
    for options in (own, rows):
        options.pop("softcap")
    yield from latent_decode(case.query[last], case.query[last], latents, **own)
    yield from latent_prefill(case.query, case.query, latents, **rows)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    ("tile_bytes", "block_size"), [(1, 1), (1, 48), (2**15, 16), (2**15, 256), (2**17, 16), (2**17, 48)]
)
def test_tiles_of_any_size_give_the_same(monkeypatch, tile_bytes, block_size, window):
    """Many blocks a tile, and many tiles a block."""
    case = make_case(LENGTHS, queries=QUERIES, window=window, block_size=block_size)
    want = list(everything(case))
    monkeypatch.setattr(kv_tiles, "TILE_BYTES", tile_bytes)
    for got, expected in zip(everything(case), want, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
