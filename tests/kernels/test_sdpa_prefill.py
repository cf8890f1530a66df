"""Prefill by torch's own attention, as on a T4: the same as dense attention, and asked only where it can answer."""

from dataclasses import replace

import pytest
import torch

from minikv.kernels.gpu import operations
from minikv.kernels.gpu.common import Device
from minikv.kernels.sdpa_prefill import MOST_BYTES, sdpa_prefill, suits
from tests.kernels.dense import dense, make_case

pytest.importorskip("triton")
LENGTHS, QUERIES = [1, 15, 16, 17, 33, 100], [1, 15, 5, 17, 1, 60]
VARIANTS = {
    "plain": {},
    "window": {"window": 20},
    "window of one": {"window": 1},
    "longer window": {"window": 200},
    "multi-head": {"group": 1, "kv_heads": 3},
    "multi-query": {"group": 8, "kv_heads": 1},
    "value dim": {"dims": (192, 128)},
    "wide": {"wide": True, "dims": (96, 32)},
    "block of 1": {"block_size": 1},
    "block of 7": {"block_size": 7},
    "block of 256": {"block_size": 256},
    "int64": {"index_dtype": torch.int64},
    "int8": {"stored": torch.int8, "scaled": True},
    "fp8": {"stored": torch.float8_e5m2},
    "scaled fp8": {"stored": torch.float8_e4m3fn, "scaled": True, "window": 40},
}


def tensors(case):
    return case.query, case.kv, case.query_starts


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_dense_attention(variant):
    case = make_case(LENGTHS, queries=QUERIES, **VARIANTS[variant])
    options = {name: value for name, value in case.options.items() if name not in ("softcap", "sinks")}
    got = sdpa_prefill(*tensors(case), **options)
    assert got.dtype == case.query.dtype
    torch.testing.assert_close(got.double(), dense(case)[0], rtol=3e-6, atol=3e-6)


def test_rows_without_a_query_stay_empty():
    case = make_case([0, 9, 0], queries=[0, 9, 0])
    got = sdpa_prefill(*tensors(case), scale=case.options["scale"])
    torch.testing.assert_close(got.double(), dense(case)[0], rtol=3e-6, atol=3e-6)


@pytest.fixture
def turing(monkeypatch):
    """A T4 as far as the dispatch can see; a Triton launch on it is an error."""

    def launches(*args, **options):
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(operations, "device_of", lambda device: Device(75, 40))
    monkeypatch.setattr(operations, "attention_launches", launches)


@pytest.mark.parametrize("variant", ["plain", "window", "int8"])
def test_a_turing_gpu_prefills_in_half_precision_with_it(turing, variant):
    case = make_case(LENGTHS, queries=QUERIES, dtype=torch.float16, **VARIANTS[variant])
    got = operations.paged_prefill(*tensors(case), max_queries=case.max_queries, **case.options)
    torch.testing.assert_close(got.out.double(), dense(case)[0], rtol=4e-3, atol=4e-3)
    assert got.lse is None


@pytest.mark.parametrize(
    ("variant", "dtype", "more"),
    [
        ({"softcap": 2.0}, torch.float16, {}),
        ({"sinks": True}, torch.float16, {}),
        ({}, torch.float32, {}),
        ({}, torch.float16, {"return_lse": True}),
    ],
)
def test_what_torch_s_function_cannot_do_goes_to_the_kernel(turing, variant, dtype, more):
    case = make_case(LENGTHS, queries=QUERIES, dtype=dtype, **variant)
    with pytest.raises(AssertionError, match="launched"):
        operations.paged_prefill(*tensors(case), max_queries=case.max_queries, **case.options, **more)


def test_other_gpus_decodes_and_long_histories_go_to_the_kernel():
    case = make_case([64, 64], queries=[64, 64], dtype=torch.float16)
    rest = {"max_queries": 64, "softcap": None, "sinks": None, "return_lse": False}
    asked = case.query, case.kv
    assert suits(75, *asked, **rest)
    for capability in (70, 80, 86, 90):
        assert not suits(capability, *asked, **rest)
    assert not suits(75, *asked, **(rest | {"max_queries": 1}))
    a_token = 7 * 2 * (64 + 64) + 3 * 64
    widest = MOST_BYTES // (a_token * 16)
    for columns, fits in ((widest, True), (widest + 1, False)):
        wide = replace(case.kv, block_tables=case.block_tables.new_zeros(2, columns))
        assert suits(75, case.query, wide, **rest) == fits
