"""Thousands of random operations on a BlockManager, a naive model and a storage, compared after every one.

Pools are tiny, texts have two words, so prefixes collide, blocks are evicted and pools are exhausted all the time.
The long profile: ``MINIKV_LONG=1 pytest tests/blocks`` (see ``tests/blocks/profiles.py``).
"""

import random
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.blocks.profiles import profile
from tests.blocks.world import World, refused
from tests.longer import usual_if

NAMES = ["a", "b", "c", "d", "e"]
WORDS = st.integers(0, 1)
PICK = st.integers(0, 4)

# What the last machine has done, so that a test can tell whether it was worth anything
SEEN: Counter = Counter()


def texts(most):
    return st.lists(WORDS, min_size=1, max_size=most)


class ManagerMachine(RuleBasedStateMachine):
    """Subclasses say which KV cache groups there are: ``groups``, a strategy for [(num_blocks, window), ...]."""

    groups = st.tuples(st.tuples(st.integers(3, 7), st.none()))

    @initialize(data=st.data(), block_size=st.sampled_from([1, 2, 2, 3, 4]), host=st.sampled_from([0, 3, 6]))
    def begin(self, data, block_size, host):
        self.size = block_size
        groups = data.draw(self.groups)
        windows = {"size": block_size, "size+1": block_size + 1, "huge": 1000}
        groups = [(blocks, windows.get(window, window)) for blocks, window in groups]
        self.world = World(groups, block_size, host)

    def running(self, pick):
        rows = self.world.model.rows
        return rows[pick % len(rows)]

    def teardown(self):
        if hasattr(self, "world"):
            SEEN["hits"] += sum(pool.hits for pool in self.world.model.pools)
            SEEN["evictions"] += sum(pool.evictions for pool in self.world.model.pools)

    def done(self, what):
        SEEN["steps"] += 1
        SEEN[what] += 1
        self.world.check()

    def has_running(self):
        return bool(self.world.model.rows)

    def has_swapped(self):
        return bool(self.world.model.swapped)

    @rule(name=st.sampled_from(NAMES), data=st.data(), salt=st.sampled_from(["", "", "", "x"]))
    def allocate(self, name, data, salt):
        tokens = data.draw(texts(3 * self.size + 2))
        SEEN["begun"] += self.world.allocate(name, tokens, salt)
        self.done("allocate")

    @precondition(has_running)
    @rule(pick=PICK, commit=st.booleans(), cut=st.integers(0, 3), more=st.lists(WORDS, max_size=3))
    def allocate_alike(self, pick, commit, cut, more):
        """A prompt that begins as that of another sequence."""
        world, other = self.world, self.running(pick)
        if commit:
            world.commit(other)
        tokens, salt = world.model.running[other].tokens, world.model.running[other].salt
        name = next((name for name in NAMES if name not in world.expected), NAMES[0])
        SEEN["begun"] += world.allocate(name, tokens[: max(0, len(tokens) - cut)] + more, salt)
        self.done("allocate_alike")

    @precondition(has_running)
    @rule(pick=PICK, child=st.sampled_from(NAMES))
    def fork(self, pick, child):
        self.world.fork(self.running(pick), child)
        self.done("fork")

    @precondition(has_running)
    @rule(pick=PICK, token=WORDS)
    def append(self, pick, token):
        self.world.append(self.running(pick), token)
        self.done("append")

    @precondition(has_running)
    @rule(pick=PICK, data=st.data())
    def append_tokens(self, pick, data):
        self.world.append_tokens(self.running(pick), data.draw(st.lists(WORDS, max_size=2 * self.size + 1)))
        self.done("append_tokens")

    @precondition(has_running)
    @rule(pick=PICK, token=WORDS, count=st.integers(1, 4))
    def decode(self, pick, token, count):
        """A few steps as an engine makes them: append, forward, commit."""
        for _ in range(count):
            name = self.running(pick)
            self.world.append(name, token)
            self.world.commit(name)
        self.done("decode")

    @precondition(has_running)
    @rule(pick=PICK)
    def commit(self, pick):
        self.world.commit(self.running(pick))
        self.done("commit")

    @precondition(has_running)
    @rule(pick=PICK, back=st.integers(-1, 4))
    def commit_part(self, pick, back):
        name = self.running(pick)
        self.world.commit(name, len(self.world.model.running[name].tokens) - back)
        self.done("commit_part")

    @precondition(has_running)
    @rule(pick=PICK)
    def forward(self, pick):
        self.world.forward(self.running(pick))
        self.done("forward")

    @precondition(has_running)
    @rule(pick=PICK, back=st.integers(-1, 6))
    def truncate(self, pick, back):
        name = self.running(pick)
        self.world.truncate(name, len(self.world.model.running[name].tokens) - back)
        self.done("truncate")

    @precondition(has_running)
    @rule(pick=PICK, back=st.integers(1, 4), draft=st.lists(WORDS, min_size=1, max_size=4))
    def speculate(self, pick, back, draft):
        """Drafts are written, some are refused, another token takes their place."""
        name = self.running(pick)
        self.world.append_tokens(name, draft)
        self.world.forward(name)
        self.world.truncate(name, len(self.world.model.running[name].tokens) - back)
        self.world.append(name, 1)
        self.done("speculate")

    @precondition(has_running)
    @rule(pick=PICK, group=st.integers(0, 2), drop=st.integers(0, 5), seed=st.integers(0, 99))
    def compact(self, pick, group, drop, seed):
        name, group = self.running(pick), group % len(self.world.kv_cache_groups)
        self.world.commit(name)  # eviction chooses among tokens that are there
        keep = self.world.model.running[name].length(group) - drop
        self.world.compact(name, keep, group, random.Random(seed))
        self.done("compact")

    @precondition(has_running)
    @rule(pick=PICK)
    def free(self, pick):
        self.world.free(self.running(pick))
        self.done("free")

    @precondition(has_running)
    @rule(pick=PICK, broken=st.booleans())
    def swap_out(self, pick, broken):
        self.world.swap_out(self.running(pick), broken, self.leave_me_alone)
        self.done("swap_out")

    @precondition(has_swapped)
    @rule(pick=PICK, broken=st.sampled_from([False, False, True]))
    def swap_in(self, pick, broken):
        swapped = sorted(self.world.model.swapped)
        self.world.swap_in(swapped[pick % len(swapped)], broken, self.leave_me_alone)
        self.done("swap_in")

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def whatever_name(self, name, data):
        """Sequences that run, that are swapped out, and that never were."""
        world = self.world
        if not world.model.rows:  # hypothesis may have chosen to do without the other rules that begin one
            SEEN["begun"] += world.allocate(name, data.draw(texts(2 * self.size + 1)), "")
            return self.done("allocate")
        what = data.draw(st.sampled_from(["append", "commit", "truncate", "fork", "free", "in", "out"]))
        if what == "append":
            world.append(name, 0)
        elif what == "commit":
            world.commit(name)
        elif what == "truncate":
            world.truncate(name, data.draw(st.integers(0, 9)))
        elif what == "fork":
            world.fork(name, data.draw(st.sampled_from(NAMES)))
        elif what == "free":
            world.free(name)
        elif what == "in":
            world.swap_in(name)
        else:
            world.swap_out(name)
        return self.done("whatever_name")

    def leave_me_alone(self, name):
        """Nobody may do anything to a sequence in transit."""
        real = self.world.real
        for call in (
            lambda: real.append(name, 0),
            lambda: real.allocate(name, [1]),
            lambda: real.commit(name),
            lambda: real.truncate(name, 1),
            lambda: real.fork(name, "z"),
            lambda: real.compact(name, 1),
            lambda: real.free(name),
            lambda: real.swapping_out(name).__enter__(),
            lambda: real.swapping_in(name).__enter__(),
        ):
            refused(real, call)


