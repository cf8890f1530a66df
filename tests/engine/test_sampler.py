"""The sampler against a plain-Python oracle, torch's own functions, transformers' filters and exact probabilities."""

import itertools
import math
import random
import warnings

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from minikv.engine import SamplingParams, sampler
from minikv.engine.sampler import Draws, sample

GREEDY = SamplingParams(temperature=0)
LAST = 1 - 2.0**-53  # the largest number that Draws gives
INF = math.inf


def token(row, draw, **asked):
    """The token of one row in a batch of its own."""
    return sample(torch.tensor([row], dtype=torch.float64), [SamplingParams(**asked)], [draw]).token_ids[0]


def reachable(row, **asked):
    """The tokens that a sweep of draws finds, both ends included."""
    draws = [0.0, LAST, *(np.arange(2000) / 2000)]
    logits = torch.tensor([row], dtype=torch.float64).expand(len(draws), -1)
    return set(sample(logits, [SamplingParams(**asked)] * len(draws), draws).token_ids)


def oracle(row, asked, draw):
    """(token, whether rounding could not have changed it), by lists and floats, one filter after the other."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if asked.temperature == 0:
        return order[0], True
    most = row[order[0]]
    weight = [math.exp((x - most) / asked.temperature) for x in row]
    kept = order[: asked.top_k] if asked.top_k else order
    whole, total, nucleus, certain = math.fsum(weight[i] for i in kept), 0.0, [], True
    for i in kept:
        nucleus.append(i)
        total += weight[i]
        certain &= abs(total - asked.top_p * whole) > 1e-9 or asked.top_p == 1
        if total >= asked.top_p * whole and asked.top_p < 1:
            break
    certain &= all(abs(weight[i] - asked.min_p) > 1e-9 for i in nucleus if weight[i] < 1)
    kept = sorted(i for i in nucleus if weight[i] >= asked.min_p)
    target, total = draw * math.fsum(weight[i] for i in kept), 0.0
    for i in kept:
        total += weight[i]
        certain &= abs(total - target) > 1e-9 or draw == LAST
        if total > target:
            return i, certain
    return max(i for i in kept if weight[i] > 0), certain


def test_every_small_row_under_random_params_is_the_oracles():
    pick = random.Random(5)
    rows = [list(row) for row in itertools.product([-INF, -1.0, 0.0, 0.3], repeat=4) if max(row) > -INF]
    rows += [[pick.gauss(0, 3) for _ in range(4)] for _ in range(200)]
    cases = [
        (
            row,
            SamplingParams(
                temperature=pick.choice([0, 1e-10, 0.3, 1, 7, 2**60]),
                top_k=pick.choice([0, 0, 1, 2, 3, 4, 9]),
                top_p=pick.choice([1, 1, 0.999, 0.77, 0.41, 1e-12]),
                min_p=pick.choice([0, 0, 0.15, 0.6, 1]),
            ),
            pick.choice([0.0, LAST, pick.random()]),
        )
        for row in rows
        for _ in range(20)
    ]
    logits = torch.tensor([row for row, _, _ in cases], dtype=torch.float64)
    got = sample(logits, [params for _, params, _ in cases], [draw for _, _, draw in cases]).token_ids
    compared = 0
    for (row, params, draw), found in zip(cases, got, strict=True):
        expected, certain = oracle(row, params, draw)
        assert row[found] > -INF
        if certain:
            compared += 1
            assert found == expected, (row, params, draw)
    assert compared > 0.9 * len(cases)


@pytest.mark.parametrize("seed", range(6))
def test_the_filters_keep_what_those_of_transformers_keep(seed):
    pick = random.Random(seed)
    row = torch.tensor([[pick.gauss(0, 2) for _ in range(60)]], dtype=torch.float64)
    for _ in range(30):
        asked = {
            "temperature": pick.uniform(0.3, 3),
            "top_k": pick.choice([0, 1, 7, 59, 60]),
            "top_p": pick.choice([1.0, pick.uniform(0.05, 0.99)]),
            "min_p": pick.choice([0.0, pick.uniform(0.001, 0.9)]),
        }
        scores = TemperatureLogitsWarper(asked["temperature"])(None, row)
        if asked["top_k"]:
            scores = TopKLogitsWarper(asked["top_k"])(None, scores)
        if asked["top_p"] < 1:
            scores = TopPLogitsWarper(asked["top_p"])(None, scores)
        if asked["min_p"]:
            scores = MinPLogitsWarper(asked["min_p"])(None, scores)
        odds = scores.softmax(-1)[0]
        kept = odds.nonzero()[:, 0].tolist()
        middles = (odds.cumsum(0) - odds / 2)[kept].tolist()  # of each kept token's share of [0, 1)
        draws = [0.0, *middles, LAST]
        got = sample(row.expand(len(draws), -1), [SamplingParams(**asked)] * len(draws), draws).token_ids
        assert got == [kept[0], *kept, kept[-1]], asked


@pytest.mark.parametrize("asked", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_tokens_come_as_often_as_their_probabilities_say(asked):
    row, count = [0.1, 2.0, -1.0, 1.5, 0.9, -0.3, 1.1, 0.0], 20_000
    draws, params = Draws(11, 0), SamplingParams(**asked)
    logits = torch.tensor([row]).expand(count, -1)
    got = np.bincount(
        sample(logits, [params] * count, [draws[i] for i in range(count)]).token_ids, minlength=8
    )
    odds = np.exp(np.array(row) / params.temperature)
    if "top_k" in asked:
        odds[np.argsort(row)[:-4]] = 0
    if "top_p" in asked:
        odds[[0, 2, 5, 7]] = 0  # the others have 0.36, 0.22, 0.15 and 0.12 of the whole: three are too few
    odds[odds < params.min_p * odds.max()] = 0
    expected = odds / odds.sum() * count
    assert not got[expected == 0].any()
    kept = expected > 0
    chi_square = float(((got - expected)[kept] ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def mixed_batch(rows=48, vocabulary=90):
    """Every kind of row beside every other, with ties."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(3)).mul(4).round().div(2)
    kinds = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {},
        {"top_k": 5, "logprobs": 0},
        {"top_k": 30, "top_p": 0.5},
        {"top_p": 0.7, "min_p": 0.1},
        {"temperature": 1.9, "min_p": 0.05, "logprobs": 6},
        {"top_k": 1000, "top_p": 0.2, "logprobs": 200},
    ]
    params = [SamplingParams(**kinds[row % len(kinds)]) for row in range(rows)]
    return logits, params, [Draws(9, row)[row] for row in range(rows)]


