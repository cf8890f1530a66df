"""The fractions of other engines: the four sums, their order, and the way back."""

import random

import pytest

from minikv.errors import ArgumentError, DoesNotFitError
from minikv.i18n import LANGUAGES
from minikv.plan import plan_memory
from minikv.plan.measured import MeasuredTerms
from minikv.plan.other_engines import OPTIONS, Startup, fraction_for, pool_bytes

GIB = 2**30
CARD = Startup(80 * GIB, outside_bytes=2 * GIB, weight_bytes=15 * GIB, activation_bytes=3 * GIB)


def random_startup(rng):
    total = rng.randrange(4 * GIB, 300 * GIB)
    outside = rng.randrange(total // 4)
    weights = rng.randrange(total // 3)
    return Startup(total, outside, weights, rng.randrange(total // 10))


def test_the_four_sums_by_hand():
    pools = {engine: pool_bytes(engine, CARD, 0.9) / GIB for engine in OPTIONS}
    assert pools == pytest.approx(
        {
            "minikv": 72 - 2 - 15 - 3,
            "vllm": 72 - 15 - 3,
            "sglang": 0.9 * 78 - 15,
            "tensorrt-llm": 0.9 * (80 - 2 - 15 - 3),
        }
    )


def test_sglang_as_its_own_code_writes_it():
    """rest = available now - available before loading * (1 - mem_fraction_static)."""
    rng = random.Random(4)
    for _ in range(300):
        startup, fraction = random_startup(rng), rng.uniform(0.05, 1)
        before = startup.free_bytes
        now = before - startup.weight_bytes
        assert abs(pool_bytes("sglang", startup, fraction) - (now - before * (1 - fraction))) <= 1


def test_tensorrt_llm_as_its_own_code_writes_it():
    """(total - peak + allocated) * fraction, peak in torch and outside of it, ``allocated`` of a trial cache."""
    rng = random.Random(5)
    for _ in range(300):
        startup, fraction, trial = random_startup(rng), rng.uniform(0.05, 1), rng.randrange(GIB)
        peak = startup.outside_bytes + startup.weight_bytes + startup.activation_bytes + trial
        theirs = (startup.total_bytes - peak + trial) * fraction
        assert abs(pool_bytes("tensorrt-llm", startup, fraction) - theirs) <= 1


def test_ours_is_the_measured_formula():
    rng = random.Random(6)
    for _ in range(300):
        startup, fraction = random_startup(rng), rng.uniform(0.05, 1)
        used = startup.outside_bytes + startup.weight_bytes
        peak = startup.weight_bytes + startup.activation_bytes
        terms = MeasuredTerms(startup.total_bytes, fraction, used, peak, startup.weight_bytes)
        assert pool_bytes("minikv", startup, fraction) == terms.available


def test_a_plan_and_its_startup_agree():
    budget = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB")
    assert pool_bytes("minikv", Startup.of(budget), budget.utilization) == budget.kv_bytes
    beside = Startup.of(budget, others_bytes=GIB)
    assert budget.kv_bytes - pool_bytes("minikv", beside, budget.utilization) == GIB


@pytest.mark.parametrize("engine", OPTIONS)
def test_there_and_back(engine):
    rng = random.Random(engine)
    tried = 0
    for _ in range(300):
        startup, fraction = random_startup(rng), rng.uniform(0.3, 1)
        if engine == "vllm" and startup.total_bytes * fraction > startup.free_bytes:
            continue
        pool = pool_bytes(engine, startup, fraction)
        if pool > 0:
            tried += 1
            assert fraction_for(engine, startup, pool) == pytest.approx(fraction, abs=1e-8)
    assert tried > 100


@pytest.mark.parametrize("engine", OPTIONS)
def test_more_of_the_fraction_is_more_of_the_pool(engine):
    rng = random.Random(7)
    for _ in range(100):
        startup = random_startup(rng)
        low, high = sorted(rng.uniform(0.05, startup.free_bytes / startup.total_bytes) for _ in range(2))
        assert pool_bytes(engine, startup, low) <= pool_bytes(engine, startup, high)


def test_who_leaves_room_for_whom():
    """At one fraction: only minikv counts others in, only SGLang leaves the activations out."""
    busy = Startup(80 * GIB, 6 * GIB, 15 * GIB, 3 * GIB)
    lost = {engine: pool_bytes(engine, CARD, 0.8) - pool_bytes(engine, busy, 0.8) for engine in OPTIONS}
    assert lost["minikv"] == 4 * GIB
    assert lost["vllm"] == 0
    assert lost["sglang"] == lost["tensorrt-llm"] == pytest.approx(0.8 * 4 * GIB, abs=1)
    hungry = Startup(80 * GIB, 2 * GIB, 15 * GIB, 9 * GIB)
    assert pool_bytes("sglang", hungry, 0.9) == pool_bytes("sglang", CARD, 0.9)
    assert hungry.left_bytes(pool_bytes("sglang", hungry, 0.9)) < 0
    for engine in ("minikv", "vllm", "tensorrt-llm"):
        assert hungry.left_bytes(pool_bytes(engine, hungry, 0.9)) >= 0


def test_vllm_refuses_a_share_that_is_not_free_and_says_what_is():
    busy = Startup(80 * GIB, 30 * GIB, 15 * GIB, 3 * GIB)
    with pytest.raises(DoesNotFitError) as caught:
        pool_bytes("vllm", busy, 0.9)
    assert caught.value.values["most"] == 0.62
    for lang in LANGUAGES:
        assert "0.62" in caught.value.text(lang)
    assert pool_bytes("vllm", busy, 0.62) > 0
    exact = Startup(80 * GIB, 8 * GIB, GIB, GIB)
    assert pool_bytes("vllm", exact, 0.9) == 70 * GIB


def test_a_pool_that_no_fraction_gives_is_refused():
    for engine in OPTIONS:
        with pytest.raises(ArgumentError, match="wanted_bytes"):
            fraction_for(engine, CARD, 79 * GIB)
    assert fraction_for("tensorrt-llm", CARD, 60 * GIB) == 1


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, True, "0.9", None, float("nan")])
def test_what_is_no_fraction_is_refused_by_the_engine_s_own_name(fraction):
    for engine, option in OPTIONS.items():
        with pytest.raises(ArgumentError, match=option):
            pool_bytes(engine, CARD, fraction)


def test_bad_input_is_refused():
    with pytest.raises(ArgumentError, match="sglang"):
        pool_bytes("llama.cpp", CARD, 0.9)
    with pytest.raises(ArgumentError, match="sglang"):
        fraction_for("SGLang", CARD, GIB)
    with pytest.raises(ArgumentError):
        Startup(GIB, 2 * GIB, 0, 0)
    for bad in (-1, 1.5, True, None):
        with pytest.raises(ArgumentError):
            Startup(GIB, 0, bad, 0)
        with pytest.raises(ArgumentError):
            fraction_for("vllm", CARD, bad)
    with pytest.raises(ArgumentError):
        Startup.of(plan_memory("Qwen3-0.6B", gpu="T4"), others_bytes=-1)
