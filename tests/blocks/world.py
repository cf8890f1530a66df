"""A real manager, the naive one and a storage, moved together: each method does one thing to all three.

``check()`` compares everything that can be seen. What counts most: whatever was shared, copied, evicted, compacted
or swapped, a sequence that reads through its block table finds K and V of exactly its own tokens.
"""

import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, HostBlocks, KVCacheGroup
from minikv.errors import MiniKVError
from tests.blocks.naive import NaiveManager
from tests.blocks.naive_pool import Refused
from tests.blocks.snapshot import snapshot
from tests.blocks.storage import Storage, Written


class Broken(Exception):
    """A transfer that fails."""


def refused(thing, call) -> MiniKVError:
    """``call`` raises an error that speaks both languages, and ``thing`` is as it was."""
    before = snapshot(thing)
    with pytest.raises(MiniKVError) as error:
        call()
    assert error.value.text("en") != error.value.text("zh")
    assert snapshot(thing) == before, f"{error.value!r} has changed something"
    return error.value


def refused_alike(expected: Refused, thing, call):
    """``call`` raises what the model said, with its numbers, and ``thing`` is as it was."""
    error = refused(thing, call)
    assert type(error) is expected.kind, f"{error!r}, not {expected}"
    assert {name: error.values.get(name) for name in expected.values} == expected.values


