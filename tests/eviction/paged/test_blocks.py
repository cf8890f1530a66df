"""Eviction of whole blocks: the table loses them, the storage is not touched, and what stays can still be shared."""

import random

import pytest
import torch

from minikv.blocks import BlockManager
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.paged.runner import blocks_to_keep, least_capacity, token_ranks
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import H2O, Knorm, Random
from tests.cache.paged_cases import cache_for, every_byte, fill, unchanged
from tests.eviction.paged.test_model import OnBlocks, models, texts_of  # noqa: F401  (a fixture)


def begun(num_tokens=42, block_size=4, budget=None, policy=None, **options):
    cache = cache_for("gqa", "fp32", num_blocks=40, block_size=block_size)
    fill(cache)
    manager = BlockManager(40, block_size)
    budget = Budget(4, 12, 6) if budget is None else budget
    eviction = PagedEviction(cache, manager, policy or Random(2), budget=budget, unit="block", **options)
    manager.allocate("a", range(num_tokens))
    eviction.add("a")
    manager.commit("a")
    return cache, manager, eviction


def test_no_byte_of_the_storage_changes():
    cache, manager, eviction = begun()
    before, table = every_byte(cache), manager.block_table("a")
    assert eviction.evict(["a"]) == 42 - manager.length("a") > 0
    assert unchanged(cache, before)
    left = manager.block_table("a")
    assert left == [block for block in table if block in left], "the others, in their order"
    assert left[-1] == table[-1]
    for layer in range(3):
        places = [table.index(block) * 4 + at for block in left for at in range(4)]
        assert eviction.positions("a", layer).tolist() == [places[: manager.length("a")]] * 2


def test_what_stays_is_shared_and_found_as_before():
    _, manager, eviction = begun()
    manager.fork("a", "b")
    eviction.fork("a", "b")
    eviction.evict(["a"])
    assert all(manager.pools[0].ref_count(block) == 2 for block in manager.block_table("a"))
    assert manager.length("b") == 42
    assert manager.match([*range(42)]).num_tokens == 40
    manager.check_invariants()


@pytest.mark.parametrize("seed", range(30))
def test_the_capacity_holds_and_sinks_and_recent_tokens_stay(seed):
    draw = random.Random(seed)
    size = draw.choice((1, 2, 3, 4, 8, 16))
    budget = Budget(draw.randrange(6), 0, draw.randrange(1, 9), draw.randrange(1, 5))
    lacking = least_capacity(budget, size) - budget.capacity
    budget = Budget(budget.n_sink, lacking + draw.randrange(12), budget.n_recent, budget.evict_every)
    ranks = torch.rand(3, draw.randrange(budget.capacity + 1, budget.capacity + 50))
    positions = torch.arange(ranks.shape[1]).expand(3, -1)
    keep = blocks_to_keep(ranks, positions, budget, size, draw.choice(("max", "sum")))
    tokens = keep.repeat_interleave(size, 1)[:, : ranks.shape[1]]
    assert keep[:, -1].all()
    assert (tokens.sum(1) <= budget.capacity).all()
    assert (tokens.sum(1) > budget.capacity - size).all(), "a block more would have fitted"
    assert tokens[:, : budget.n_sink].all()
    assert tokens[:, -budget.n_recent :].all()


def test_a_block_counts_as_its_best_token_or_as_all_of_them():
    ranks = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.1, 0.1, 0.0]])
    positions, budget = torch.arange(7).unsqueeze(0), Budget(0, 2, 1)
    assert blocks_to_keep(ranks, positions, budget, 2, "max").tolist() == [[True, False, False, True]]
    assert blocks_to_keep(ranks, positions, budget, 2, "sum").tolist() == [[False, True, False, True]]


def test_layers_that_score_in_other_units_count_alike():
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.rand(2, 3, 20, generator=generator) for _ in range(2))
    assert torch.equal(token_ranks([one, other]), token_ranks([one * 1e6 - 3, other * 1e-6]))
    assert token_ranks([one]).min() == 0
    assert token_ranks([one]).max() == 1


def test_every_layer_has_a_say():
    """Two layers whose best tokens lie in different blocks: both blocks stay."""
    one, other = torch.zeros(1, 1, 17), torch.zeros(1, 1, 17)
    one[..., 5], other[..., 10] = 9.0, 9.0
    keep = blocks_to_keep(token_ranks([one, other]), torch.arange(17)[None], Budget(0, 8, 1), 4, "max")
    assert keep[0].tolist() == [False, True, True, False, True]


@pytest.mark.parametrize("policy", [H2O(), Knorm()])
def test_a_model_goes_on_as_if_the_other_tokens_were_masked(models, policy):  # noqa: F811
    """The same model on blocks of one token, with tokens evicted in every layer alike, is what it has to equal."""
    budget, text = Budget(4, 20, 6), iter(texts_of()[0])
    paged = OnBlocks(models[0], policy, budget, block_size=4, unit="block")
    seen = []
    for count in (30, 14, *[1] * 12):
        seen.append([next(text) for _ in range(count)])
        got = paged.forward({"a": seen[-1]})
        if paged.eviction.due(["a"]):
            paged.eviction.evict(["a"])
        held = paged.eviction.positions("a", 0)[0].tolist()
        assert all(paged.eviction.positions("a", layer)[0].tolist() == held for layer in (0, 1))
        assert len(held) <= budget.capacity
        assert held == sorted(held)
    paged.adapter.unbind()
    assert got.isfinite().all()
    assert paged.manager.num_tokens("a") == sum(map(len, seen)) > paged.manager.length("a")
