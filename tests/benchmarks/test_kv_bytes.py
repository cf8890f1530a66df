"""The benchmark of fewer KV bytes at tiny sizes: a row says what was measured, and a worse result falls short."""

import pytest
import torch

from benchmarks import kv_bytes
from benchmarks.kv_bytes import BLOCK, MIB, PLAIN, SMALLER
from benchmarks.kv_bytes_models import WINDOWED
from minikv.engine.recall import Recall
from minikv.models import load
from tests.models.running import World

WINDOW = 18  # it ends where what is kept between two steps, 17 tokens, would fit into one block less


@pytest.fixture(scope="module")
def tiny():
    return load("tiny-gqa", device="cpu").model


@pytest.fixture(scope="module")
def wide():
    """Heads of 128 elements."""
    return World.bare("llama", num_hidden_layers=1, head_dim=128)


def test_capacity_doubles_where_heads_are_wide_and_is_as_planned_where_they_are_not(tiny, wide):
    for model, elements in ((tiny, 32), (wide, 128)):
        rows = list(kv_bytes.capacity_rows("it", model, MIB))
        assert [row.holds for row in rows] == [True] * len(SMALLER)
        for row, dtype in zip(rows, SMALLER, strict=True):
            stored = elements + (4 if dtype in ("fp8_scaled", "int8") else 0)
            assert row.details["B a token"] * 2 * elements == row.details["B a token in bf16"] * stored
            assert row.ratio == pytest.approx(2 * elements / stored, rel=0.03)
            assert MIB - row.details["B a token"] * BLOCK < row.details["allocated B"] <= MIB


def test_a_cache_that_saves_less_than_it_should_falls_short(wide, monkeypatch):
    held = {PLAIN: (1000, 1000)} | {dtype: (1899, 1000) for dtype in SMALLER}
    monkeypatch.setattr(kv_bytes, "_held", lambda model, dtype, kv_bytes: held[dtype])
    assert not any(row.holds for row in kv_bytes.capacity_rows("it", wide, MIB))


def test_requests_run_at_once(wide):
    rows = list(kv_bytes.at_once_rows("it", wide, prompt=28, new=4, most=4))
    assert [row.peer for row in rows] == [4] * len(SMALLER)
    assert {row.ours for row in rows} <= {7, 8}


def test_recall_is_compared_with_bfloat16_s(tiny, monkeypatch):
    monkeypatch.setitem(kv_bytes.LENGTHS, 33, {"facts": 3, "context": 20, "queries": 4, "span": 12})
    rows = list(kv_bytes.recall_rows("tiny-gqa", tiny, 33, 3))
    assert [row.details["questions"] for row in rows] == [12] * len(SMALLER)
    assert all(row.ours == pytest.approx(100 * row.details["right"] / 12) for row in rows)
    found = iter(
        [Recall(99, 100), Recall(99, 100), Recall(98, 100), Recall(97, 100), Recall(100, 100), Recall(0, 100)]
    )
    monkeypatch.setattr(kv_bytes, "measure_recall", lambda llm, documents: next(found))
    assert [row.holds for row in kv_bytes.recall_rows("it", tiny, 33, 1)] == [True, False, True, False]
    # Longer than what the models were trained on: four points for e5m2, one for the others.
    found = iter([Recall(right, 100) for right in (99, 99, 97, 95, 98, 97)])
    rows = list(kv_bytes.recall_rows("it", tiny, 513, 1))
    assert [row.holds for row in rows] == [False, True, True, False]
    found = iter([Recall(right, 100) for right in (99, 99, 98, 94, 98, 98)])
    assert [row.holds for row in kv_bytes.recall_rows("it", tiny, 513, 1)] == [True, False, True, True]


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_hold_what_the_plan_says(name):
    model_type = {"Gemma-3-like": "gemma3_text", "gpt-oss-like": "gpt_oss"}[name]
    model = World.bare(model_type, sliding_window=WINDOW, num_hidden_layers=6)
    plan, full = kv_bytes.window_rows(name, model, WINDOW, sequences=2, prompt=6)
    assert plan.holds
    assert plan.ratio == 1
    assert full.holds
    assert 0.3 < full.ratio < 0.9


@pytest.mark.parametrize("name", WINDOWED)
def test_the_windowed_models_have_the_real_patterns(name):
    layers = {"Gemma-3-like": "SSSSSF", "gpt-oss-like": "SF" * 3}[name]
    with torch.device("meta"):
        config = WINDOWED[name]().config
    assert ["S" if kind == "sliding_attention" else "F" for kind in config.layer_types] == list(layers)
