"""Checks at the edges: an engine checks no kernel call of its own, public calls are checked in every mode."""

import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from minikv import LLM, SamplingParams
from minikv.cache import PagedKVCache
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError
from minikv.kernels import checked, cpu, dispatch, paged_decode, reference, store_kv
from minikv.models import Batch, bind_model, load
from minikv.plan import CacheSpec
from tests.kernels.dense import make_case

PROMPTS = ["ada paris the cat sleeps", "the cat", "ada paris the cat sleeps ada paris", "paris"]
RUNS = {
    "gqa": ("tiny-gqa", {}),
    "mla": ("tiny-mla", {}),
    "int8": ("tiny-gqa", {"kv_dtype": "int8"}),
    "few blocks": ("tiny-gqa", {"num_blocks": 10, "cpu_kv_bytes": 2**20}),
    "linear": ("tiny-gqa", {"cache": "linear"}),
    "eviction": ("tiny-gqa", {"eviction": EvictionConfig("h2o", budget=16, n_sink=2, n_recent=4)}),
}


def tokens_and_checks(name: str) -> tuple[list[tuple[int, ...]], int]:
    """What an engine answers, and how many functions of ``minikv/kernels/checks.py`` it called."""
    model, options = RUNS[name]
    llm = LLM(model, device="cpu", **{"num_blocks": 64, "block_size": 4, **options})
    calls = Counter()

    def note(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename.replace("\\", "/").rpartition("/minikv/")[2]] += 1

    sys.setprofile(note)
    try:
        found = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12))
    finally:
        sys.setprofile(None)
    assert calls["kernels/dispatch.py"] > 0
    return [tuple(each.token_ids) for each in found], calls["kernels/checks.py"]


@pytest.mark.parametrize("name", RUNS)
def test_an_engine_checks_no_kernel_call_of_its_own_and_answers_the_same(monkeypatch, name):
    monkeypatch.setenv("MINIKV_CHECKED", "1")
    expected, checks = tokens_and_checks(name)
    assert checks > 0
    monkeypatch.delenv("MINIKV_CHECKED")
    assert tokens_and_checks(name) == (expected, 0)


@pytest.mark.parametrize("mode", ["0", "1", "values", ""])
def test_a_public_call_is_checked_in_every_mode(monkeypatch, mode):
    monkeypatch.setenv("MINIKV_CHECKED", mode)
    case = make_case([20, 33])
    foreign = case.block_tables.clone()
    foreign[1, 1] = 99
    wrong = {
        "kernel_table": lambda: paged_decode(case.query, replace(case.kv, block_tables=foreign), scale=0.1),
        "kernel_group": lambda: paged_decode(case.query[:, :7], case.kv, scale=0.1),
        "cache_index": lambda: store_kv(
            case.query[:, :2], case.query[:, :2], case.k_cache, case.v_cache, torch.tensor([0, 10_000])
        ),
    }
    for code, call in wrong.items():
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.code == code


@pytest.mark.parametrize("mode", ["0", "1"])
def test_what_is_given_to_a_cache_or_an_adapter_is_checked_in_every_mode(monkeypatch, mode):
    monkeypatch.setenv("MINIKV_CHECKED", mode)
    loaded = load("tiny-gqa")
    spec = CacheSpec.from_config(loaded.model.config, kv_dtype="fp32")
    cache = PagedKVCache(spec, 4, 4)
    heads, dim = cache.layer(0).k.shape[2:]
    new = torch.zeros(1, heads, dim)
    adapter = bind_model(loaded.model, cache)
    batch = Batch.build(cache, [[[0]]], [1], [1])
    wrong = {
        "a slot past the pool": lambda: cache.write(0, new, new, [16]),
        "K of another number of heads": lambda: cache.write(0, new[:, :1], new, [0]),
        "a block past the pool": lambda: cache.copy_blocks(0, [0], [4]),
        "a table that names no block": lambda: cache.gather(0, [7], 3),
        "a slot to move from": lambda: cache.move(0, [-1], [0]),
        "a layer that is not there": lambda: cache.layer(99),
        "a layer that is true": lambda: cache.layer(True),
        "a batch whose table names no block": lambda: Batch.build(cache, [[[9]]], [1], [1]),
        "two ids for one token": lambda: adapter.forward([1, 2], batch),
        "one head of K for all": lambda: _update(batch, new[:, :1]),
    }
    try:
        assert [name for name, call in wrong.items() if not _refused(call)] == []
    finally:
        adapter.unbind()
        cache.close()


def _refused(call):
    try:
        call()
    except ArgumentError:
        return True
    return False


def _update(batch, key):
    """What a model does whose K has other heads than its config says."""
    from minikv.models.hf_cache import PagedCache

    key = key.transpose(0, 1).unsqueeze(0)
    return PagedCache(batch).update(key, key, 0)


def test_the_mode_is_read_at_each_call_and_a_wrong_one_is_named(monkeypatch):
    device = torch.device("cpu")
    for mode, module in {"0": cpu, "1": checked, "values": checked, "": cpu}.items():
        monkeypatch.setenv("MINIKV_CHECKED", mode)
        assert dispatch.operations(device) is module
    monkeypatch.setenv("MINIKV_CHECKED", "yes")
    with pytest.raises(ArgumentError, match="0, 1, values"):
        dispatch.operations(device)


def test_both_modes_have_the_same_operations():
    assert checked.__all__ == reference.__all__
