"""The peer of benchmarks/blocks.py: a block manager as textbooks and small engines write it.

A free list in a deque, one object a block, xxhash over a numpy array of each block's tokens, hashed when the block
is allocated (not when it has been written), and a cached block taken out of the deque by searching for it.
"""

from collections import deque

import numpy as np
import xxhash

NO_HASH = -1


class Block:
    """One block: how many hold it, and the tokens that its hash was made from."""

    def __init__(self, number: int):
        self.number = number
        self.holders = 0
        self.hash = NO_HASH
        self.tokens: list[int] = []


class TextbookSequence:
    """A request's tokens and its block table."""

    def __init__(self, tokens: list[int]):
        self.tokens = list(tokens)
        self.table: list[int] = []


class TextbookManager:
    """Allocates, appends and frees; nothing else (no fork, no windows, no truncate)."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.blocks = [Block(number) for number in range(num_blocks)]
        self.free_list = deque(range(num_blocks))
        self.used: set[int] = set()
        self.block_of: dict[int, int] = {}

    @staticmethod
    def hash_of(tokens: list[int], parent: int) -> int:
        state = xxhash.xxh64()
        if parent != NO_HASH:
            state.update(parent.to_bytes(8, "little"))
        state.update(np.array(tokens).tobytes())
        return state.intdigest()

    def take(self, number: int) -> Block:
        """Take a free block, wherever it stands in the deque."""
        block = self.blocks[number]
        if self.free_list[0] == number:
            self.free_list.popleft()
        else:
            self.free_list.remove(number)
        if block.hash != NO_HASH and self.block_of.get(block.hash) == number:
            del self.block_of[block.hash]
        block.holders, block.hash, block.tokens = 1, NO_HASH, []
        self.used.add(number)
        return block

    def allocate(self, sequence: TextbookSequence) -> int:
        """Blocks for every token of ``sequence``; returns how many tokens were cached."""
        size, parent, missed, cached = self.block_size, NO_HASH, False, 0
        for start in range(0, len(sequence.tokens), size):
            tokens = sequence.tokens[start : start + size]
            parent = self.hash_of(tokens, parent) if len(tokens) == size else NO_HASH
            number = self.block_of.get(parent, NO_HASH)
            if number == NO_HASH or self.blocks[number].tokens != tokens:
                missed = True
            if missed:
                block = self.take(self.free_list[0])
            else:
                cached += size
                block = self.blocks[number]
                if number in self.used:
                    block.holders += 1
                else:
                    block = self.take(number)
            if parent != NO_HASH:
                block.hash, block.tokens = parent, tokens
                self.block_of[parent] = block.number
            sequence.table.append(block.number)
        return cached

    def append(self, sequence: TextbookSequence, token: int) -> None:
        """One more token: a new block before the first token of one, its hash after the last."""
        sequence.tokens.append(token)
        size, length = self.block_size, len(sequence.tokens)
        last = self.blocks[sequence.table[-1]]
        if length % size == 1:
            assert last.hash != NO_HASH
            sequence.table.append(self.take(self.free_list[0]).number)
        elif length % size == 0:
            assert last.hash == NO_HASH
            tokens = sequence.tokens[-size:]
            parent = self.blocks[sequence.table[-2]].hash if len(sequence.table) > 1 else NO_HASH
            last.hash, last.tokens = self.hash_of(tokens, parent), tokens
            self.block_of[last.hash] = last.number
        else:
            assert last.hash == NO_HASH

    def free(self, sequence: TextbookSequence) -> None:
        for number in reversed(sequence.table):
            block = self.blocks[number]
            block.holders -= 1
            if not block.holders:
                self.used.remove(number)
                self.free_list.append(number)
        sequence.table.clear()
