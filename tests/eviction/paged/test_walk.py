"""PagedEviction, BlockManager, PagedKVCache and HostPool together, against sequences that keep every token.

150 things drawn at random: prompts that share prefixes, decodes, forks, evictions, swaps, ends. After each, every token
that a sequence still holds must read back to the bit as what its true position had, in every layer and head. Which ones
these are is computed here in plain Python; and attention over the blocks is that over a dense cache with the others
masked.
"""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.cache import HostPool
from minikv.errors import OutOfBlocksError
from minikv.eviction.paged.eviction import PagedEviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import Random
from minikv.kernels import latent_decode, paged_decode
from tests.cache.paged_cases import cache_for, storing
from tests.longer import usual_if

NUM_BLOCKS = {1: 70, 3: 40, 4: 30, 16: 12}
STEPS, MOST = 150, 400  # things that happen; positions that a sequence may reach
BUDGETS = {1: Budget(2, 5, 3), 3: Budget(1, 9, 4, evict_every=3), 4: Budget(4, 8, 6), 16: Budget(4, 8, 6)}


class Dense:
    """One sequence with a cache of its own: every K and V that it ever had, and which of them it still holds."""

    def __init__(self, layers: list[int]):
        self.tokens: list[int] = []
        self.seeds: list[int] = []
        self.held: dict[int, list[set[int]]] = {}
        self.rows: dict[tuple[int, int], torch.Tensor] = {}  # of a layer, K (0) or V (1), as they read back
        self.layers = layers

    def copy(self) -> "Dense":
        twin = Dense(self.layers)
        twin.tokens, twin.seeds = self.tokens[:], self.seeds[:]
        twin.rows = dict(self.rows)
        twin.held = {layer: [set(head) for head in heads] for layer, heads in self.held.items()}
        return twin


