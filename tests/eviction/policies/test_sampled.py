"""A few ordinary tokens beside the ones that matter: a uniform sample, and what it does to the other words."""

from collections import Counter

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import H2O, KeyDiff, Knorm, Random, StreamingLLM, install_kv_eviction
from minikv.eviction.policies.layered import Layered
from minikv.eviction.policies.sampled import Sampled
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases
from tests.eviction.hf.masking import tiny
from tests.eviction.policies.test_literature import view


def places(policy, chunks, rows=2, scope="layer", **sizes):
    """The positions that each layer keeps of 80 tokens."""
    model, start = tiny("tiny-gqa"), 0
    tokens = torch.randint(4, 190, (rows, 80), generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), install_kv_eviction(model, policy=policy, scope=scope, **sizes) as eviction:
        cache = eviction.new_cache()
        for size in chunks:
            model(tokens[:, start : start + size], past_key_values=cache)
            start += size
        return [layer.positions.sort(-1).values for layer in cache.layers]


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_the_sample_is_the_same_however_the_text_was_read(scope):
    """A text read token by token has lost most of its tokens on the way, and still the sample is of all of them."""
    sizes = {"budget": 6, "n_sink": 2, "n_recent": 3, "scope": scope}
    policy = Sampled(StreamingLLM(), count=6, seed=4)
    for at_once, stepwise in zip(
        places(policy, [80], **sizes), places(policy, [1] * 80, **sizes), strict=True
    ):
        assert torch.equal(at_once, stepwise)
        assert (at_once == at_once[:1, :1]).all()  # in all heads, and in all texts of one length


def test_the_sample_is_uniform():
    counts: Counter[int] = Counter()
    for seed in range(150):
        kept = places(
            Sampled(StreamingLLM(), count=5, seed=seed), [80], rows=1, budget=5, n_sink=0, n_recent=1
        )
        counts.update(kept[0][0, 0, :-1].tolist())
    early, late = (sum(counts[place] for place in part) for part in (range(40), range(40, 80)))
    assert early + late == 150 * 5
    assert abs(early - late) < 5 * (150 * 5) ** 0.5
    assert len(counts) == 79  # the last one is the recent window


@pytest.mark.parametrize("policy", [KeyDiff(), Knorm(), H2O(), Random(3)])
def test_besides_the_sample_the_scores_are_the_policys(policy):
    given = view(padding=5)
    plain, mixed = policy.score(given), Sampled(policy, count=4).score(given)
    sample = mixed.isinf()
    assert sample.sum(-1).unique().tolist() == [4]
    assert torch.equal(mixed[~sample], plain[~sample])
    assert not (sample & ~given.valid[:, None]).any()
    assert torch.equal(Sampled(policy, count=0).score(given), plain)
    assert Sampled(policy, count=99).score(given).isinf().all()


@pytest.mark.parametrize("wrong", [{"count": -1}, {"count": 1.5}, {"seed": -1}, {"policy": "h2o"}])
def test_refusals(wrong):
    with pytest.raises(ArgumentError):
        Sampled(**({"policy": KeyDiff()} | wrong))


def test_it_takes_the_probability_that_answers_got():
    """At 10 %, where nearly all that is kept are answers: recall stays, the other words are predicted again."""
    model, cases = tiny("tiny-gqa"), make_cases("multikey", 16, seed=2000)
    sizes = {"budget": 16, "n_sink": 1, "n_recent": 2}

    def scored(count):
        policy = Layered(Sampled(KeyDiff(), count), (0, 32))
        return answer(model, cases, evicting=lambda model: install_kv_eviction(model, policy=policy, **sizes))

    bare, mixed = scored(0), scored(8)
    assert mixed.perplexity < bare.perplexity / 2
    assert mixed.share > bare.share - 0.1
