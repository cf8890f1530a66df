"""Prefixes: equal tokens under an equal salt are found, nothing else is, and one token is always left to compute."""

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minikv.blocks.manager
import minikv.blocks.prefix
from minikv.blocks import NULL_BLOCK, BlockManager, KVCacheGroup, child_digest, root_digest
from tests.blocks.profiles import profile
from tests.blocks.snapshot import snapshot

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=14)


def shared(a, b):
    """How many tokens two texts have in common at the beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(known=TEXT, asked=TEXT, size=st.integers(1, 5), salts=st.tuples(*[st.sampled_from(["", "x"])] * 2))
@profile(examples=150)
def test_what_is_found_is_what_two_texts_share_in_whole_blocks_before_the_last_token(
    known, asked, size, salts
):
    manager = BlockManager(40, size)
    manager.allocate("known", known, salts[0])
    assert manager.match(asked, salts[0]).num_tokens == 0, "nothing is published before commit"
    manager.commit("known")
    found = manager.match(asked, salts[1])
    common = min(shared(known, asked), len(asked) - 1) // size * size if salts[0] == salts[1] else 0
    assert found.num_tokens == common
    assert found.tables == (tuple(manager.block_table("known")[: common // size]),)


@given(text=TEXT, size=st.integers(1, 5), part=st.integers(0, 14))
@profile(examples=100)
def test_only_what_is_committed_is_published(text, size, part):
    manager = BlockManager(40, size)
    part = min(part, len(text))
    manager.allocate("a", text)
    manager.commit("a", part)
    assert manager.match([*text, 0]).num_tokens == part // size * size
    manager.commit("a")
    assert manager.match([*text, 0]).num_tokens == len(text) // size * size


@given(text=TEXT, size=st.integers(1, 5), cut=st.integers(1, 14), more=TEXT)
@profile(examples=100)
def test_drafts_that_are_refused_leave_nothing_behind(text, size, cut, more):
    """truncate() and other tokens: the old text is found as far as nobody has overwritten it, the new one in full."""
    manager = BlockManager(40, size)
    manager.allocate("a", text)
    manager.commit("a")
    cut = min(cut, len(text))
    manager.truncate("a", cut)
    manager.append_tokens("a", more)
    new = text[:cut] + more
    assert manager.match([*new, 0]).num_tokens <= shared([*new, 0], text) // size * size
    manager.commit("a")
    manager.check_invariants()
    assert manager.match([*new, 0]).num_tokens == len(new) // size * size


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_full_hit_leaves_one_token(size, blocks):
    text = list(range(size * blocks))
    manager = BlockManager(40, size)
    manager.allocate("a", text)
    manager.commit("a")
    assert manager.allocate("same", text).num_cached == size * (blocks - 1)
    assert manager.allocate("longer", [*text, 5]).num_cached == size * blocks
    if len(text) > 2:
        assert manager.allocate("shorter", text[:-1]).num_cached == (len(text) - 2) // size * size


def test_every_digest_depends_on_the_parent_the_salt_and_the_boundaries():
    tokens = np.arange(4).tobytes()
    digests = {root_digest(""), root_digest("x"), root_digest("x\0")}
    for parent in list(digests):
        digests.add(child_digest(parent, tokens))
        digests.add(child_digest(parent, tokens[:16]))
        digests.add(child_digest(child_digest(parent, tokens[:16]), tokens[16:]))
        digests.add(child_digest(parent, tokens[::-1]))
    assert len(digests) == 15


def test_the_digests_of_a_match_are_a_chain():
    manager = BlockManager(8, 2)
    manager.allocate("a", [1, 2, 3, 4, 5, 6, 7])
    manager.commit("a")
    digests = manager.match([1, 2, 3, 4, 9, 9, 9], "").digests
    parent = root_digest("")
    for digest, pair in zip(digests, ([1, 2], [3, 4], [9, 9]), strict=True):
        parent = child_digest(parent, np.array(pair, np.int64).tobytes())
        assert digest == parent


def test_the_same_block_of_tokens_behind_another_beginning_is_another_block():
    manager = BlockManager(9, 2)
    manager.allocate("a", [1, 1, 5, 5, 0])
    manager.allocate("b", [2, 2, 5, 5, 0])
    manager.commit("a")
    manager.commit("b")
    assert manager.match([5, 5, 0]).num_tokens == 0
    assert manager.match([1, 1, 5, 5, 0]).tables == (tuple(manager.block_table("a")[:2]),)
    assert manager.match([2, 2, 5, 5, 0]).tables == (tuple(manager.block_table("b")[:2]),)
    assert manager.match([5, 5, 1, 1, 0]).num_tokens == 0


def test_tokens_may_come_as_any_sequence():
    manager = BlockManager(9, 2)
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.commit("a")
    for kind in (list, tuple, range, np.int64, np.int32, np.uint8, ">i8", ">u4"):
        if kind is range:
            tokens = range(1, 6)
        else:
            tokens = kind([1, 2, 3, 4, 5]) if kind in (list, tuple) else np.array([1, 2, 3, 4, 5], kind)
        assert manager.match(tokens).num_tokens == 4
    assert manager.match(np.array([1, 0, 2, 0, 3, 0, 4, 0, 5])[::2]).num_tokens == 4, "a strided array"
    assert manager.match([1 << 32 | 1, 2, 3]).num_tokens == 0, "all 64 bits count"
    assert manager.match([-1, 2, 3]).num_tokens == 0


@pytest.mark.parametrize(
    "digest",
    [
        lambda parent, tokens: b"always the same",
        lambda parent, tokens: hashlib.sha256(parent + tokens).digest()[:1],
        lambda parent, tokens: bytes([sum(tokens) % 3]),
    ],
    ids=["constant", "one byte", "a sum"],
)
@pytest.mark.parametrize(
    "groups", [[KVCacheGroup(40)], [KVCacheGroup(40), KVCacheGroup(40, 5)]], ids=["full", "window"]
)
def test_a_forged_digest_never_gives_a_block_of_other_tokens(digest, groups, monkeypatch):
    """With a digest that collides all the time, a block is given only for the tokens that it was filled with."""
    monkeypatch.setattr(minikv.blocks.prefix, "child_digest", digest)
    monkeypatch.setattr(minikv.blocks.manager, "child_digest", digest)
    rng = random.Random(0)
    manager = BlockManager(groups, 2)
    filled = {}  # (group, block) -> the tokens that it holds: the pool is so large that no block is used twice
    found = 0
    for name in range(60):
        text = [rng.randrange(3) for _ in range(7)]
        before = snapshot(manager)
        match = manager.match(text)
        assert snapshot(manager) == before
        for group, table in enumerate(match.tables):
            for place, block in enumerate(table):
                if block != NULL_BLOCK:
                    assert filled[group, block] == text[2 * place : 2 * place + 2]
                    found += 1
        if name < 4:
            manager.allocate(name, text, salt=str(name))
            for group in range(len(groups)):
                for place, block in enumerate(manager.block_table(name, group)):
                    filled.setdefault((group, block), text[2 * place : 2 * place + 2])
            manager.commit(name)
    assert found, "else nothing was tested"
