"""What attention refuses, by name and before anything runs; and what it must not refuse."""

import math
from dataclasses import replace

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.kernels import PagedKV, latent_decode, paged_decode, paged_prefill
from tests.kernels.dense import make_case


def given(**made):
    case = make_case([20, 33], **made)
    return {"query": case.query, "kv": case.kv, "scale": 0.125}


def without(name, value):
    return {**given(), name: value}


def holding(**other):
    """The arguments with ``other`` tensors in ``kv``."""
    arguments = given()
    return {**arguments, "kv": replace(arguments["kv"], **other)}


WRONG = {
    "kv is a tuple of tensors": (lambda: without("kv", (torch.zeros(1),)), "kernel_not_paged_kv", None),
    "kv of lists": (lambda: holding(k=[1]), "cache_not_a_tensor", "kv.k"),
    "query is no tensor": (lambda: without("query", [1]), "cache_not_a_tensor", "query"),
    "query of two dimensions": (lambda: without("query", torch.zeros(2, 64)), "cache_shape", "query"),
    "query in whole numbers": (lambda: without("query", torch.zeros(2, 8, 64).int()), "kernel_dtype", "query"),
    "query in float64": (lambda: without("query", torch.zeros(2, 8, 64).double()), "kernel_dtype", "query"),
    "query of another dim": (lambda: without("query", torch.zeros(2, 8, 32)), "cache_shape", "kv.k"),
    "query with a stride": (lambda: without("query", torch.zeros(2, 64, 8).mT), "kernel_stride", "query"),
    "7 heads on 2": (lambda: without("query", torch.zeros(2, 7, 64)), "kernel_group", None),
    "no head": (lambda: without("query", torch.zeros(2, 0, 64)), "kernel_group", None),
    "values of other blocks": (lambda: holding(v=torch.zeros(9, 16, 2, 64)), "cache_shape", "kv.v"),
    "values of other heads": (lambda: holding(v=given()["kv"].v[:, :, :1]), "cache_shape", "kv.v"),
    "keys in float64": (lambda: holding(k=given()["kv"].k.double()), "kernel_dtype", "kv.k"),
    "int8 without scales": (lambda: holding(k=given()["kv"].k.to(torch.int8)), "cache_needs_scales", None),
    "scales for float32": (lambda: holding(k_scale=torch.ones(8, 16, 2)), "kernel_scale_unused", "kv.k"),
    "tables as floats": (lambda: holding(block_tables=torch.zeros(2, 4)), "kernel_dtype", "block_tables"),
    "tables of one row": (lambda: holding(block_tables=torch.zeros(1, 4).int()), "cache_shape", "block_tables"),
    "tables transposed": (
        lambda: holding(block_tables=torch.zeros(4, 2).int().t()), "kernel_stride", "block_tables",
    ),
    "lengths of three": (lambda: holding(lengths=torch.ones(3).int()), "cache_shape", "lengths"),
    "a length past the table": (lambda: holding(lengths=torch.tensor([20, 65])), "cache_index", "lengths"),
    "a negative length": (lambda: holding(lengths=torch.tensor([-1, 33])), "cache_index", "lengths"),
    "a block past the pool": (
        lambda: holding(block_tables=torch.tensor([[0, 8, 0, 0], [0, 0, 0, 0]])), "kernel_table", None,
    ),
    "a null block that is read": (
        lambda: holding(block_tables=torch.tensor([[0, 0, -1, -1], [0, -1, 0, -1]])), "kernel_table", None,
    ),
    "blocks of no token": (
        lambda: holding(k=torch.zeros(9, 0, 2, 64), lengths=torch.zeros(2).int()), "bad_count", None,
    ),
    "a scale that is NaN": (lambda: without("scale", math.nan), "kernel_not_finite", "scale"),
    "a scale that is true": (lambda: without("scale", True), "kernel_not_finite", "scale"),
    "a scale as text": (lambda: without("scale", "1"), "kernel_not_finite", "scale"),
    "a window of 0": (lambda: without("window", 0), "bad_count", "window"),
    "a window of 1.5": (lambda: without("window", 1.5), "bad_count", "window"),
    "a cap of 0": (lambda: without("softcap", 0), "kernel_not_positive", "softcap"),
    "an infinite cap": (lambda: without("softcap", math.inf), "kernel_not_finite", "softcap"),
    "sinks of another length": (lambda: without("sinks", torch.zeros(7)), "cache_shape", "sinks"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_decode_refuses_by_name(name):
    make, code, what = WRONG[name]
    arguments = make()
    with pytest.raises(ArgumentError) as caught:
        paged_decode(**arguments)
    assert caught.value.code == code
    if what is not None:
        assert caught.value.values["what"] == what
    assert caught.value.text("zh")


def prefill(query_starts, lengths=(20, 33), max_queries=16, tokens=12):
    arguments = given()
    arguments["query"] = torch.zeros(tokens, 8, 64)
    arguments["kv"] = replace(arguments["kv"], lengths=torch.tensor(lengths))
    return paged_prefill(**arguments, query_starts=torch.tensor(query_starts), max_queries=max_queries)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (dict(query_starts=[0, 5]), "cache_shape"),
        (dict(query_starts=[0, 5, 11]), "kernel_query_starts"),
        (dict(query_starts=[1, 5, 12]), "kernel_query_starts"),
        (dict(query_starts=[0, 13, 12]), "kernel_query_starts"),
        (dict(query_starts=[0, 5, 12], lengths=(4, 33)), "kernel_query_past"),
        (dict(query_starts=[0, 5, 12], max_queries=6), "kernel_max_queries"),
        (dict(query_starts=[0, 5, 11], max_queries=5, tokens=11), "kernel_left_out"),
        (dict(query_starts=[0, 5, 12], max_queries=-1), "bad_count"),
        (dict(query_starts=[0, 5, 12], max_queries=True), "bad_count"),
    ],
)
def test_prefill_refuses_rows_that_do_not_fit(arguments, code):
    with pytest.raises(ArgumentError) as caught:
        prefill(**arguments)
    assert caught.value.code == code


