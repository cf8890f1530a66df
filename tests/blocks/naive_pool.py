"""A second block pool, in plain lists: slow, and simple enough to be believed.

There are no counters of holders: the pool keeps a list with one entry a holder. What it refuses, it refuses before
it changes anything.
"""

from minikv.errors import ArgumentError, OutOfBlocksError


class Refused(Exception):
    """The model's word for a MiniKVError: its class, and those of its values that the model knows."""

    def __init__(self, kind: type, **values):
        super().__init__(kind.__name__, values)
        self.kind = kind
        self.values = values


class NaivePool:
    """Empty blocks are taken first, the one emptied last before the others; then the one that is free the longest."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.empty = [block for block in range(num_blocks)][::-1]  # the last one is taken first
        self.cached: list[int] = []  # the first one is evicted first
        self.holders: list[int] = []  # each block as often as it is held
        self.found: dict[object, tuple[int, object]] = {}  # digest -> block, tokens
        self.hits = 0
        self.evictions = 0

    @property
    def num_free(self):
        return len(self.empty) + len(self.cached)

    def stats(self):
        used = len(set(self.holders))
        return self.num_blocks, self.num_free, used, len(self.cached), self.hits, self.evictions

    def refs(self, block):
        return self.holders.count(block)

    def is_published(self, block):
        return any(block == other for other, _ in self.found.values())

    def allocate(self, count):
        if count > self.num_free:
            raise Refused(OutOfBlocksError, asked=count, free=self.num_free, total=self.num_blocks)
        taken = []
        for _ in range(count):
            if self.empty:
                taken.append(self.empty.pop())
            else:
                taken.append(self.cached.pop(0))
                self._unpublish(taken[-1])
                self.evictions += 1
        self.holders += taken
        return taken

    def touch(self, blocks):
        if any(self.refs(block) == 0 and block not in self.cached for block in blocks):
            raise Refused(ArgumentError)
        for block in blocks:
            if block in self.cached:
                self.cached.remove(block)
            self.holders.append(block)
            self.hits += 1

    def share(self, blocks):
        self._must_hold(blocks)
        self.holders += blocks

    def free(self, blocks):
        self._must_hold(blocks)
        for block in blocks[::-1]:
            self.holders.remove(block)
            if block not in self.holders:
                (self.cached if self.is_published(block) else self.empty).append(block)

    def lookup_block(self, digest, tokens):
        block, published = self.found.get(digest, (None, None))
        return block if published == tokens else None

    def publish(self, block, digest, tokens):
        self._must_hold([block])
        if digest in self.found:
            return self.found[digest] == (block, tokens)
        if self.is_published(block):
            raise Refused(ArgumentError)
        self.found[digest] = (block, tokens)
        return True

    def forget(self, block):
        self._unpublish(block)
        if block in self.cached:
            self.cached.remove(block)
            self.empty.append(block)

    def _unpublish(self, block):
        self.found = {digest: entry for digest, entry in self.found.items() if entry[0] != block}

    def _must_hold(self, blocks):
        if len(set(blocks)) < len(blocks) or not set(blocks) <= set(self.holders):
            raise Refused(ArgumentError)
