"""The pool arithmetic gives what vLLM printed, case by case; where a case cannot match, the test says why."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.errors import ArgumentError, ConfigError
from minikv.plan.logs.vllm_pool import VllmPool, printed_interval, vllm_pool
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec
from minikv.units import GIB
from tests.plan.vllm_cases import CASES, cases_with

# Their tokens and their GiB are of different ranks, see test_pool_is_the_minimum_over_ranks.
TWO_RANKS = ("C07", "C08", "C09")


def spec_of(case: dict) -> CacheSpec:
    return CacheSpec.from_config(case["config"], tp=case["tp"], kv_dtype=case.get("kv_dtype"), layout="vllm")


def pool_of(case: dict, **options) -> VllmPool:
    return vllm_pool(spec_of(case), mamba_mode=case.get("mamba_mode", "none"), **options)


def printing(case: dict) -> dict:
    return {
        "rule": case.get("rule", "old"),
        "max_model_len": case.get("max_model_len"),
        "batched_tokens": case.get("batched_tokens", 8192),
    }


def token_interval(pool: VllmPool, case: dict) -> tuple[int, int]:
    first, last = printed_interval(case["available_gib"])
    return (
        pool.tokens_printed(pool.num_blocks(first), **printing(case)),
        pool.tokens_printed(pool.num_blocks(last), **printing(case)),
    )


# C01, C03, C12, C13, H01, H03, H05: the printed GiB give the printed tokens.


@pytest.mark.parametrize("name", [n for n in cases_with("available_gib", "tokens") if n not in TWO_RANKS])
def test_printed_gib_give_the_printed_tokens(name):
    case, pool = CASES[name], pool_of(CASES[name])
    fewest, most = token_interval(pool, case)
    assert fewest <= case["tokens"] <= most
    assert most - fewest < 0.003 * case["tokens"]  # two decimals of GiB are a fine sieve
    first, last = pool.blocks_that_print(case["tokens"], **printing(case))
    low, high = (pool.num_blocks(end) for end in printed_interval(case["available_gib"]))
    assert low <= first <= last <= high


@pytest.mark.parametrize("name", [n for n in cases_with("block_bytes") if n != "C10"])
def test_bytes_of_a_block(name):
    assert pool_of(CASES[name]).block_bytes == CASES[name]["block_bytes"]


@pytest.mark.parametrize("name", cases_with("group_size"))
def test_hybrid_groups(name):
    case, pool = CASES[name], pool_of(CASES[name])
    assert (pool.group_size, len(pool.groups)) == (case["group_size"], case["num_groups"])
    assert pool.page_bytes == case["page_bytes"]
    first, last = pool.blocks_that_print(case["tokens"], **printing(case))
    if "available_gib" not in case:  # H07: the concurrency picks among the block counts that print its tokens
        counts = range(first, last + 1)
        counts = [
            n for n in counts if f"{pool.concurrency(n, case['max_model_len']):.2f}" == case["concurrency"]
        ]
        first, last = counts[0], counts[-1]
    assert [first, last] == case["num_blocks"]


@pytest.mark.parametrize("name", cases_with("blocks_per_request"))
def test_blocks_of_one_request(name):
    case = CASES[name]
    blocks = pool_of(case).blocks_per_request(case["max_model_len"], case.get("batched_tokens", 8192))
    assert blocks == case["blocks_per_request"]


@pytest.mark.parametrize("name", cases_with("attention_block_size"))
def test_attention_block_holds_a_state(name):
    case = CASES[name]
    sizes = {group.block_size for group in pool_of(case).groups}
    assert sizes == {case["attention_block_size"], None}


@pytest.mark.parametrize("name", [n for n in cases_with("concurrency", "config") if CASES[n]["config"]])
def test_printed_concurrency(name):
    case, pool = CASES[name], pool_of(CASES[name])
    first, last = pool.blocks_that_print(case["tokens"], **printing(case))
    possible = {f"{pool.concurrency(n, case['max_model_len']):.2f}" for n in range(first, last + 1)}
    assert case["concurrency"] in possible


@pytest.mark.parametrize("name", cases_with("blocks", "tokens"))
def test_tokens_are_blocks_of_16(name):
    """C17 names no model, so this and the next test are all that it can say."""
    assert CASES[name]["blocks"] * 16 == CASES[name]["tokens"]


def test_c17_concurrency_is_tokens_over_length():
    case = CASES["C17"]
    assert f"{case['tokens'] / case['max_model_len']:.2f}" == case["concurrency"]


@pytest.mark.parametrize(
    ("name", "needed_gib"),
    # The GiB that the printed tokens take: those of the poorer rank, which the log does not print.
    [("C07", "28.48"), ("C08", "8.02"), ("C09", "7.46")],
)
def test_pool_is_the_minimum_over_ranks(name, needed_gib):
    """One rank's GiB are printed, and the pool is cut to the poorest rank: tokens x bytes are that rank's GiB."""
    case, pool = CASES[name], pool_of(CASES[name])
    fewest, _ = token_interval(pool, case)
    assert case["tokens"] < fewest
    needed = pool.blocks_that_print(case["tokens"])[0] * pool.block_bytes
    assert f"{needed / GIB:.2f}" == needed_gib
    poorer, richer = printed_interval(needed_gib)[1], printed_interval(case["available_gib"])[0]
    blocks = pool.pool_blocks([richer, poorer])
    assert blocks == pool.num_blocks(poorer) < pool.num_blocks(richer)
    low = pool.num_blocks(printed_interval(needed_gib)[0])
    assert low <= pool.blocks_that_print(case["tokens"])[0] <= blocks


def test_c05_counts_all_layers_against_one_pipeline_stage():
    """The engine did not start. Both of its numbers hold with 48 layers, though each of the two stages has 24."""
    case, pool = CASES["C05"], pool_of(CASES["C05"])
    assert f"{pool.needed_bytes(case['needed_tokens']) / GIB:.2f}" == case["needed_gib"]
    first, last = printed_interval(case["available_gib"])
    assert pool.needed_bytes(case["estimated_tokens"]) <= last
    assert pool.needed_bytes(case["estimated_tokens"] + 1) > first
    stage = pool_of(case, pp=case["pp"])
    assert 2 * stage.block_bytes == pool.block_bytes


def test_c10_needs_every_layer_in_full():
    """The engine did not start, and its manager kept chunked layers whole: 24 GiB for 1,048,576 tokens."""
    case = CASES["C10"]
    pool = pool_of(case, hybrid_manager=False)
    assert pool.block_bytes == case["block_bytes"]
    assert f"{pool.needed_bytes(case['needed_tokens']) / GIB:.2f}" == case["needed_gib"]
    # The hybrid manager would need a third: 12 full layers, and 36 that hold a chunk and a step.
    hybrid = pool_of(case).needed_bytes(case["needed_tokens"])
    assert 3 * hybrid < pool.needed_bytes(case["needed_tokens"])


def test_c15_budget_adds_up():
    """No token count was printed: the budget's terms add up within their rounding, and tp=2 halves a block."""
    budget, two = CASES["C15"]["budget"], CASES["C15"]["budget_tp2"]
    used = ("weights_gib", "non_torch_gib", "activation_peak_gib")
    left = budget["can_use_gib"] - sum(budget[term] for term in used)
    assert left == pytest.approx(budget["available_kv_gib"], abs=5 * 0.005)
    left = budget["can_use_gib"] - sum(two[term] for term in used)
    assert left == pytest.approx(two["predicted_available_gib"], abs=5 * 0.005)
    assert pool_of(CASES["C15"] | {"tp": 2}).block_bytes * 2 == pool_of(CASES["C15"]).block_bytes