def test_a_row_alone_draws_what_it_draws_in_any_batch(monkeypatch):
    logits, params, draws = mixed_batch()
    together = sample(logits, params, draws)
    for row, wanted in enumerate(params):
        alone = sample(logits[row : row + 1], [wanted], [draws[row]])
        assert alone.token_ids == [together.token_ids[row]]
        assert alone.logprobs == [together.logprobs[row]]
    order = random.Random(1).sample(range(len(params)), len(params))
    mixed = sample(logits[order], [params[row] for row in order], [draws[row] for row in order])
    assert mixed.token_ids == [together.token_ids[row] for row in order]
    assert mixed.logprobs == [together.logprobs[row] for row in order]
    for at_once in (1, 200, 90 * 7):
        monkeypatch.setattr(sampler, "AT_ONCE", at_once)
        assert sample(logits, params, draws) == together


def test_a_row_may_be_given_for_several_samples():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    params, draws = [SamplingParams()] * 12, [Draws(4, number)[0] for number in range(12)]
    repeated = sample(logits[torch.arange(3).repeat_interleave(4)], params, draws).token_ids
    assert repeated == [sample(logits[i // 4][None], params[:1], [draws[i]]).token_ids[0] for i in range(12)]
    assert len(set(repeated[:4])) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_greedy_is_torchs_argmax(dtype):
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[5, [17, 400]] = 9.0  # a tie
    logits[6] = -2.5  # nothing but ties
    logits[7] = -INF
    logits[7, 999] = -60_000.0
    for given in (logits, logits.T.contiguous().T, logits[:, 100:], logits.clone().requires_grad_()):
        got = sample(given, [GREEDY] * 64, [0.9] * 64)
        assert got.token_ids == given.argmax(-1).tolist()
        assert got.logprobs == [None] * 64
    assert sample(logits, [GREEDY] * 64, [0.0] * 64).token_ids[5:8] == [17, 0, 999]


def test_the_largest_is_found_alike_on_either_kind_of_device():
    """On a CPU NumPy looks for it, on a GPU torch: ties and NaN must not tell them apart."""
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(4)).round()
    logits[3, 20], logits[4, 9], logits[5] = math.nan, INF, -INF
    best, ids = sampler._largest(logits)
    expected = logits.max(dim=-1)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(best, expected.values) or torch.equal(best.isnan(), expected.values.isnan())


def test_ties_at_the_edge_of_a_filter_go_to_the_lower_id():
    row = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert reachable(row, top_k=1) == {1}
    assert reachable(row, top_k=2) == {1, 3}
    assert reachable(row, top_k=4) == {0, 1, 2, 3}
    level = [2.0] * 8
    assert [len(reachable(level, top_p=p)) for p in (1e-9, 1 / 8, 0.126, 0.5, 0.51, 1)] == [1, 1, 2, 4, 5, 8]
    assert reachable(level, top_p=0.5) == {0, 1, 2, 3}
    assert reachable(level, top_k=4, top_p=0.5) == {0, 1}, "half of the four that top_k has kept"
    assert reachable(level, min_p=1) == set(range(8))
    assert reachable([0.0, 2.0, 1.0], min_p=1) == {1}


def test_top_p_is_reached_to_the_last_unit_of_weight():
    """In a vocabulary of 2^20 the likeliest token weighs 2^41; a second one that weighs 2 is kept or not."""
    size, most = 2**20, 2**41
    row = [0.0, math.log(2.5 / most), *[-INF] * (size - 2)]
    assert token(row, LAST, top_p=most / (most + 2)) == 0
    assert token(row, LAST, top_p=(most + 0.5) / (most + 2)) == 1


def test_min_p_is_a_share_of_the_highest_probability_after_temperature():
    row = [0.0, math.log(0.5), math.log(0.1)]
    assert reachable(row, min_p=0.4) == {0, 1}
    assert reachable(row, min_p=0.6) == {0}
    assert reachable(row, min_p=0.6, temperature=2) == {0, 1}, "0.5 ** (1 / 2) is 0.71"
    assert reachable(row, min_p=0.05, top_k=1) == {0}


@pytest.mark.parametrize("draw", [0.0, 0.5, LAST, 1.0])
def test_what_is_filtered_is_not_drawn_at_the_ends(draw):
    hidden = [-INF, 3.0, -INF, 2.0, -INF]
    assert token(hidden, draw) in (1, 3)
    assert token([0.0, 5.0, 4.9, 0.0], draw, top_k=2) in (1, 2)
    assert token([0.0, 5.0, 4.9, 0.0], draw, top_p=0.9) in (1, 2)
    assert token([0.0, 5.0, 4.9, 0.0], draw, min_p=0.5) in (1, 2)
    assert token([-INF, -INF, 0.0], draw, top_k=3, top_p=0.999) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 70_001])