class World:
    def __init__(self, layers: str, codec: str, block_size: int, scope: str, unit: str, seed: int):
        self.draw, self.policy = random.Random(seed), Random(seed)
        self.cache = cache_for(layers, codec, num_blocks=NUM_BLOCKS[block_size], block_size=block_size)
        windows = [group.layer.window for group in self.cache.kv_cache_groups]
        pools = [KVCacheGroup(*pool) for pool in zip(self.cache.num_blocks, windows, strict=True)]
        host = NUM_BLOCKS[block_size]
        self.manager = BlockManager(pools, block_size, host_blocks=HostBlocks(host, block_size, len(pools)))
        self.host = HostPool(self.cache, host)
        budget = BUDGETS[block_size]
        self.eviction = PagedEviction(
            self.cache, self.manager, self.policy, budget=budget, scope=scope, unit=unit
        )
        self.budget, self.scope, self.unit = budget, scope, unit
        self.full = [
            layer for layer in storing(self.cache) if windows[self.cache.kv_cache_group_of(layer)] is None
        ]
        self.running: dict[int, Dense] = {}
        self.swapped: dict[int, tuple] = {}
        self.names = iter(range(10**6))
        self.done = dict.fromkeys("hit fork copied evicted swapped full".split(), 0)

    def step(self) -> None:
        things = [self.begin]
        if self.running:
            things += [self.end] * (3 if len(self.running) > 6 else 0)
            things += [self.grow] * 5 + [self.evict] * 4 + [self.fork, self.swap_out, self.end, self.begin]
        if self.swapped:
            things += [self.swap_in] * 2
        try:
            self.draw.choice(things)()
        except OutOfBlocksError:
            self.done["full"] += 1
            self.check()
            self.end()

    def begin(self) -> None:
        name, text = next(self.names), self.draw.choice((3, 5))
        prompt = [text] * self.draw.randrange(40) + [self.draw.randrange(8) for _ in range(3)]
        cached = self.manager.allocate(name, prompt).num_cached
        self.eviction.add(name)
        self.running[name] = Dense(self.full)
        self.done["hit"] += cached > 0
        self.write(name, prompt, cached)

    def grow(self) -> None:
        name = self.any_running()
        tokens = [self.draw.randrange(8) for _ in range(self.draw.choice((1, 1, 1, 2, 7)))]
        if len(self.running[name].tokens) + len(tokens) > MOST:
            return
        for copy in self.manager.append_tokens(name, tokens):
            self.cache.copy_blocks(copy.kv_cache_group, [copy.src], [copy.dst])
        self.write(name, tokens, len(self.running[name].tokens))

    def write(self, name: int, tokens: list[int], start: int) -> None:
        """A forward of all tokens from position ``start`` on, which are the last ones of ``tokens``."""
        dense = self.running[name]
        for token in tokens:
            dense.seeds.append(hash((dense.seeds[-1] if dense.seeds else 0, token)) % 2**63)
            dense.tokens.append(token)
        for layer in storing(self.cache):
            group, total = self.cache.kv_cache_group_of(layer), len(dense.tokens)
            k, v = (self.content(dense, layer, side, start) for side in (0, 1))
            self.cache.write(layer, k, v, self.manager.slot_mapping(name, start, total, group))
        for layer in self.full:
            heads = self.cache.spec.layers[layer].kv_heads
            held = dense.held.setdefault(layer, [set() for _ in range(heads)])
            for head in held:
                head |= set(range(len(dense.tokens) - len(tokens), len(dense.tokens)))
        self.manager.commit(name)

    def content(self, dense: Dense, layer: int, side: int, start: int) -> torch.Tensor:
        """K (side 0) or V from position ``start`` on, [n, heads, dim] float32; each from the tokens up to it."""
        spec, codec = self.cache.spec.layers[layer], self.cache.codec
        shape = (spec.kv_heads, (spec.k_dim, spec.v_dim)[side])
        factors = np.random.default_rng([layer, side]).integers(2**63, size=shape, dtype=np.uint64)
        known = dense.rows.get((layer, side), torch.zeros(0, *shape))
        seeds = np.array(dense.seeds[min(start, len(known)) :], np.uint64)
        mixed = seeds[:, None, None] * (2 * factors + 1)  # wraps, as a hash does
        new = torch.from_numpy(mixed / 2.0**64).float() - 0.5
        missing = new[len(new) - (len(dense.seeds) - len(known)) :]
        dense.rows[layer, side] = torch.cat([known, codec.decode(*codec.encode(missing), torch.float32)])
        return new[len(new) - (len(dense.seeds) - start) :]

    def evict(self) -> None:
        """Some of those that are due, or anybody."""
        names = self.draw.sample([*self.running], self.draw.randrange(1, 1 + min(4, len(self.running))))
        if self.draw.random() < 0.7:
            names = self.eviction.due(names)
        shared = any(
            self.manager.pools[0].ref_count(block) > 1
            for name in names
            for block in self.manager.block_table(name, self.cache.kv_cache_group_of(self.full[0]))
        )
        before = {name: len(next(iter(self.running[name].held.values()))[0]) for name in names}
        todo = [name for name in names if before[name] > self.budget.capacity]
        try:
            evicted = self.eviction.evict(names)
        except OutOfBlocksError:
            for name in todo:  # those before it are done, and done completely
                if self.manager.length(name, self.cache.kv_cache_group_of(self.full[0])) < before[name]:
                    self.forget(name)
            raise
        for name in todo:
            self.forget(name)
        after = sum(len(next(iter(self.running[name].held.values()))[0]) for name in names)
        assert evicted == sum(before.values()) - after
        self.done["evicted"] += evicted
        self.done["copied"] += shared and bool(todo)

    def forget(self, name: int) -> None:
        """Which tokens go, in plain Python; of whole blocks, whether those that the eviction chose may go."""
        dense = self.running[name]
        for layer, heads in dense.held.items():
            newest, budget = len(dense.tokens) - 1, self.budget
            if self.unit == "block":
                found = self.eviction.positions(name, layer)
                kept = set(found[0].tolist())
                assert kept < heads[0]
                assert len(kept) <= budget.capacity
                must = {at for at in heads[0] if at < budget.n_sink or at > newest - budget.n_recent}
                assert must <= kept
                dense.held[layer] = [set(kept) for _ in heads]
                continue
            score = self.scores(layer, len(heads))
            if self.scope == "layer":
                score = score.mean(0, keepdim=True).expand(len(heads), -1)
            for number, head in enumerate(heads):
                must = {at for at in head if at < budget.n_sink or at > newest - budget.n_recent}
                others = sorted(head - must, key=lambda at, of=score[number]: (-float(of[at]), at))
                heads[number] = must | set(others[: budget.capacity - len(must)])

    def scores(self, layer: int, heads: int) -> torch.Tensor:
        """[heads, MOST]: what the policy gives to each position."""
        view = SimpleNamespace(
            keys=torch.zeros(1, heads, MOST, 1),
            positions=torch.arange(MOST).expand(1, heads, MOST),
            layer=layer,
        )
        return self.policy.score(view)[0]

    def fork(self) -> None:
        parent, child = self.any_running(), next(self.names)
        self.manager.fork(parent, child)
        self.eviction.fork(parent, child)
        self.running[child] = self.running[parent].copy()
        self.done["fork"] += 1

    def swap_out(self) -> None:
        name = self.any_running()
        with self.manager.swapping_out(name) as swap:
            self.host.swap_out(swap.pairs).synchronize()
        self.swapped[name] = (self.running.pop(name), self.eviction.swap_out(name))
        self.done["swapped"] += 1

    def swap_in(self) -> None:
        name = self.draw.choice([*self.swapped])
        with self.manager.swapping_in(name) as swap:
            self.host.swap_in(swap.pairs).wait()
        self.running[name], saved = self.swapped.pop(name)
        self.eviction.swap_in(name, saved)

    def end(self) -> None:
        name = self.draw.choice([*self.running, *self.swapped])
        self.manager.free(name)
        if self.running.pop(name, None):
            self.eviction.remove(name)
        self.swapped.pop(name, None)

    def any_running(self) -> int:
        return self.draw.choice([*self.running])

    def check(self, everybody: bool = True) -> None:
        """What is wrong stays wrong: one sequence after each step, and all of them after some."""
        self.manager.check_invariants()
        some = [*self.running] if everybody else [self.any_running()] if self.running else []
        for name, dense in ((name, self.running[name]) for name in some):
            for layer in self.full:
                self.reads_back(name, dense, layer)
        if self.running and self.draw.random() < 0.3:
            self.attends(self.any_running(), self.draw.choice(self.full))

    def reads_back(self, name: int, dense: Dense, layer: int) -> None:
        group = self.cache.kv_cache_group_of(layer)
        length = self.manager.length(name, group)
        positions = self.eviction.positions(name, layer)
        assert [set(head) for head in positions.tolist()] == dense.held[layer]
        assert positions.shape[1] == length == len(dense.held[layer][0])
        read = self.cache.gather(layer, self.manager.block_table(name, group), length, dtype=torch.float32)
        for side, have in enumerate(read):  # [length, heads, dim]
            want = dense.rows[layer, side]
            for head, where in enumerate(positions):
                assert torch.equal(have[:, head], want[where, head]), (name, layer, head)

    def attends(self, name: int, layer: int) -> None:
        """Attention over the blocks, and over all that the sequence ever had with what is gone masked."""
        views, dense = self.cache.layer(layer), self.running[name]
        k, v = (dense.rows[layer, side].double() for side in (0, 1))
        latent = self.cache.spec.layers[layer].kind == "latent" and k.shape[1] == 1
        heads, group = k.shape[1], 3
        keys = torch.cat([k, v], -1) if latent else k
        query = torch.randn(1, heads * group, keys.shape[-1], generator=torch.Generator().manual_seed(name))
        table = torch.tensor([self.manager.block_table(name, views.kv_cache_group)])
        kv = views.paged(table, torch.tensor([self.manager.length(name, views.kv_cache_group)]))
        if latent:
            parts = query.split([k.shape[-1], v.shape[-1]], -1)
            got = latent_decode(*(part.contiguous() for part in parts), kv, scale=0.7)
        else:
            got = paged_decode(query, kv, scale=0.7)
        for row in range(heads * group):
            head = row // group
            logits = keys[:, head] @ query[0, row].double() * 0.7
            gone = torch.ones(len(logits), dtype=torch.bool)
            gone[list(dense.held[layer][head])] = False
            weights = logits.masked_fill(gone, -torch.inf).softmax(0)
            want = weights @ (k if latent else v)[:, head]
            torch.testing.assert_close(got.out[0, row].double(), want, rtol=0, atol=1e-5)


