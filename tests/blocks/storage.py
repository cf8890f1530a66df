"""A storage that remembers for every slot of every group what was written there: K and V, as far as bookkeeping goes.

What K and V of a token depend on is the salt, every token up to it, and what was evicted before it was computed;
so that is what a slot holds (``Written``). Two slots that hold the same are interchangeable, two that do not are not.
"""

from typing import NamedTuple


class Written(NamedTuple):
    salt: str
    tokens: tuple[int, ...]  # from the beginning of the text to this token
    evictions: tuple = ()  # (group, kept places) of each compact() before it


class Storage:
    def __init__(self, num_groups: int, block_size: int):
        self.block_size = block_size
        self.device: list[dict[int, Written]] = [{} for _ in range(num_groups)]
        self.host: list[dict[int, Written]] = [{} for _ in range(num_groups)]

    def write(self, group, slots, contents):
        for slot, content in zip(slots, contents, strict=True):
            if slot >= 0:
                self.device[group][slot] = content

    def read(self, group, block, offset):
        return self.device[group].get(block * self.block_size + offset)

    def copy(self, copies):
        """All reads before all writes."""
        reads = [self._block(self.device[copy.kv_cache_group], copy.src) for copy in copies]
        for copy, content in zip(copies, reads, strict=True):
            self._put(self.device[copy.kv_cache_group], copy.dst, content)

    def move(self, group, old_table, new_table, kept):
        """The tokens at the places ``kept`` of the old table to the first places of the new one."""
        size = self.block_size
        reads = [self.read(group, old_table[place // size], place % size) for place in kept]
        for place, content in enumerate(reads):
            self._set(self.device[group], new_table[place // size] * size + place % size, content)

    def out(self, group, pairs):
        for device, host in pairs:
            self._put(self.host[group], host, self._block(self.device[group], device))

    def back(self, group, pairs):
        for device, host in pairs:
            self._put(self.device[group], device, self._block(self.host[group], host))

    def _block(self, store, block):
        return [store.get(block * self.block_size + offset) for offset in range(self.block_size)]

    def _put(self, store, block, contents):
        for offset, content in enumerate(contents):
            self._set(store, block * self.block_size + offset, content)

    def _set(self, store, slot, content):
        if content is None:
            store.pop(slot, None)
        else:
            store[slot] = content