def test_c16_budget_adds_up():
    """No token count was printed, and DeepSeek-V4-Flash's cache is not one that minikv knows: only the sum holds."""
    budget = CASES["C16"]["budget"]
    used = budget["weights_plus_non_torch_gib"] + budget["activation_peak_gib"]
    assert budget["requested_gib"] - used == pytest.approx(budget["current_kv_gib"], abs=4 * 0.005)
    assert budget["suggested_kv_bytes"] / GIB < budget["current_kv_gib"]


def test_every_case_has_its_test():
    """All sixteen cases are named above: none was left out in silence."""
    printed = set(cases_with("available_gib", "tokens"))
    others = {"C05", "C10", "C15", "C16", "C17", "H07"}
    assert printed | others == set(CASES)


def test_refused():
    full, odd = LayerSpec("full", 2, 64, 64), LayerSpec("sliding", 3, 64, 64, window=8)
    spec = CacheSpec((full, full), layout="vllm")
    with pytest.raises(ConfigError, match="cannot be made equal"):
        vllm_pool(CacheSpec((full, odd), layout="vllm"))
    with pytest.raises(ConfigError, match="No layer"):
        vllm_pool(CacheSpec((LayerSpec("none"),), layout="vllm"))
    with pytest.raises(ArgumentError, match="layout 'hf'"):
        vllm_pool(replace(spec, layout="hf"))
    for options in ({"block_size": 0}, {"pp": 0}, {"mamba_mode": "all"}):
        with pytest.raises(ArgumentError):
            vllm_pool(spec, **options)
    with pytest.raises(ArgumentError, match="rule 'newer'"):
        vllm_pool(spec).tokens_printed(1, rule="newer")


