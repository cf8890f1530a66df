"""A second block manager, in plain lists and dicts, over the pools of ``naive_pool``.

There are no digests here: a block is found by the salt and by every token from the beginning of the text to the
block's end. What it refuses, it refuses before it changes anything.
"""

from minikv.errors import ArgumentError, OutOfBlocksError, RequestTooLargeError, UnknownNameError
from tests.blocks.naive_pool import NaivePool, Refused

GONE = -1  # in a table: a window has moved on


class NaiveSequence:
    def __init__(self, tokens, salt, tables, evicted, committed, published, floor):
        self.tokens = tokens
        self.salt = salt
        self.tables = tables  # one list of blocks a group
        self.evicted = evicted  # one number a group: tokens that compact() dropped
        self.committed = committed
        self.published = published  # blocks that were offered to others already
        self.floor = floor  # where the last eviction was

    def length(self, group):
        return len(self.tokens) - self.evicted[group]

    def live(self, group):
        return [block for block in self.tables[group] if block != GONE]


class NaiveManager:
    """``groups``: one (num_blocks, window or None) for each KV cache group."""

    def __init__(self, groups, block_size, host_blocks):
        self.block_size = block_size
        self.windows = [window for _, window in groups]
        self.pools = [NaivePool(num_blocks, block_size) for num_blocks, _ in groups]
        self.host = [NaivePool(host_blocks, block_size) for _ in groups] if host_blocks else []
        self.running: dict[object, NaiveSequence] = {}
        self.rows: list[object] = []
        self.swapped: dict[object, NaiveSequence] = {}
        self.asked_tokens = 0
        self.hit_tokens = 0

    def needed_from(self, num_tokens, window):
        """The query at position ``num_tokens`` sees the positions num_tokens - window + 1 .. num_tokens."""
        return 0 if window is None else max(0, num_tokens - window + 1) // self.block_size

    def blocks(self, num_tokens):
        return (num_tokens + self.block_size - 1) // self.block_size

    def match(self, tokens, salt=""):
        """The longest whole number of blocks, before the last token, of which each group has what it needs."""
        size = self.block_size
        for count in range((len(tokens) - 1) // size if tokens else 0, -1, -1):
            tables = []
            for pool, window in zip(self.pools, self.windows, strict=True):
                start = self.needed_from(count * size, window)
                keys = [(salt, tuple(tokens[: (i + 1) * size])) for i in range(start, count)]
                tables.append([GONE] * start + [pool.found.get(key, (None,))[0] for key in keys])
            if all(None not in table for table in tables):
                return count * size, tuple(tuple(table) for table in tables)
        raise AssertionError("zero blocks can always be matched")

    def allocate(self, name, tokens, salt=""):
        if name in self.running or name in self.swapped or not tokens:
            raise Refused(ArgumentError)
        num_cached, tables = self.match(tokens, salt)
        total = self.blocks(len(tokens))
        hits = [[block for block in table if block != GONE] for table in tables]
        wants = []
        for pool, table, hit in zip(self.pools, tables, hits, strict=True):
            idle = len([block for block in hit if block in pool.cached])
            wants.append((pool, total - len(table), len(hit), pool.num_free - idle))
        self._check(wants)
        for pool, hit in zip(self.pools, hits, strict=True):
            pool.touch(hit)
        seq = NaiveSequence(
            list(tokens),
            salt,
            [
                [*table, *pool.allocate(total - len(table))]
                for pool, table in zip(self.pools, tables, strict=True)
            ],
            [0 for _ in self.pools],
            committed=num_cached,
            published=num_cached // self.block_size,
            floor=0,
        )
        self._start(name, seq)
        self.asked_tokens += len(tokens)
        self.hit_tokens += num_cached
        return len(tokens), num_cached

    def fork(self, parent, child):
        seq = self._get(parent)
        if child in self.running or child in self.swapped:
            raise Refused(ArgumentError)
        for group, pool in enumerate(self.pools):
            pool.share(seq.live(group))
        tables = [list(table) for table in seq.tables]
        twin = NaiveSequence(
            list(seq.tokens), seq.salt, tables, list(seq.evicted), seq.committed, seq.published, seq.floor
        )
        self._start(child, twin)

    def append_tokens(self, name, tokens):
        seq = self._get(name)
        if not tokens:
            return ()
        plans, wants = [], []
        for group, pool in enumerate(self.pools):
            length, table = seq.length(group), seq.tables[group]
            new = self.blocks(length + len(tokens)) - len(table)
            partial = length % self.block_size > 0
            copied = partial and pool.refs(table[-1]) > 1
            wants.append((pool, new + copied, len(seq.live(group)) - copied, pool.num_free))
            plans.append((new, partial, copied))
        self._check(wants)
        copies = []
        for group, (new, partial, copied) in enumerate(plans):
            pool, table = self.pools[group], seq.tables[group]
            added = pool.allocate(new + copied)
            if copied:
                copies.append((group, table[-1], added[0]))
                pool.free([table.pop()])
            elif partial:
                pool.forget(table[-1])
            table += added
        seq.tokens += tokens
        return tuple(copies)

    def append(self, name, token):
        return self.append_tokens(name, [token])

    def commit(self, name, num_tokens=None):
        seq = self._get(name)
        if num_tokens is None:
            num_tokens = len(seq.tokens)
        if not seq.committed <= num_tokens <= len(seq.tokens):
            raise Refused(ArgumentError)
        size = self.block_size
        full = num_tokens // size
        # After an eviction a block no longer holds the tokens that stand at its place of the text.
        for place in range(seq.published, 0 if seq.floor else full):
            key = seq.salt, tuple(seq.tokens[: (place + 1) * size])
            for pool, table in zip(self.pools, seq.tables, strict=True):
                if table[place] != GONE:
                    pool.publish(table[place], key, tuple(seq.tokens[place * size : (place + 1) * size]))
        seq.committed = num_tokens
        seq.published = max(seq.published, full)
        for pool, window, table in zip(self.pools, self.windows, seq.tables, strict=True):
            for place in range(self.needed_from(num_tokens, window)):
                if table[place] != GONE:
                    pool.free([table[place]])
                    table[place] = GONE

    def truncate(self, name, num_tokens):
        seq = self._get(name)
        if not max(1, seq.floor) <= num_tokens <= len(seq.tokens):
            raise Refused(ArgumentError)
        for window, table in zip(self.windows, seq.tables, strict=True):
            if table.count(GONE) > self.needed_from(num_tokens, window):
                raise Refused(ArgumentError)
        for group, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
            keep = self.blocks(num_tokens - seq.evicted[group])
            pool.free(table[keep:])
            del table[keep:]
        del seq.tokens[num_tokens:]
        seq.committed = min(seq.committed, num_tokens)
        seq.published = min(seq.published, num_tokens // self.block_size)

    def compact(self, name, keep, group):
        seq = self._get(name)
        if self.windows[group] is not None or not 1 <= keep <= seq.length(group):
            raise Refused(ArgumentError)
        pool, table = self.pools[group], seq.tables[group]
        if keep == seq.length(group):
            return (), tuple(table), tuple(table)
        kept = self.blocks(keep)
        shared = [place for place in range(kept) if pool.refs(table[place]) > 1]
        copies = []
        for place, block in zip(shared, pool.allocate(len(shared)), strict=True):
            copies.append((group, table[place], block))
            pool.free([table[place]])
            table[place] = block
        before = tuple(table)
        for block in table[:kept]:
            pool.forget(block)
        pool.free(table[kept:])
        del table[kept:]
        seq.evicted[group] = len(seq.tokens) - keep
        seq.floor = len(seq.tokens)
        return tuple(copies), before, tuple(table)

    def swap_out(self, name, interrupted=False):
        seq = self._get(name)
        if not self.host:
            raise Refused(ArgumentError)
        host = self._take(self.host, seq)
        pairs = self._pairs([seq.live(group) for group in range(len(self.pools))], host)
        if interrupted:
            self._give_back(self.host, host)
            return pairs
        self.free(name)
        self._place(seq, host)
        self.swapped[name] = seq
        return pairs

    def swap_in(self, name, interrupted=False):
        if name not in self.swapped:
            raise Refused(UnknownNameError)
        seq = self.swapped[name]
        device = self._take(self.pools, seq)
        host = [seq.live(group) for group in range(len(self.pools))]
        if interrupted:
            self._give_back(self.pools, device)
            return self._pairs(device, host)
        self.free(name)
        self._place(seq, device)
        seq.published = 0
        self._start(name, seq)
        return self._pairs(device, host)

    def free(self, name):
        if name in self.swapped:
            seq, pools = self.swapped.pop(name), self.host
        else:
            seq, pools = self._get(name), self.pools
            del self.running[name]
            last = self.rows.pop()
            if last != name:
                self.rows[self.rows.index(name)] = last
        for group, pool in enumerate(pools):
            pool.free(seq.live(group))

    def slots(self, name, start, end, group):
        """The formula, one position at a time."""
        seq, size = self.running[name], self.block_size
        places = [position - seq.evicted[group] for position in range(start, end)]
        blocks = [seq.tables[group][place // size] for place in places]
        return [
            GONE if block == GONE else block * size + place % size
            for block, place in zip(blocks, places, strict=True)
        ]

    def wasted_slots(self, group):
        size = self.block_size
        taken = set()
        for seq in self.running.values():
            for i in range(seq.length(group)):
                taken.add((seq.tables[group][i // size], i % size))
        used = set(self.pools[group].holders)
        return len(used) * size - len([slot for slot in taken if slot[0] in used])

    def _get(self, name):
        if name not in self.running:
            raise Refused(UnknownNameError)
        return self.running[name]

    def _start(self, name, seq):
        self.running[name] = seq
        self.rows.append(name)

    def _check(self, wants):
        """Each pool: new blocks beside those that the sequence holds, and how many are free. Never before not now."""
        for pool, new, held, _ in wants:
            if new + held > pool.num_blocks:
                raise Refused(RequestTooLargeError, asked=new + held, total=pool.num_blocks)
        for pool, new, _, free in wants:
            if new > free:
                raise Refused(OutOfBlocksError, asked=new, free=free, total=pool.num_blocks)

    def _take(self, pools, seq):
        counts = [len(seq.live(group)) for group in range(len(pools))]
        for pool, count in zip(pools, counts, strict=True):
            if count > pool.num_free:
                raise Refused(OutOfBlocksError, asked=count, free=pool.num_free, total=pool.num_blocks)
        return [pool.allocate(count) for pool, count in zip(pools, counts, strict=True)]

    def _give_back(self, pools, blocks):
        for pool, of_group in zip(pools, blocks, strict=True):
            pool.free(of_group)

    def _place(self, seq, blocks):
        for table, of_group in zip(seq.tables, blocks, strict=True):
            table[table.count(GONE) :] = of_group

    def _pairs(self, device, host):
        return tuple(tuple(zip(d, h, strict=True)) for d, h in zip(device, host, strict=True))