def test_the_ends_of_any_vocabulary_can_be_drawn(size):
    level = [0.0] * size
    assert token(level, 0.0) == 0
    assert token(level, LAST) == size - 1
    assert token(level, 0.5) == size // 2


@pytest.mark.parametrize("temperature", [1e-300, 1e-10, 1, 1e18])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 6e4, 1e38, 1e300])
def test_no_temperature_is_too_small_and_no_logit_too_large(temperature, scale):
    row = [-scale, scale, 0.0, -INF]
    found = sample(
        torch.tensor([row], dtype=torch.float64), [SamplingParams(temperature=temperature, logprobs=3)], [0.5]
    )
    assert found.token_ids[0] != 3
    assert all(math.isfinite(value) or value == -INF for _, value in found.logprobs[0].top)
    if scale / temperature > 1e3:
        assert found.token_ids == [1]


def test_no_rows_give_no_tokens_and_the_logits_stay_as_they_are():
    assert sample(torch.zeros(0, 7), [], []) == sampler.SamplerOutput([], [])
    logits, params, draws = mixed_batch()
    before = logits.clone()
    sample(logits, params, draws)
    assert torch.equal(logits, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_what_a_cpu_draws_and_nothing_but_the_tokens_is_waited_for():
    logits, params, draws = mixed_batch(rows=64, vocabulary=5000)
    on_device = logits.cuda()
    expected, found = sample(logits, params, draws), sample(on_device, params, draws)
    assert found.token_ids == expected.token_ids
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert (ours.rank, [i for i, _ in ours.top]) == (theirs.rank, [i for i, _ in theirs.top])
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-9)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            sample(on_device, params, draws)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    # torch says so of every wait for a stream; the event behind the copy of the tokens is none.
    assert not [warning for warning in seen if "called a synchronizing" in str(warning.message)]
