"""BlockManager, PagedKVCache, HostPool and the disk tier together, against sequences that keep K and V for themselves.

The manager says where a token goes, what to copy, what to swap; the cache does it with real tensors. After every
step each sequence must read back, to the bit, what a cache of its own would hold: whatever was shared, copied,
evicted, swapped, saved, or tried and refused. Blocks that nobody may read are NaN all the time.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from minikv.blocks import NULL_BLOCK, BlockManager, HostBlocks, KVCacheGroup
from minikv.cache import HostPool, load_blocks, save_blocks
from minikv.errors import MiniKVError, OutOfBlocksError
from tests.cache.paged_cases import cache_for, storing
from tests.longer import usual_if

BLOCK_SIZE = 4
HOST_BLOCKS = 14
# groups in the cache's order: the full layers first, then the wider window
NUM_BLOCKS = {"mixed": [26, 16, 14], "mla": 26, "one group, three shapes": 26}
STEPS = 180


class Interrupted(Exception):
    """A transfer that fails."""


@dataclass
class Dense:
    """One sequence with a cache of its own: K and V [length, kv_heads, dim] of each layer that stores any."""

    salt: str
    tokens: list[int]
    rows: dict[int, list[torch.Tensor]]
    floor: int = 0  # the position of the last eviction; no draft before it can be taken back
    committed: int = 0

    def copy(self) -> "Dense":
        rows = {layer: list(pair) for layer, pair in self.rows.items()}
        return Dense(self.salt, list(self.tokens), rows, self.floor, self.committed)


class Together:
    def __init__(self, layers: str, codec: str, seed: int, folder):
        self.random, self.folder = random.Random(seed), folder
        self.cache = cache_for(layers, codec, num_blocks=NUM_BLOCKS[layers], block_size=BLOCK_SIZE)
        self.windows = [group.layer.window for group in self.cache.kv_cache_groups]
        pools = [KVCacheGroup(*pool) for pool in zip(self.cache.num_blocks, self.windows, strict=True)]
        self.manager = BlockManager(
            pools, BLOCK_SIZE, host_blocks=HostBlocks(HOST_BLOCKS, BLOCK_SIZE, len(pools))
        )
        self.pool = HostPool(self.cache, HOST_BLOCKS)
        self.running: dict[int, Dense] = {}
        self.swapped: dict[int, tuple[Dense, list[list[int]]]] = {}  # with the host blocks of each group
        self.texts: list[tuple[str, list[int]]] = []  # all that was ever committed
        self.names = iter(range(10**6))
        self.done = dict.fromkeys("hit copy window full refused moved broken saved back".split(), 0)
        self.poison()

    def step(self) -> None:
        """One thing, drawn at random. A refusal must have changed nothing, which ``check`` sees."""
        things = [self.begin]
        if self.running:
            things += [self.begin, self.draft, self.fork, self.evict, self.swap_out, self.end]
            things += [self.grow] * 5
        if self.swapped:
            things += [self.swap_in] * 3 + [self.save_and_load]
        try:
            self.random.choice(things)()
        except OutOfBlocksError:
            self.done["full"] += 1
            self.check()
            self.end()
        except MiniKVError:
            self.done["refused"] += 1
        except Interrupted:
            self.done["broken"] += 1
        self.poison()

    def begin(self) -> None:
        """A prompt that often begins like another one, in one chunk or two; cached tokens are not written."""
        seq = next(self.names)
        text = self.random.choice((3, 5))
        prompt = [text] * self.random.randrange(18) + self.tokens(self.random.randrange(1, 4))
        salt = self.random.choice(("", "", "tenant"))
        found = self.manager.match(prompt, salt).num_tokens
        chunk = prompt[: self.random.randrange(found + 1, len(prompt) + 1)]
        cached = self.manager.allocate(seq, chunk, salt).num_cached
        assert cached == found
        self.running[seq] = self.dense(salt, chunk)
        self.done["hit"] += cached > 0
        self.running[seq].committed = cached
        self.write(seq, cached)
        self.commit(seq)
        self.append_tokens(seq, prompt[len(chunk) :])
        self.commit(seq)

    def grow(self) -> None:
        """One token or several, and mostly the commit of all that is written."""
        seq = self.any_running()
        self.append_tokens(seq, self.tokens(self.random.choice((1, 1, 2, 7))))
        if self.random.random() < 0.8:
            self.commit(seq)

    def draft(self) -> None:
        """Drafts are written, some are taken back; the same positions get other tokens later."""
        seq = self.any_running()
        dense = self.running[seq]
        if self.random.random() < 0.7:
            self.append_tokens(seq, self.tokens(self.random.randrange(1, 6)))
        end = self.random.randrange(max(1, len(dense.tokens) - 6), len(dense.tokens) + 1)
        self.manager.truncate(seq, end)
        for rows in dense.rows.values():
            for side, kept in enumerate(rows):
                rows[side] = kept[: len(kept) - (len(dense.tokens) - end)]
        del dense.tokens[end:]
        dense.committed = min(dense.committed, end)

    def fork(self) -> None:
        parent, child = self.any_running(), next(self.names)
        self.manager.fork(parent, child)
        self.running[child] = self.running[parent].copy()

    def evict(self) -> None:
        """Other tokens in every layer and head, the same number in all: moved to the front, head by head."""
        seq, group = self.any_running(), self.random.randrange(len(self.windows))
        dense, length = self.running[seq], self.manager.length(seq, group)
        keep = self.random.randrange(max(1, length - 5), length + 1)
        plan = self.manager.compact(seq, keep, group)
        self.copy(plan.copies)
        if keep == length:
            return
        self.done["moved"] += 1
        to = slots_of(plan.new_table, np.arange(keep))
        for layer, rows in dense.rows.items():
            if self.cache.kv_cache_group_of(layer) != group:
                continue
            heads = self.cache.spec.layers[layer].kv_heads
            kept = np.array([sorted(self.random.sample(range(length), keep)) for _ in range(heads)])
            self.cache.move(layer, slots_of(plan.old_table, kept), np.tile(to, (heads, 1)))
            for side, old in enumerate(rows):
                rows[side] = torch.stack([old[kept[head], head] for head in range(heads)], 1)
        dense.floor = len(dense.tokens)

    def end(self) -> None:
        seq = self.random.choice([*self.running, *self.swapped])
        self.manager.free(seq)
        self.running.pop(seq, None)
        self.swapped.pop(seq, None)

    def swap_out(self) -> None:
        seq = self.any_running()
        with self.manager.swapping_out(seq) as swap:
            self.pool.swap_out(swap.pairs).synchronize()
            self.interrupt()
            host = [[there for _, there in pairs] for pairs in swap.pairs]
            self.swapped[seq] = (self.running.pop(seq), host)

    def swap_in(self) -> None:
        seq = self.random.choice([*self.swapped])
        with self.manager.swapping_in(seq) as swap:
            if self.random.random() < 0.3:  # no more than the first group arrives
                self.pool.swap_in([swap.pairs[0], *[()] * (len(swap.pairs) - 1)])
                self.interrupt(chance=1)
            self.pool.swap_in(swap.pairs).wait()
            self.interrupt()
            self.running[seq] = self.swapped.pop(seq)[0]
            self.done["back"] += 1

    def save_and_load(self) -> None:
        """A swapped sequence goes to the disk, its host blocks are overwritten, and it is loaded into them again."""
        seq = self.random.choice([*self.swapped])
        host = self.swapped[seq][1]
        save_blocks(self.folder / "blocks", self.pool, host, {"sequence": str(seq)})
        rows = self.pool.read(host)
        for row in (row for parts in rows for row in parts):
            row.fill_(torch.nan)
        self.pool.fill(host, rows)
        assert load_blocks(self.folder / "blocks", self.pool, host) == {"sequence": str(seq)}
        self.done["saved"] += 1

    # What the steps are made of.

    def any_running(self) -> int:
        return self.random.choice([*self.running])

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(8) for _ in range(count)]

    def append_tokens(self, seq: int, tokens: list[int]) -> None:
        dense, start = self.running[seq], len(self.running[seq].tokens)
        if len(tokens) == 1:
            self.copy(self.manager.append(seq, tokens[0]))
        else:
            self.copy(self.manager.append_tokens(seq, tokens))
        self.remember(dense, tokens)
        if tokens:
            self.write(seq, start)

    def dense(self, salt: str, tokens: list[int]) -> Dense:
        nothing = torch.empty(0, dtype=self.cache.codec.dtype)
        dense = Dense(salt, [], {layer: [nothing, nothing] for layer in storing(self.cache)})
        self.remember(dense, tokens)
        return dense

    def remember(self, dense: Dense, tokens: list[int]) -> None:
        """K and V of the next tokens. They follow from all that stands before, or a prefix could not be shared."""
        seeds = []
        for token in tokens:
            dense.tokens.append(token)
            seeds.append(random.Random(repr((dense.salt, dense.floor, dense.tokens))).getrandbits(64))
        for layer, rows in dense.rows.items():
            spec = self.cache.spec.layers[layer]
            for side, dim in enumerate((spec.k_dim, spec.v_dim)):
                shape = (spec.kv_heads, dim)
                factors = np.random.default_rng([layer, side]).integers(2**63, size=shape, dtype=np.uint64)
                mixed = np.array(seeds, np.uint64)[:, None, None] * (2 * factors + 1)  # wraps, as a hash does
                new = torch.from_numpy(mixed / 2.0**64).to(self.cache.codec.dtype)
                rows[side] = torch.cat([rows[side], new])

    def write(self, seq: int, start: int) -> None:
        """A forward: K and V of the tokens from position ``start`` on, layer by layer."""
        dense = self.running[seq]
        count = len(dense.tokens) - start
        for layer, (k, v) in dense.rows.items():
            group = self.cache.kv_cache_group_of(layer)
            slots = self.manager.slot_mapping(seq, start, start + count, group)
            if count == 1:
                assert slots.tolist() == self.manager.decode_slots([seq], group).tolist()
            self.cache.write(layer, k[-count:], v[-count:], slots)

    def commit(self, seq: int) -> None:
        self.manager.commit(seq)
        dense = self.running[seq]
        dense.committed = len(dense.tokens)
        self.texts.append((dense.salt, dense.tokens[:]))

    def copy(self, copies) -> None:
        for group in range(len(self.windows)):
            pairs = [(copy.src, copy.dst) for copy in copies if copy.kv_cache_group == group]
            if pairs:
                self.cache.copy_blocks(group, *map(list, zip(*pairs, strict=True)))
                self.done["copy"] += 1

    def interrupt(self, chance: float = 0.25) -> None:
        if self.random.random() < chance:
            raise Interrupted

    def poison(self) -> None:
        """NaN into every block that nobody holds and nobody can find."""
        for group, pool in enumerate(self.manager.pools):
            empty = [b for b in range(pool.num_blocks) if not pool.ref_count(b) and not pool.is_published(b)]
            for part in self.cache.parts(group):
                part.tensor.index_fill_(part.shape.block_dim, torch.tensor(empty).long(), torch.nan)

    def check(self) -> None:
        """What runs reads back as it was written, and so does whatever a prompt would find."""
        self.manager.check_invariants()
        for seq, dense in self.running.items():
            groups = range(len(self.windows))
            lengths = [self.manager.length(seq, group) for group in groups]
            self.reads_back(dense, [self.manager.block_table(seq, group) for group in groups], lengths)
        for salt, tokens in self.random.sample(self.texts[-20:], min(2, len(self.texts))):
            found = self.manager.match([*tokens, 0], salt)
            dense = self.dense(salt, tokens[: found.num_tokens])
            dense.committed = found.num_tokens
            self.reads_back(dense, found.tables, [found.num_tokens] * len(self.windows))

    def reads_back(self, dense: Dense, tables, lengths: list[int]) -> None:
        """Every layer, from the first token on that its next query sees."""
        for layer, spec in enumerate(self.cache.spec.layers):
            source = layer if spec.reads_layer is None else spec.reads_layer
            if source not in dense.rows:
                continue
            group, window = self.cache.kv_cache_group_of(layer), self.cache.spec.layers[source].window
            start = 0 if window is None else max(0, dense.committed - window + 1)
            self.done["window"] += NULL_BLOCK in tables[group]
            read = self.cache.gather(layer, tables[group], lengths[group], start)
            for have, want in zip(read, dense.rows[source], strict=True):
                assert torch.equal(have, want[start:]), f"layer {layer} of {dense.tokens}"


def slots_of(table, places: np.ndarray) -> np.ndarray:
    """The slots of these places of a block table."""
    return np.array(table)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE


@pytest.mark.parametrize("seed", usual_if(lambda seed: seed == 0, range(3)))
@pytest.mark.parametrize(("layers", "codec"), [*zip(NUM_BLOCKS, ("fp32", "bf16", "fp16"), strict=True)])
def test_every_sequence_reads_back_what_a_cache_of_its_own_would_hold(layers, codec, seed, tmp_path):
    world = Together(layers, codec, seed, tmp_path)
    for _ in range(STEPS):
        world.step()
        world.check()
    never = {thing for thing, times in world.done.items() if not times}
    assert never <= ({"refused"} if any(world.windows) else {"refused", "window"}), (
        "the walk left something out"
    )
