"""Long random walks: as in ``test_manager_machine``, but with the odds of an engine, so that the states get deep."""

import random
from collections import Counter

import pytest

from tests.blocks.profiles import FACTOR, LONG
from tests.blocks.world import World
from tests.longer import usual_if

STEPS, SEEDS = 300, 6

# groups, block size, host blocks. The first four: one table, a window across blocks, two tables that grow alike,
# windows without a full table. The others differ from them in sizes, and `make test-all` walks them.
SHAPES = {
    "full": ([(9, None)], 2, 5),
    "full and window of a block and one": ([(8, None), (6, 4)], 3, 4),
    "two windows": ([(6, 3), (7, 5)], 2, 4),
    "two full and a window": ([(8, None), (6, 3), (7, None)], 2, 4),
    "blocks of one": ([(9, None)], 1, 4),
    "blocks of four": ([(6, None)], 4, 4),
    "full and window of 1": ([(8, None), (5, 1)], 2, 4),
    "full and window of 3": ([(8, None), (6, 3)], 2, 4),
    "full and window of a block": ([(7, None), (5, 4)], 4, 4),
    "full and two windows": ([(8, None), (6, 2), (7, 7)], 2, 4),
    "window larger than the pool": ([(8, 100), (8, None)], 2, 4),
    "two full": ([(9, None), (7, None)], 2, 4),
    "two full, blocks of four": ([(7, None), (8, None)], 4, 4),
}


class Walk:
    def __init__(self, shape, seed):
        self.rng = random.Random(seed)
        self.world = World(*shape)
        self.size = shape[1]
        self.names = [f"s{i}" for i in range(5)]
        self.done = Counter()

    def text(self, most):
        return [self.rng.randrange(2) for _ in range(self.rng.randint(1, most))]

    def begin(self):
        rng, running = self.rng, self.world.model.running
        salt = rng.choice(["", "", "", "x"])
        shared = [0, 1] * self.size
        if running and rng.random() < 0.6:  # a prompt that begins as that of another sequence
            other = running[rng.choice(self.world.model.rows)]
            shared, salt = other.tokens[: rng.randint(1, 3 * self.size)], other.salt
        return self.world.allocate(rng.choice(self.names), shared + self.text(self.size + 1), salt)

    def step(self):
        rng, world = self.rng, self.world
        running = world.model.rows
        if not running:
            return self.begin()
        name = rng.choice(running)
        length = len(world.model.running[name].tokens)
        what = rng.choices(
            "begin decode commit part append extend fork truncate draft compact free out in ghost".split(),
            [8, 12, 5, 3, 4, 3, 4, 2, 5, 2, 5, 2, 3, 1],
        )[0]
        self.done[what] += 1
        if what == "begin":
            self.done["begun"] += self.begin()
        elif what == "decode":
            for name in list(running):  # one step of the whole batch
                world.append(name, rng.randrange(2))
                world.commit(name)
        elif what == "commit":
            world.commit(name)
        elif what == "part":
            world.commit(name, length - rng.randint(-1, 3))
        elif what == "append":
            world.append(name, rng.randrange(2))
        elif what == "append_tokens":
            world.append_tokens(name, self.text(2 * self.size))
        elif what == "fork":
            world.fork(name, rng.choice(self.names))
        elif what == "truncate":
            world.truncate(name, length - rng.randint(-1, 2 * self.size))
        elif what == "draft":
            world.append_tokens(name, self.text(4))
            world.forward(name)
            world.truncate(name, length - rng.randint(-2, 2))
        elif what == "compact":
            world.commit(name)
            group = rng.randrange(len(world.kv_cache_groups))
            keep = world.model.running[name].length(group) - rng.randint(0, 3)
            world.compact(name, keep, group, rng)
        elif what == "free":
            world.free(name)
        elif what == "out":
            world.swap_out(name, broken=rng.random() < 0.3)
        elif what == "in":
            world.swap_in(rng.choice(self.names), broken=rng.random() < 0.3)
        else:
            world.free(rng.choice(self.names))
        return None


@pytest.mark.parametrize("shape", usual_if(list(SHAPES)[:4].__contains__, SHAPES))
def test_a_long_walk(shape):
    seen = Counter()
    for seed in range(SEEDS * FACTOR):
        walk = Walk(SHAPES[shape], random.randrange(2**32) if LONG else seed)
        for _ in range(STEPS):
            walk.step()
            walk.world.check()
        seen += walk.done
        seen["hits"] += sum(pool.hits for pool in walk.world.model.pools)
        seen["evictions"] += sum(pool.evictions for pool in walk.world.model.pools)
    # A walk that never shares or evicts anything would pass whatever the manager did.
    assert min(seen[what] for what in ("begun", "hits", "evictions", "out", "compact", "fork")) >= 15, seen
