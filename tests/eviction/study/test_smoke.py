"""The checks of ``minikv doctor --smoke``: they hold, and each fails where what it looks at is broken."""

import dataclasses

import pytest
import torch

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.paged.records import TokenRecords
from minikv.eviction.paged.runner import EvictionRunner, Moves, in_order
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import POLICIES, Random, policy_of
from minikv.eviction.study import smoke_cache
from minikv.eviction.study.smoke import LOOKS, TOKENS, policy_cases, smoke


def failing():
    return {check.values.get("policy", check.key) for check in smoke() if not check.passed}


def test_all_hold_and_every_policy_is_among_them():
    checks = list(smoke())
    assert all(check.passed for check in checks)
    asked = {type(policy) for policy, *_ in policy_cases().values()} | {Random}
    assert asked >= set(POLICIES.values())


def test_what_is_looked_at_are_probabilities():
    assert all(sum(shares.values()) <= 1 for shares in LOOKS.values())
    assert all(token <= query < TOKENS for query, shares in LOOKS.items() for token in shares)


@pytest.mark.parametrize("name", ["streaming", "h2o", "snapkv", "pyramidkv", "tova", "knorm", "keydiff"])
def test_a_policy_the_other_way_round_is_noticed(name, monkeypatch):
    kind = type(policy_of(name))
    own = kind.score
    monkeypatch.setattr(kind, "score", lambda self, view: -own(self, view))
    assert any(found.startswith(name) for found in failing())


def no_gap(self, kept, length):
    """The moves of a compaction that forgets to move: whoever stands first stays."""
    return Moves(*[torch.arange(kept.shape[-1]).expand(kept.shape)] * 3)


def not_copied(self, seq_id, keep, group=0):
    done = COMPACT(self, seq_id, keep, group)
    return dataclasses.replace(done, copies=())


def never_freed(self, seq_id, keep, group=0):
    self.pools[group].share(self.block_table(seq_id, group))
    return COMPACT(self, seq_id, keep, group)


COMPACT = BlockManager.compact
BROKEN = {
    "scores stay where they were": (TokenRecords, "keep", lambda *args: None, {"records", "bits"}),
    "tokens are not moved": (PagedKVCache, "move", lambda *args: None, {"bits", "masking_gqa", "masking_mla"}),
    "what is shared is not copied": (BlockManager, "compact", not_copied, {"shared"}),
    "the tail is not freed": (BlockManager, "compact", never_freed, {"blocks"}),
    "it is never due": (PagedEviction, "due", lambda self, names: [], {"capacity"}),
    "the peak is one too many": (Budget, "peak_resident", property(lambda self: self.capacity + 3), {"capacity"}),
    "blocks go whatever they hold": (
        smoke_cache.PagedEviction,
        "_evict_blocks",
        lambda self, names: [self.manager.drop_blocks(name, [0, 1], 0) for name in names],
        {"whole_blocks"},
    ),
    "heads keep the same": (EvictionRunner, "scope", property(lambda self: "layer", lambda self, _: None), {"bits"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_noticed(what, monkeypatch):
    owner, name, broken, found = BROKEN[what]
    monkeypatch.setattr(owner, name, broken, raising=False)
    assert found <= failing()


def test_moves_in_order_are_as_good(monkeypatch):
    """The checks ask for what has to hold, not for how it is done."""
    monkeypatch.setattr("minikv.eviction.paged.runner.fill_holes", in_order)
    assert not failing()