def test_latents_of_several_heads_or_another_dtype_are_refused():
    q, rope = torch.zeros(1, 4, 32), torch.zeros(1, 4, 8)
    cache = torch.zeros(3, 16, 1, 40)
    tables, lengths = torch.zeros(1, 2).int(), torch.tensor([5])

    def call(latent, keys, q_rope=rope):
        latent_decode(q, q_rope, PagedKV(latent, keys, tables, lengths), scale=1.0)

    call(cache[..., :32], cache[..., 32:])
    for latent, keys, q_rope, what in (
        (torch.zeros(3, 16, 2, 32), cache[..., 32:], rope, "kv.k"),
        (cache[..., :32], cache[..., :4], rope, "kv.v"),
        (cache[..., :32], cache[..., 32:].half(), rope, "kv.v"),
        (cache[..., :32], cache[..., 32:], rope.half(), "q_rope"),
        (cache[..., :32], cache[..., 32:], torch.zeros(2, 4, 8), "q_rope"),
        (cache[..., :32].to(torch.int8), cache[..., 32:], rope, "kv.k"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call(latent, keys, q_rope)
        assert caught.value.values["what"] == what


def test_no_gradient_flows():
    arguments = given()
    arguments["query"].requires_grad_()
    assert not paged_decode(**arguments).out.requires_grad
    starts = torch.tensor([0, 1, 2])
    assert not paged_prefill(**arguments, query_starts=starts, max_queries=1).out.requires_grad


def test_what_no_query_reads_may_be_anything():
    """Entries behind the window and past the length: null blocks, or blocks that do not exist."""
    arguments = given(window=10)
    want = paged_decode(**arguments, window=10).out
    kv = arguments["kv"]
    tables = kv.block_tables.clone()
    tables[0, 0] = 10_000  # 20 tokens, a window of 10: the first block holds token 10
    with pytest.raises(ArgumentError):
        paged_decode(arguments["query"], replace(kv, block_tables=tables), scale=0.125, window=10)
    tables = kv.block_tables.clone()
    tables[1, 0] = 10_000
    tables[:, 3:] = 10_000
    got = paged_decode(arguments["query"], replace(kv, block_tables=tables), scale=0.125, window=10)
    assert torch.equal(got.out, want)


def test_the_block_of_the_first_key_in_the_window_is_read():
    """20 tokens: a window of 5 begins at token 15, the last of the first block, and one of 4 behind it."""
    arguments = given()
    arguments["kv"].block_tables[0, 0] = 10_000
    paged_decode(**arguments, window=4)
    with pytest.raises(ArgumentError) as caught:
        paged_decode(**arguments, window=5)
    assert caught.value.code == "kernel_table"


def test_a_wrong_implementation_is_named(monkeypatch):
    monkeypatch.setenv("MINIKV_KERNELS", "cuda")
    with pytest.raises(ArgumentError, match="reference, triton"):
        paged_decode(**given())
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArgumentError, match="TRITON_INTERPRET=1"):
        paged_decode(**given())
    monkeypatch.setenv("MINIKV_KERNELS", "")
    paged_decode(**given())
