"""The attention that a prefill gives each token, reference and Triton, against dense attention in float64."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import (
    PagedKV,
    latent_column_sums,
    latent_prefill,
    paged_column_sums,
    paged_decode,
    paged_prefill,
    reference,
)
from minikv.kernels.attention import QUERY_ROWS
from minikv.kernels.gpu.common import Device
from minikv.kernels.gpu.configs import Config
from minikv.kernels.gpu.sums import sums_launch
from tests.kernels.dense import Case, dense, make_case
from tests.kernels.test_attention import absorbed, latent_case
from tests.longer import every_value

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS, QUERIES = [1, 15, 16, 17, 33, 70], [1, 15, 5, 17, 1, 40]
VARIANTS = {
    "plain": {},
    "softcap": {"softcap": 2.0, "sharpness": 4.0},
    "sinks": {"sinks": True},
    "multi-head": {"group": 1, "kv_heads": 3},
    "multi-query": {"group": 8, "kv_heads": 1},
    "value dim": {"dims": (96, 32)},
    "block of 1": {"block_size": 1},
    "block of 7": {"block_size": 7},
    "block of 64": {"block_size": 64},
    "int64": {"index_dtype": torch.int64},
    "int8": {"stored": torch.int8, "scaled": True},
    "float8": {"stored": torch.float8_e5m2},
    "large logits": {"sharpness": 30.0},
}


def lse_of(case: Case, options: dict | None = None) -> torch.Tensor:
    options = case.options if options is None else options
    rows = {"query_starts": case.query_starts, "max_queries": case.max_queries}
    return paged_prefill(case.query, case.kv, **rows, return_lse=True, **options).lse


def asked(case: Case) -> dict:
    """The options that the sums know too."""
    return {name: case.options.get(name) for name in ("scale", "softcap")}


def want(case: Case, scores: torch.Tensor, last: int | None) -> torch.Tensor:
    """The ``scores`` of dense attention, of the queries that count, one by one, added up."""
    starts, rows = case.query_starts.tolist(), []
    for start, end in pairwise(starts):
        rows.append(scores[start if last is None else max(start, end - last) : end].sum(0))
    return torch.stack(rows)


def close(got, expected, within=2e-5):
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double().cpu(), expected, rtol=within / 2, atol=within)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_sums_are_those_of_dense_attention(variant):
    case = make_case(LENGTHS, queries=QUERIES, **VARIANTS[variant])
    given, scores = (case.query, case.kv, case.query_starts, lse_of(case)), dense(case)[2]
    # A float32 logit of some hundreds is known to 3e-5 alone, and a probability is as far off as its logit.
    within = 2e-4 if variant == "large logits" else 2e-5
    for last in (None, 1, 9):
        close(paged_column_sums(*given, last=last, **asked(case)), want(case, scores, last), within)


@pytest.mark.parametrize("last", [None, 4])
def test_the_sums_over_latents_are_those_of_dense_attention(last):
    case, rank = latent_case(LENGTHS, queries=QUERIES)
    q_latent, q_rope, as_dense, options = absorbed(case, rank)
    given = (q_latent, q_rope, case.kv, case.query_starts)
    lse = latent_prefill(*given, max_queries=case.max_queries, return_lse=True, **options).lse
    close(
        latent_column_sums(*given, lse, scale=options["scale"], last=last),
        want(as_dense, dense(as_dense)[2], last),
    )


def test_a_prompt_of_more_than_one_tile_of_queries_and_of_keys():
    case = make_case([QUERY_ROWS + 1300], queries=[QUERY_ROWS + 90], kv_heads=2, group=2, block_size=64)
    given = (case.query, case.kv, case.query_starts, lse_of(case))
    got = paged_column_sums(*given, **asked(case))
    # Dense attention over 400,000 pairs one by one takes long: what each query gives sums up to 1.
    torch.testing.assert_close(got.sum(-1), torch.full((1, 2), 2.0 * (QUERY_ROWS + 90)), rtol=1e-5, atol=1e-3)
    close(paged_column_sums(*given, last=3, **asked(case)), want(case, dense(case)[2], 3))


def test_every_query_head_gives_each_of_its_queries_once_less_what_the_sink_takes():
    case = make_case(LENGTHS, queries=QUERIES, sinks=True, group=4)
    lse = lse_of(case)
    given = (case.query, case.kv, case.query_starts, lse)
    sink = torch.exp(case.options["sinks"] - lse).view(-1, 2, 4).sum(-1)  # [T, Hkv]
    taken = torch.stack([part.sum(0) for part in sink.split(QUERIES)])
    got = paged_column_sums(*given, **asked(case)).sum(-1)
    torch.testing.assert_close(got, 4.0 * torch.tensor(QUERIES).view(-1, 1) - taken, rtol=1e-5, atol=1e-4)


def test_one_query_a_sequence_gives_what_a_decode_gives():
    case = make_case(LENGTHS, queries=[1] * len(LENGTHS))
    given = (case.query, case.kv, case.query_starts, lse_of(case))
    scores = paged_decode(case.query, case.kv, return_scores=True, **case.options).scores
    torch.testing.assert_close(paged_column_sums(*given, **asked(case)), scores, rtol=1e-5, atol=1e-6)


def test_a_row_without_a_query_has_no_sums():
    case = make_case([3, 20, 34], queries=[3, 0, 18])
    given = (case.query, case.kv, case.query_starts, lse_of(case))
    got = paged_column_sums(*given, **asked(case))
    assert not got[1].any()
    assert got[0].any()
    assert got[2].any()


WRONG = {
    "lse of another shape": ("cache_shape", {"lse": torch.zeros(5, 8)}),
    "lse of 16 bits": ("kernel_dtype", {"lse": torch.zeros(18, 8, dtype=torch.float16)}),
    "no query counts": ("bad_count", {"last": 0}),
    "a scale that is no number": ("kernel_not_finite", {"scale": float("nan")}),
    "fewer lengths": ("cache_shape", {"kv": {"lengths": torch.tensor([20])}}),
    "starts that cut too many": ("kernel_query_starts", {"query_starts": torch.tensor([0, 5, 19])}),
    "a block past the pool": ("kernel_table", {"kv": {"block_tables": torch.full((2, 4), 99)}}),
    "int8 without scales": ("cache_needs_scales", {"kv": {"k": torch.zeros(9, 16, 2, 64, dtype=torch.int8)}}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_right_is_refused(wrong):
    code, spoiled = WRONG[wrong]
    case = make_case([20, 33], queries=[8, 10])
    given = {"query": case.query, "query_starts": case.query_starts, "lse": torch.zeros(18, 8), "scale": 0.1}
    given |= spoiled | {"kv": replace(case.kv, **spoiled.get("kv", {}))}
    with pytest.raises(ArgumentError) as caught:
        paged_column_sums(**given)
    assert caught.value.code == code


# Without a GPU the interpreter runs them; with one they are what `python -m tools.gpu` runs.
kernel = pytest.mark.gpu if DEVICE == "cuda" else lambda test: test
TRITON = {
    "plain": {},
    "chunks": {"queries": [1, 5, 0, 17], "lengths": [20, 21, 33, 40]},
    "softcap": {"softcap": 2.0, "sharpness": 4.0},
    "sinks": {"sinks": True},
    "group of 3": {"group": 3},
    "head of 80": {"dims": (80, 80)},
    "block of 7": {"block_size": 7},
    "block of 32": {"block_size": 32},
    "rows as they are": {"config": Config(4, 16, 4, 1)},
    "bfloat16": {"dtype": torch.bfloat16},
    "int8": {"stored": torch.int8, "scaled": True},
}


@kernel
@pytest.mark.parametrize(("variant", "last"), every_value(list(TRITON), [None, 4]))
def test_the_kernel_computes_what_the_reference_does(variant, last):
    options = {"lengths": [1, 16, 37], "queries": [1, 5, 37], **TRITON[variant]}
    config = options.pop("config", Config(16, 16, 4, 1))
    case = make_case(device=DEVICE, **options)
    on_cpu = make_case(**options)
    expected = reference.paged_column_sums(
        on_cpu.query, on_cpu.kv, on_cpu.query_starts, lse_of(on_cpu), last=last, **asked(on_cpu)
    )
    given = (case.query, case.kv, case.query_starts)
    lse = lse_of(on_cpu).to(DEVICE)
    launch, sums = sums_launch(Device(90, 8), *given, lse, last=last, config=config, **asked(case))
    sums.fill_(float("nan"))
    launch.run()
    loose = 2e-2 if case.query.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(sums.cpu(), expected, rtol=loose, atol=loose)


@kernel
@pytest.mark.parametrize("last", [None, 4])
def test_the_kernel_computes_what_the_reference_does_over_latents(last):
    case, rank = latent_case([1, 16, 37], queries=[1, 5, 30])
    q_latent, q_rope, _, options = absorbed(case, rank)
    given = (q_latent, q_rope, case.kv, case.query_starts)
    lse = latent_prefill(*given, max_queries=case.max_queries, return_lse=True, **options).lse
    expected = reference.latent_column_sums(*given, lse, scale=options["scale"], last=last)
    kv = PagedKV(*(x.to(DEVICE) for x in (case.k_cache, case.v_cache, case.block_tables, case.lengths)))
    rows = case.query_starts.to(DEVICE), lse.to(DEVICE)
    options = {"scale": options["scale"], "last": last, "config": Config(16, 16, 4, 1)}
    options["q_rope"] = q_rope.to(DEVICE)
    launch, sums = sums_launch(Device(90, 8), q_latent.to(DEVICE), kv, *rows, **options)
    sums.fill_(float("nan"))
    launch.run()
    torch.testing.assert_close(sums.cpu(), expected, rtol=2e-5, atol=2e-5)
