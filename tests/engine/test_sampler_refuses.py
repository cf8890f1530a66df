"""What the sampler refuses: rows without a token to choose, and what is no logits, params or draws."""

import math

import pytest
import torch

from minikv.engine import SamplingParams
from minikv.engine.sampler import sample
from minikv.errors import ArgumentError

GREEDY = SamplingParams(temperature=0)
INF = math.inf


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [1.0, math.nan], [-INF, -INF], [INF, 0.0], [INF, INF]])
@pytest.mark.parametrize(
    "asked", [{"temperature": 0}, {}, {"top_k": 1}, {"top_p": 0.5, "logprobs": 2}, {"min_p": 0.1}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_without_a_finite_largest_logit_is_named(bad, asked, dtype):
    logits = torch.tensor([[0.0, 1.0], bad, [1.0, 0.0]], dtype=dtype)
    with pytest.raises(ArgumentError) as error:
        sample(logits, [GREEDY, SamplingParams(**asked), SamplingParams()], [0.5] * 3)
    assert error.value.code == "sampler_not_finite"
    assert error.value.values["row"] == 1
    assert error.value.text("en") != error.value.text("zh")


def test_wrong_arguments_are_refused():
    logits = torch.zeros(2, 5)
    for given in (logits.long(), [[0.0] * 5] * 2, None):
        with pytest.raises(ArgumentError, match="float16"):
            sample(given, [GREEDY] * 2, [0.5] * 2)
    for given in (logits[0], logits[:1], torch.zeros(2, 0), torch.zeros(2, 1, 5)):
        with pytest.raises(ArgumentError, match=r"logits.*\[2, vocabulary\]"):
            sample(given, [GREEDY] * 2, [0.5] * 2)
    with pytest.raises(ArgumentError, match="draws"):
        sample(logits, [GREEDY] * 2, [0.5])
    for given in (None, GREEDY, torch.ones(2), 5):
        with pytest.raises(ArgumentError, match="params must be a list or a tuple"):
            sample(logits, given, [0.5] * 2)
        with pytest.raises(ArgumentError, match="draws must be a list or a tuple"):
            sample(logits, [GREEDY] * 2, given)
    for wanted in (None, {"temperature": 0}, "greedy"):
        with pytest.raises(ArgumentError, match="SamplingParams"):
            sample(logits, [GREEDY, wanted], [0.5] * 2)
    for draw in (-0.1, 1.1, math.nan, INF, None, "0.5", [0.5], torch.tensor(0.5)):
        with pytest.raises(ArgumentError, match=r"draws\[1\]"):
            sample(logits, [GREEDY, SamplingParams()], [0.5, draw])
        assert sample(logits, [GREEDY, GREEDY], [0.5, draw]).token_ids == [0, 0], "greedy does not look at it"
