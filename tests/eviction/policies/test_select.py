"""select keeps sinks, recent tokens and the best of the rest; Budget counts them."""

import pytest
import torch

from minikv.errors import ArgumentError, MiniKVError
from minikv.eviction import Budget
from minikv.eviction.policies.select import best_first, few_worst, ordinals, rank, select, worst


def naive(scores, valid, n_sink, n_recent, budget):
    """One row and head, in words: sinks, recent, then the best, the earlier one first; padding fills what is left."""
    real = [token for token, is_valid in enumerate(valid) if is_valid]
    kept = set(real[:n_sink]) | set(real[len(real) - n_recent :] if n_recent else [])
    middle = sorted((t for t in real if t not in kept), key=lambda t: (-scores[t], t))
    padding = [token for token, is_valid in enumerate(valid) if not is_valid]
    room = min(len(valid), n_sink + n_recent + budget)
    return sorted((sorted(kept) + middle + padding)[:room]) if len(kept) <= room else None


def random_case(generator, levels: int):
    batch, heads, tokens = 3, 2, int(torch.randint(1, 30, (), generator=generator))
    score = torch.randint(levels, (batch, heads, tokens), generator=generator).float()
    padding = torch.randint(tokens, (batch,), generator=generator)
    valid = torch.arange(tokens) >= padding[:, None]
    drawn = torch.randint(9, (3,), generator=generator).tolist()
    counts = dict(zip(("n_sink", "n_recent", "budget"), drawn, strict=True))
    return score, valid, counts


@pytest.mark.parametrize("levels", [1, 3, 1000], ids=["all tie", "many ties", "few ties"])
@pytest.mark.parametrize("scope", ["head", "layer"])
def test_it_keeps_what_the_words_say(levels, scope):
    generator = torch.Generator().manual_seed(levels)
    for _ in range(60):
        score, valid, counts = random_case(generator, levels)
        kept = select(score, valid=valid, scope=scope, **counts)
        assert kept.dtype == torch.int64
        used = score if scope == "head" else score.mean(1, keepdim=True).expand_as(score)
        for row in range(score.shape[0]):
            for head in range(score.shape[1]):
                expected = naive(used[row, head].tolist(), valid[row].tolist(), **counts)
                assert kept[row, head].tolist() == expected


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_the_order_of_slots_makes_no_difference(scope):
    """The same tokens in shuffled slots, with their positions: the same tokens stay."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        score, valid, counts = random_case(generator, 4)
        places = ordinals(valid).expand_as(score)
        shuffle = torch.randperm(score.shape[2], generator=generator)
        kept = select(score, valid=valid, scope=scope, **counts)
        moved = select(
            score[..., shuffle],
            valid=valid[:, shuffle],
            scope=scope,
            positions=places[..., shuffle],
            **counts,
        )
        assert (moved.diff(dim=-1) > 0).all()
        back = places[..., shuffle].gather(-1, moved).sort(-1).values
        assert torch.equal(back, places.gather(-1, kept).sort(-1).values)


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_the_worst_is_the_last_of_the_order(scope):
    generator = torch.Generator().manual_seed(2)
    for _ in range(40):
        score, valid, counts = random_case(generator, 3)
        places = ordinals(valid)[..., torch.randperm(score.shape[2], generator=generator)].expand_as(score)
        ranked = rank(score, places, n_sink=counts["n_sink"], n_recent=counts["n_recent"], scope=scope)
        last = best_first(ranked, places)[..., -1:]
        found = worst(ranked, places)
        same = places[:, : ranked.shape[1]]
        assert torch.equal(same.gather(-1, found), same.gather(-1, last)), "padding tokens are alike"


def test_a_padded_row_keeps_what_the_row_alone_keeps():
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        score, valid, counts = random_case(generator, 5)
        kept = select(score, valid=valid, scope="head", **counts)
        for row in range(score.shape[0]):
            padding = int((~valid[row]).sum())
            own, real = score[row : row + 1, :, padding:], valid[row : row + 1, padding:]
            alone = select(own, valid=real, scope="head", **counts)
            of_row = [[token - padding for token in head if token >= padding] for head in kept[row].tolist()]
            assert of_row == alone[0].tolist()


def test_infinite_scores_count_as_the_largest_and_the_least():
    score = torch.tensor([[[-torch.inf, 1, torch.inf, 2, -3.0, 0]]])
    valid = torch.ones(1, 6, dtype=torch.bool)
    assert select(score, valid=valid, n_sink=1, n_recent=1, budget=1, scope="head").tolist() == [[[0, 2, 5]]]
    both = torch.cat((score, -score), 1)  # their mean is no number if nothing is cut off
    assert select(both, valid=valid, n_sink=1, n_recent=1, budget=4, scope="layer").shape == (1, 2, 6)


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("few", [1, 3])
def test_no_protected_token_goes_for_a_score_that_is_no_number(few, scope):
    """A decode step does not wait to look for one, as ``select`` does."""
    places = torch.randperm(12, generator=torch.Generator().manual_seed(0)).view(1, 1, -1).expand(1, 2, -1)
    score = torch.rand(1, 2, 12)
    score[0, 1, :] = torch.nan
    index = few_worst(score, places, few, n_sink=2, n_recent=4, scope=scope)
    gone = places[:, : index.shape[1]].gather(-1, index)
    assert ((gone >= 2) & (gone < 8)).all()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"scope": "heads"}, "unknown_choice"),
        ({"score": torch.zeros(2, 5)}, "cache_shape"),
        ({"valid": torch.ones(1, 5, dtype=torch.bool)}, "cache_shape"),
        ({"valid": torch.ones(2, 5)}, "cache_shape"),
        ({"positions": torch.zeros(2, 1, 4, dtype=torch.int64)}, "cache_shape"),
        ({"score": torch.full((2, 1, 5), torch.nan)}, "eviction_nan"),
        ({"budget": -1}, "bad_count"),
        ({"n_sink": 1.5}, "bad_count"),
    ],
)
def test_refusals(change, code):
    good = {"score": torch.zeros(2, 1, 5), "valid": torch.ones(2, 5, dtype=torch.bool)}
    good |= {"n_sink": 1, "n_recent": 1, "budget": 1}
    with pytest.raises(ArgumentError) as refused:
        select(**(good | change))
    assert refused.value.code == code
    assert refused.value.text("zh")


def test_a_budget_counts():
    budget = Budget(n_sink=4, budget=20, n_recent=8, evict_every=16)
    assert (budget.capacity, budget.peak_resident) == (32, 47)
    for bad in ({"n_recent": 0}, {"n_sink": -1}, {"evict_every": 0}, {"budget": True}, {"budget": 2.0}):
        with pytest.raises(MiniKVError):
            Budget(**({"n_sink": 1, "budget": 1, "n_recent": 1} | bad))