class WithWindows(ManagerMachine):
    """A group without a window beside one or two with: a few tokens, a block, a block and one, more than the pool."""

    window = st.sampled_from([1, 2, 3, "size", "size+1", 7, "huge"])
    groups = st.tuples(
        st.tuples(st.integers(4, 7), st.none()), st.tuples(st.integers(3, 7), window)
    ) | st.tuples(
        st.tuples(st.integers(3, 7), window),
        st.tuples(st.integers(4, 7), st.none()),
        st.tuples(st.integers(3, 7), window),
    )


class OnlyWindows(ManagerMachine):
    groups = st.lists(st.tuples(st.integers(3, 7), WithWindows.window), min_size=1, max_size=2).map(tuple)


class TwoFull(ManagerMachine):
    """Two groups that differ in width, and so in their number of blocks; sometimes a window beside them."""

    full = st.tuples(st.integers(3, 8), st.none())
    groups = st.tuples(full, full) | st.tuples(full, st.tuples(st.integers(3, 7), WithWindows.window), full)


MACHINES = [ManagerMachine, WithWindows, OnlyWindows, TwoFull]


@pytest.mark.parametrize("machine", usual_if([WithWindows, TwoFull].__contains__, MACHINES))
def test_the_manager_does_what_the_naive_one_does(machine):
    SEEN.clear()
    run_state_machine_as_test(machine, settings=profile(examples=60))
    assert SEEN["steps"] > 2000, SEEN
    # A random test that never shares or evicts anything would pass whatever the manager did.
    rare = {what: SEEN[what] for what in ("begun", "hits", "evictions", "swap_in", "compact", "truncate")}
    assert min(rare.values()) > 0, rare