# Properties.

kinds = st.sampled_from(["full", "sliding", "chunked", "state"])


@st.composite
def pools(draw) -> VllmPool:
    """A pool of random layers: one kind or several, head counts that powers of two make equal."""
    layers = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=12)):
        if kind == "state":
            layers.append(LayerSpec("linear", state_bytes=123_456))
        else:
            window = None if kind == "full" else 100
            layers.append(LayerSpec(kind, 2 if kind == "full" else 4, 64, 64, window=window))
    return vllm_pool(
        CacheSpec(tuple(layers), layout="vllm"),
        block_size=draw(st.sampled_from([16, 32, 64])),
        hybrid_manager=draw(st.booleans()),
        mamba_mode=draw(st.sampled_from(["none", "align"])),
        pp=draw(st.integers(1, 3)),
    )


@given(pools(), st.sampled_from(["old", "new"]), st.integers(1, 200_000), st.data())
def test_more_bytes_never_print_fewer_tokens(pool, rule, max_model_len, data):
    low = data.draw(st.integers(0, 2**38))
    high = data.draw(st.integers(low, 2**38))
    less, more = pool.num_blocks(low), pool.num_blocks(high)
    assert less <= more
    assert less * pool.block_bytes <= low < (less + 1) * pool.block_bytes
    printing = {"rule": rule, "max_model_len": max_model_len}
    assert pool.tokens_printed(less, **printing) <= pool.tokens_printed(more, **printing)


@given(pools(), st.sampled_from(["old", "new"]), st.integers(1, 200_000), st.integers(0, 10**6))
def test_blocks_that_print_is_the_inverse(pool, rule, max_model_len, num_blocks):
    printing = {"rule": rule, "max_model_len": max_model_len}
    tokens = pool.tokens_printed(num_blocks, **printing)
    first, last = pool.blocks_that_print(tokens, **printing)
    assert first <= num_blocks <= last
    assert pool.tokens_printed(first, **printing) == tokens == pool.tokens_printed(last, **printing)
    assert pool.tokens_printed(last + 1, **printing) > tokens
    assert first == 0 or pool.tokens_printed(first - 1, **printing) < tokens


@given(pools(), st.integers(1, 100_000), st.integers(1, 20_000))
def test_a_longer_request_needs_no_fewer_blocks(pool, length, batched_tokens):
    shorter = pool.blocks_per_request(length, batched_tokens)
    assert shorter <= pool.blocks_per_request(length + 1, batched_tokens)
    assert pool.needed_bytes(length, batched_tokens) == shorter * pool.block_bytes


@given(st.integers(0, 2**40))
def test_printed_interval_holds_what_was_printed(num_bytes):
    first, last = printed_interval(f"{num_bytes / GIB:.2f}")
    assert first <= num_bytes <= last
    assert last - first <= math.ceil(GIB / 100)
    assert printed_interval(str(round(num_bytes / GIB, 2))) == (first, last)
