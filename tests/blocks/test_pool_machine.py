"""Random operations on a BlockPool and on the naive one, compared after every one; digests are made to collide."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minikv.blocks import BlockPool
from minikv.errors import ArgumentError
from tests.blocks.naive_pool import NaivePool, Refused
from tests.blocks.profiles import profile
from tests.blocks.snapshot import snapshot
from tests.blocks.world import refused_alike

BLOCKS = st.lists(st.integers(0, 5), max_size=4)
DIGESTS = st.sampled_from([b"p", b"q", b"r", b"s"])
TOKENS = st.sampled_from([b"1", b"2"])  # each digest may stand for two texts

SEEN: Counter = Counter()


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.sampled_from([1, 2, 4, 6, 6]), block_size=st.integers(1, 3))
    def begin(self, num_blocks, block_size):
        self.real = BlockPool(num_blocks, block_size)
        self.model = NaivePool(num_blocks, block_size)

    def both(self, name, *args):
        """Do it to both; what one refuses the other refuses, and what it returns the other returns."""
        SEEN["steps"] += 1
        SEEN[name] += 1
        blocks = [args[0]] if name in ("publish", "forget") else args[0]
        try:
            if name != "allocate" and any(block >= self.model.num_blocks for block in blocks):
                raise Refused(ArgumentError)
            expected = getattr(self.model, name)(*args)
        except Refused as refused:
            SEEN["refused"] += 1
            refused_alike(refused, self.real, lambda: getattr(self.real, name)(*args))
        else:
            assert getattr(self.real, name)(*args) == expected
        self.check()

    @rule(count=st.integers(0, 4))
    def allocate(self, count):
        self.both("allocate", count)

    @rule(data=st.data())
    def free_some(self, data):
        """Blocks that are held, each once: the case that is not refused."""
        held = sorted(set(self.model.holders))
        if held:
            self.both("free", data.draw(st.lists(st.sampled_from(held), unique=True, max_size=4)))

    @rule(blocks=BLOCKS)
    def free_any(self, blocks):
        self.both("free", blocks)

    @rule(blocks=BLOCKS)
    def share(self, blocks):
        self.both("share", blocks)

    @rule(blocks=BLOCKS)
    def touch_any(self, blocks):
        self.both("touch", blocks)

    @precondition(lambda self: self.model.cached)
    @rule(data=st.data())
    def touch_cached(self, data):
        """One from anywhere in the free list, the middle as well as the ends."""
        self.both("touch", [data.draw(st.sampled_from(self.model.cached))])

    @rule(block=st.integers(0, 5), digest=DIGESTS, tokens=TOKENS)
    def publish(self, block, digest, tokens):
        self.both("publish", block, digest, tokens)

    @precondition(lambda self: self.model.holders)
    @rule(data=st.data(), digest=DIGESTS, tokens=TOKENS)
    def publish_held(self, data, digest, tokens):
        self.both("publish", data.draw(st.sampled_from(self.model.holders)), digest, tokens)

    @precondition(lambda self: self.model.holders)
    @rule(data=st.data(), digest=DIGESTS, tokens=TOKENS)
    def cache(self, data, digest, tokens):
        """A held block is published and given back: it is free, and can be found unless another is found there."""
        block = data.draw(st.sampled_from(self.model.holders))
        self.both("publish", block, digest, tokens)
        while block in self.model.holders:
            self.both("free", [block])

    @rule(block=st.integers(0, 5))
    def forget(self, block):
        self.both("forget", block)

    @rule(digest=DIGESTS, tokens=TOKENS)
    def lookup_block(self, digest, tokens):
        before = snapshot(self.real)
        assert self.real.lookup_block(digest, tokens) == self.model.lookup_block(digest, tokens)
        assert snapshot(self.real) == before, "lookup_block() changed something"

    def check(self):
        real, model = self.real, self.model
        real.check_invariants()
        stats = real.stats()
        assert stats.total == stats.used + stats.free
        assert (
            stats.total, stats.free, stats.used, stats.cached, stats.hits, stats.evictions,
        ) == model.stats()  # fmt: skip
        assert (real.num_free, real.num_used, real.num_cached) == (stats.free, stats.used, stats.cached)
        for block in range(model.num_blocks):
            assert real.ref_count(block) == model.refs(block)
            assert real.is_published(block) == model.is_published(block)
        for digest in (b"p", b"q", b"r", b"s"):
            for tokens in (b"1", b"2"):
                assert real.lookup_block(digest, tokens) == model.lookup_block(digest, tokens)

    def teardown(self):
        """Free every block, then drain the pool: the order in which blocks are given, and evicted, is the model's."""
        if hasattr(self, "real"):
            while self.model.holders:
                self.both("free", sorted(set(self.model.holders)))
            SEEN["hits"] += self.model.hits
            while self.model.num_free:
                assert self.real.allocate(1) == self.model.allocate(1)
            self.check()
            SEEN["evictions"] += self.model.evictions


def test_the_pool_does_what_the_naive_one_does():
    SEEN.clear()
    run_state_machine_as_test(PoolMachine, settings=profile(examples=80))
    assert SEEN["steps"] > 2000, SEEN
    rare = {
        what: SEEN[what] for what in ("hits", "evictions", "refused", "share", "publish", "forget", "touch")
    }
    assert min(rare.values()) > 5, rare
