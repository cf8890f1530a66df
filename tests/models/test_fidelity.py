"""Logits through a cache of fewer bytes: nothing but the cache's rounding is measured, and it is measured right."""

import math

import numpy as np
import pytest
import torch

from minikv.errors import ArgumentError
from minikv.models.fidelity import forced_logits, logit_error
from tests.models.running import World

# Blocks that are read in place, windows and sinks, latents, copies of the history.
MODELS = ("llama", "gpt_oss", "deepseek_v3", "bloom")
TOKENS = np.random.default_rng(0).integers(1, 97, (2, 14))
EIGHT_BITS = ("int8", "fp8", "fp8_scaled", "fp8_e5m2")


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return World.bare(request.param, num_hidden_layers=2)


def test_the_models_own_dtype_gives_the_models_own_logits(model):
    with torch.no_grad():
        own = model(input_ids=torch.from_numpy(TOKENS), use_cache=False).logits
    for prefill in (1, 8, 14):
        through = forced_logits(model, TOKENS, prefill=prefill, block_size=4)
        assert through.shape == (2, 15 - prefill, 97)
        assert (through - own[:, prefill - 1 :]).abs().max() < 1e-4


def test_what_is_stored_with_fewer_bits_gives_other_logits_whoever_reads_it(model):
    exact = forced_logits(model, TOKENS, prefill=5)
    errors = {}
    for name in ("fp32", "bf16", *EIGHT_BITS):
        logits = forced_logits(model, TOKENS, prefill=5, kv_dtype=name)
        errors[name] = logit_error(logits, exact)
        # A token is rounded by itself, so a prefill reads what a decode reads; but for the few elements that lie
        # between two numbers and are rounded otherwise where float32 has added up in another order.
        long = forced_logits(model, TOKENS, prefill=10, kv_dtype=name)
        assert logit_error(long, logits[:, 5:]).mean_abs <= 0.2 * errors[name].mean_abs + 1e-6
    mean = {name: error.mean_abs for name, error in errors.items()}
    assert mean["fp32"] == 0
    assert 1e-5 < mean["bf16"] < mean["int8"] < mean["fp8"] < mean["fp8_e5m2"]
    for name in EIGHT_BITS:
        assert errors[name].positions == 2 * 10
        assert mean[name] < errors[name].max_abs < 2 * errors[name].spread
        assert 0 < errors[name].kl < 0.5


def test_the_model_is_left_as_it_was(model):
    own = model.config._attn_implementation
    forced_logits(model, TOKENS, prefill=5, kv_dtype="int8")
    assert model.config._attn_implementation == own
    with pytest.raises(ArgumentError):
        forced_logits(model, TOKENS, prefill=5, kv_dtype="int3")
    assert model.config._attn_implementation == own


def test_the_figures_of_two_known_distributions():
    """(1/4, 3/4) that became (2/3, 1/3), and one row that is exact."""
    exact = torch.tensor([[[0.0, math.log(3.0)], [2.0, 1.0]]])
    found = torch.tensor([[[math.log(2.0), 0.0], [2.0, 1.0]]])
    error = logit_error(found, exact)
    assert error.positions == 2
    assert error.max_abs == pytest.approx(math.log(3))
    assert error.mean_abs == pytest.approx((math.log(2) + math.log(3)) / 4)
    assert error.spread == pytest.approx((math.log(3) / 2 + 0.5) / 2)
    assert error.kl == pytest.approx((0.25 * math.log(3 / 8) + 0.75 * math.log(9 / 4)) / 2)
    assert error.same_top == 0.5
    same = logit_error(exact, exact)
    assert (same.max_abs, same.mean_abs, same.kl, same.same_top) == (0, 0, 0, 1)


def test_many_rows_are_all_counted():
    """More rows than are compared at a time, the only error in one of the last."""
    exact = torch.randn(3, 70, 5, generator=torch.Generator().manual_seed(0))
    found = exact.clone()
    found[2, 60, 4] += 5
    error = logit_error(found, exact)
    assert error.positions == 210
    assert error.max_abs == pytest.approx(5, abs=1e-5)
    assert error.mean_abs == pytest.approx(5 / (210 * 5), abs=1e-6)


def test_a_nan_is_not_lost():
    exact = torch.zeros(70, 4)
    found = exact.clone()
    found[3, 2] = math.nan
    error = logit_error(found, exact)
    assert all(map(math.isnan, (error.max_abs, error.mean_abs, error.kl)))


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("cache_shape", {"tokens": [[1, 2], [3]]}),
        ("cache_shape", {"tokens": [1, 2, 3]}),
        ("cache_shape", {"tokens": []}),
        ("cache_not_whole", {"tokens": [[0.5, 1.0]]}),
        ("llm_token", {"tokens": [[1, 97]]}),
        ("llm_token", {"tokens": [[-1, 9]]}),
        ("out_of_range", {"prefill": 22}),
        ("bad_count", {"prefill": 0}),
        ("bad_count", {"block_size": 0}),
        ("unknown_choice", {"kv_dtype": "int3"}),
    ],
)
def test_what_is_refused(code, change):
    model = World.bare("llama", num_hidden_layers=1)
    given = {"tokens": TOKENS, "prefill": 2} | change
    with pytest.raises(ArgumentError) as caught:
        forced_logits(model, given.pop("tokens"), **given)
    assert caught.value.code == code


def test_logits_of_two_shapes_and_of_none_are_refused():
    with pytest.raises(ArgumentError) as caught:
        logit_error(torch.zeros(2, 3), torch.zeros(3, 3))
    assert caught.value.code == "cache_shape"
    with pytest.raises(ArgumentError):
        logit_error(torch.zeros(0, 3), torch.zeros(0, 3))