class World:
    """``groups``: one (num_blocks, window or None) for each KV cache group."""

    def __init__(self, groups, block_size, host_blocks=0):
        self.kv_cache_groups, self.block_size = groups, block_size
        pools = [KVCacheGroup(num_blocks, window) for num_blocks, window in groups]
        self.real = BlockManager(
            pools, block_size, host_blocks=HostBlocks(host_blocks, block_size, len(pools))
        )
        self.model = NaiveManager(groups, block_size, host_blocks)
        self.storage = Storage(len(groups), block_size)
        # What each place of each table should hold once it is committed: one list a group.
        self.expected: dict[object, list[list[Written]]] = {}
        self.evictions: dict[object, tuple] = {}

    # Each operation: the model first, then the manager, then what the manager tells the storage to do.

    def both(self, name, *args):
        """True and the two answers, or False if both refused in the same way."""
        try:
            expected = getattr(self.model, name)(*args)
        except Refused as error:
            refused_alike(error, self.real, lambda: getattr(self.real, name)(*args))
            return False, None, None
        return True, expected, getattr(self.real, name)(*args)

    def match(self, tokens, salt):
        before = snapshot(self.real)
        found = self.real.match(tokens, salt)
        assert snapshot(self.real) == before, "match() changed something"
        assert (found.num_tokens, found.tables) == self.model.match(tokens, salt)
        assert found.num_tokens % self.block_size == 0
        assert found.num_tokens <= max(0, len(tokens) - 1)

    def allocate(self, seq, tokens, salt):
        self.match(tokens, salt)
        done, expected, found = self.both("allocate", seq, tokens, salt)
        if done:
            assert (found.num_tokens, found.num_cached) == expected
            self.expected[seq] = [[] for _ in self.kv_cache_groups]
            self.evictions[seq] = ()
            self._expect(seq, salt, 0)
        return done

    def fork(self, parent, child):
        done, _, _ = self.both("fork", parent, child)
        if done:
            self.expected[child] = [list(contents) for contents in self.expected[parent]]
            self.evictions[child] = self.evictions[parent]

    def append(self, seq, token):
        self._grow("append", seq, token, 1)

    def append_tokens(self, seq, tokens):
        self._grow("append_tokens", seq, tokens, len(tokens))

    def _grow(self, name, seq, what, count):
        done, expected, copies = self.both(name, seq, what)
        if done:
            assert copies == expected
            self.storage.copy(copies)
            state = self.model.running[seq]
            self._expect(seq, state.salt, len(state.tokens) - count)

    def forward(self, seq):
        """Write K and V of every token that is not committed, as a forward does before its drafts are judged."""
        state = self.model.running[seq]
        for group in range(len(self.kv_cache_groups)):
            evicted = state.evicted[group]
            start = max(state.committed, state.floor if evicted else 0)
            slots = self.real.slot_mapping(seq, start, len(state.tokens), group)
            self.storage.write(group, slots.tolist(), self.expected[seq][group][start - evicted :])

    def commit(self, seq, num_tokens=None):
        if seq in self.model.running:
            self.forward(seq)
        self.both("commit", seq, num_tokens)

    def truncate(self, seq, num_tokens):
        done, _, _ = self.both("truncate", seq, num_tokens)
        if done:
            for group, contents in enumerate(self.expected[seq]):
                del contents[num_tokens - self.model.running[seq].evicted[group] :]

    def compact(self, seq, keep, group, shuffle):
        """Which ``keep`` of the tokens stay is drawn from ``shuffle``, a random.Random."""
        done, expected, real = self.both("compact", seq, keep, group)
        if not done:
            return
        assert (real.copies, real.old_table, real.new_table, real.num_tokens) == (*expected, keep)
        self.storage.copy(real.copies)
        contents = self.expected[seq][group]
        if keep < len(contents):
            kept = sorted(shuffle.sample(range(len(contents)), keep))
            self.storage.move(group, real.old_table, real.new_table, kept)
            self.expected[seq][group] = [contents[place] for place in kept]
            self.evictions[seq] += ((group, tuple(kept)),)

    def free(self, seq):
        done, _, _ = self.both("free", seq)
        if done:
            del self.expected[seq], self.evictions[seq]

    def swap_out(self, seq, broken=False, inside=None):
        self._swap(self.real.swapping_out, self.model.swap_out, self.storage.out, seq, broken, inside)

    def swap_in(self, seq, broken=False, inside=None):
        self._swap(self.real.swapping_in, self.model.swap_in, self.storage.back, seq, broken, inside)

    def _swap(self, swapping, in_model, transfer, seq, broken, inside):
        before, evictions = snapshot(self.real), self._evictions()
        try:
            expected = in_model(seq, broken)
        except Refused as error:
            refused_alike(error, self.real, swapping(seq).__enter__)
            return
        try:
            with swapping(seq) as swap:
                assert swap.pairs == expected
                if inside:
                    inside(seq)
                for group, pairs in enumerate(swap.pairs):
                    transfer(group, pairs[: len(pairs) // 2] if broken else pairs)
                if broken:
                    raise Broken
        except Broken:
            # What was cached in blocks that the way back had to evict is lost, and that is all.
            if self._evictions() == evictions:
                assert snapshot(self.real) == before
        else:
            assert not broken, "the manager swallowed the error"

    def check(self):
        real, model = self.real, self.model
        real.check_invariants()
        assert real.sequences() == model.rows
        for seq, state in model.running.items():
            assert real.num_tokens(seq) == len(state.tokens)
        for group, pool in enumerate(model.pools):
            self._check_pool(real.pools[group], pool)
            self._check_tables(group)
            self._check_published(group)
            assert real.stats().wasted_slots[group] == model.wasted_slots(group)
        stats = real.stats()
        assert (stats.sequences, stats.asked_tokens, stats.hit_tokens) == (
            len(model.running), model.asked_tokens, model.hit_tokens,
        )  # fmt: skip
        for seq in model.running:
            self._check_content(seq)

    def _check_pool(self, real, model):
        stats = real.stats()
        fields = stats.total, stats.free, stats.used, stats.cached, stats.hits, stats.evictions
        assert fields == model.stats()
        for block in range(model.num_blocks):
            assert (real.ref_count(block), real.is_published(block)) == (
                model.refs(block), model.is_published(block),
            )  # fmt: skip

    def _check_tables(self, group):
        real, model = self.real, self.model
        rows = real.block_tables(group).tolist()
        assert len(rows) == len(model.rows)
        for seq, row in zip(model.rows, rows, strict=True):
            state, table = model.running[seq], model.running[seq].tables[group]
            assert real.block_table(seq, group) == table
            assert row == table + [NULL_BLOCK] * (len(row) - len(table))
            assert real.length(seq, group) == state.length(group)
            low = state.floor if state.evicted[group] else 0
            slots = real.slot_mapping(seq, low, len(state.tokens), group).tolist()
            assert slots == model.slots(seq, low, len(state.tokens), group)
        if model.rows:
            last = [model.running[seq].length(group) - 1 for seq in model.rows]
            tables = [model.running[seq].tables[group] for seq in model.rows]
            size = self.block_size
            assert real.decode_slots(kv_cache_group=group).tolist() == [
                -1 if table[-1] == NULL_BLOCK else table[-1] * size + place % size
                for table, place in zip(tables, last, strict=True)
            ]

    def _check_published(self, group):
        """What anybody may find is what it says, in every slot of the block."""
        size = self.block_size
        for (salt, tokens), (block, _) in self.model.pools[group].found.items():
            for offset in range(size):
                content = Written(salt, tokens[: len(tokens) - size + offset + 1])
                assert self.storage.read(group, block, offset) == content, f"stale: block {block}, {offset}"

    def _check_content(self, seq):
        """Every committed token that the next query of a group reads is in its slot."""
        state, size = self.model.running[seq], self.block_size
        for group, (_, window) in enumerate(self.kv_cache_groups):
            evicted = state.evicted[group]
            first = 0 if window is None else max(0, state.committed - window + 1)
            for place in range(first, state.committed - evicted):
                block = self.real.block_table(seq, group)[place // size]
                assert block != NULL_BLOCK, f"{seq} of group {group}: place {place} was given back too early"
                found = self.storage.read(group, block, place % size)
                assert found == self.expected[seq][group][place], (
                    f"{seq} of group {group} reads another's K and V"
                )

    def _evictions(self):
        return [pool.stats().evictions for pool in self.real.pools]

    def _expect(self, seq, salt, start):
        """The tokens from position ``start`` on have been added: what a forward will write for them."""
        tokens = self.model.running[seq].tokens
        for contents in self.expected[seq]:
            for position in range(start, len(tokens)):
                contents.append(Written(salt, tuple(tokens[: position + 1]), self.evictions[seq]))
