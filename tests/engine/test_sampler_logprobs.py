"""Log-probabilities and ranks: the model's own distribution, whatever temperature and filters did to the draw."""

import math

import pytest
import torch

from minikv.engine import SamplingParams
from minikv.engine.sampler import Draws, sample

LAST = 1 - 2.0**-53  # the largest number that Draws gives
INF = math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logprobs_and_ranks_are_those_of_the_models_own_distribution(dtype):
    logits = (torch.randn(20, 50, generator=torch.Generator().manual_seed(6)) * 3).to(dtype)
    asked = [SamplingParams(temperature=2.0, top_k=9, min_p=0.01, logprobs=row % 8) for row in range(20)]
    got = sample(logits, asked, [Draws(1, row)[0] for row in range(20)])
    for row, (found, chosen) in enumerate(zip(got.logprobs, got.token_ids, strict=True)):
        expected = logits[row].double().log_softmax(-1).tolist()
        order = sorted(range(50), key=lambda i: (-expected[i], i))
        assert found.logprob == pytest.approx(expected[chosen], abs=1e-9)
        assert found.rank == 1 + sum(value > expected[chosen] for value in expected)
        assert [i for i, _ in found.top] == order[: row % 8]
        assert [value for _, value in found.top] == pytest.approx(
            [expected[i] for i, _ in found.top], abs=1e-9
        )
        assert isinstance(chosen, int)
        assert isinstance(found.rank, int)
        assert isinstance(found.logprob, float)
    assert any(found.rank > 1 for found in got.logprobs)


def test_logprobs_of_equal_and_of_impossible_tokens():
    logits = torch.tensor([[1.0, 3.0, -INF, 3.0, 1.0, 3.0, 0.0]])

    def at(draw, count):
        found = sample(logits, [SamplingParams(logprobs=count)], [draw])
        return found.token_ids[0], found.logprobs[0]

    chosen, found = at(LAST, 2)
    assert (chosen, found.rank) == (6, 6), "five are likelier"
    assert [i for i, _ in found.top] == [1, 3]
    assert [i for i, _ in at(0.5, 4)[1].top] == [1, 3, 5, 0]
    assert [i for i, _ in at(0.5, 100)[1].top] == [1, 3, 5, 0, 4, 6], "token 2 cannot come"
    assert at(0.5, 0)[1].top == ()
    chosen, found = at(0.6, 1)
    assert chosen in (3, 5)
    assert found.rank == 1, "no token is likelier"
