"""What eviction on blocks refuses, by name; and what a refusal leaves as it was."""

import pytest

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache.linear import LinearKVCache
from minikv.cache.linear_pages import LinearPages
from minikv.errors import ArgumentError, OutOfBlocksError, UnknownNameError
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import PyramidKV, Random
from tests.cache.paged_cases import cache_for, every_byte, fill, refused, spec_for, unchanged

BUDGET = Budget(2, 4, 2)


def linear():
    return LinearPages(LinearKVCache(spec_for("gqa", "fp32"), 2, 32, device="cpu"))


REFUSED = {
    "a linear cache": (
        "eviction_not_paged",
        lambda: PagedEviction(linear(), BlockManager(8, 4), "h2o", budget=BUDGET),
    ),
    "no manager": (
        "eviction_not_a_manager",
        lambda: PagedEviction(cache_for("gqa"), None, "h2o", budget=BUDGET),
    ),
    "other blocks": (
        "eviction_manager",
        lambda: PagedEviction(cache_for("gqa"), BlockManager(8, 16), "h2o", budget=BUDGET),
    ),
    "other groups": (
        "eviction_manager",
        lambda: PagedEviction(cache_for("mixed"), BlockManager(8, 4), "h2o", budget=BUDGET),
    ),
    "windows everywhere": (
        "eviction_no_full",
        lambda: PagedEviction(
            cache_for("gqa"), BlockManager([KVCacheGroup(5, window=3)], 4), "h2o", budget=BUDGET
        ),
    ),
    "heads of a latent": ("eviction_paged_latent", lambda: on("mla", scope="head")),
    "heads of a block": ("eviction_blocks_head", lambda: on("gqa", scope="head", unit="block")),
    "queries of no model": ("eviction_paged_model", lambda: on("gqa", "echo")),
    "a pyramid": ("eviction_paged_layers", lambda: on("gqa", PyramidKV())),
    "too few blocks": ("eviction_blocks_few", lambda: on("gqa", unit="block")),
    "another scope": ("unknown_choice", lambda: on("gqa", scope="query")),
    "another unit": ("unknown_choice", lambda: on("gqa", unit="page")),
    "another worth": ("unknown_choice", lambda: on("gqa", per_block="mean")),
    "another policy": ("unknown_choice", lambda: on("gqa", "best")),
}


def on(layers, policy="h2o", **options):
    cache = cache_for(layers, "fp32", num_blocks=8)
    return PagedEviction(cache, BlockManager(8, 4), policy, budget=BUDGET, **options)


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what):
    refused(*REFUSED[what])


def begun(num_blocks=12):
    cache = cache_for("gqa", "fp32", num_blocks=num_blocks)
    fill(cache)
    manager = BlockManager(num_blocks, 4)
    eviction = PagedEviction(cache, manager, Random(1), budget=BUDGET)
    manager.allocate("a", range(20))
    eviction.add("a")
    manager.commit("a")
    return cache, manager, eviction


def test_a_copy_for_which_there_is_no_block_changes_nothing():
    cache, manager, eviction = begun(num_blocks=6)
    manager.fork("a", "b")
    eviction.fork("a", "b")
    manager.append("b", 1)  # the last free block but none
    manager.commit("b")
    before, tables = every_byte(cache), [manager.block_table(name) for name in "ab"]
    with pytest.raises(OutOfBlocksError) as caught:
        eviction.evict(["a"])
    assert caught.value.values["asked"] == 2
    assert unchanged(cache, before)
    assert [manager.block_table(name) for name in "ab"] == tables
    assert eviction.positions("a", 0).tolist() == [[*range(20)]] * 2
    manager.check_invariants()
    manager.free("b")
    assert eviction.evict(["a"]) == 12


def test_tokens_that_are_not_committed_and_strangers_stop_it_before_anything_is_done():
    cache, manager, eviction = begun()
    manager.allocate("c", range(100, 110))
    eviction.add("c")
    before = every_byte(cache)
    with pytest.raises(ArgumentError) as caught:
        eviction.evict(["a", "c"])
    assert caught.value.code == "compact_uncommitted"
    manager.commit("c")
    manager.allocate("d", range(4))
    manager.commit("d")
    for names in (["a", "d"], ["a", "nobody"]):
        with pytest.raises(UnknownNameError):
            eviction.evict(names)
    assert unchanged(cache, before)
    assert manager.length("a") == 20


def test_nothing_is_due_until_the_peak_is_passed():
    cache = cache_for("gqa", "fp32", num_blocks=8)
    manager = BlockManager(8, 4)
    budget = Budget(2, 4, 2, evict_every=3)
    eviction = PagedEviction(cache, manager, "streaming", budget=budget)
    manager.allocate("a", range(budget.peak_resident))
    eviction.add("a")
    manager.commit("a")
    assert eviction.due(["a"]) == []
    manager.append("a", 9)
    manager.commit("a")
    assert eviction.due(["a"]) == ["a"]
    assert eviction.evict(["a", "a"]) == 3
    assert eviction.evict(["a"]) == 0
    assert eviction.observer(["a"], [1]) is None, "a policy that looks at no attention costs none"