CASES = [
    ("gqa", "fp32", 4, "head", "token"),
    ("gqa", "int8", 3, "head", "token"),
    ("gqa", "fp8_scaled", 16, "layer", "token"),
    ("gqa", "fp32", 1, "layer", "token"),
    ("mla", "fp32", 4, "layer", "token"),
    ("mla", "bf16", 16, "layer", "token"),
    ("mixed", "fp32", 4, "head", "token"),
    ("one group, three shapes", "fp16", 3, "layer", "token"),
    ("gqa", "fp32", 4, "layer", "block"),
    ("mla", "fp32", 3, "layer", "block"),
    ("mixed", "bf16", 1, "layer", "block"),
]


# Each group of layers, a scaled and a plain codec, each scope and unit, and each block size but 1 with "token".
USUAL = [CASES[place] for place in (1, 5, 6, 7, 8, 10)]


@pytest.mark.parametrize(
    ("layers", "codec", "block_size", "scope", "unit"), usual_if(USUAL.__contains__, CASES)
)
def test_what_is_held_reads_back_and_the_rest_is_masked(layers, codec, block_size, scope, unit):
    world = World(
        layers, codec, block_size, scope, unit, seed=CASES.index((layers, codec, block_size, scope, unit))
    )
    for number in range(STEPS):
        world.step()
        world.check(everybody=number % 5 == 4)
    never = {thing for thing, times in world.done.items() if not times}
    assert not never, "the walk left something out"
    for name in [*world.running]:
        world.manager.free(name)
    for name in [*world.swapped]:
        world.manager.free(name)
    assert all(pool.num_used == 0 for pool in world.manager.pools)
