"""Which block of the cache belongs to which sequence. Pure Python: only numbers of blocks, and no tensor.

The cache is cut into ``num_blocks`` blocks of ``block_size`` tokens. A sequence holds a list of them, its
block table: token i lies in block ``block_table[i // block_size]``. A full block can stand in the tables of
several sequences that begin with the same tokens. It is found by its digest, also after its last sequence has
ended, until the block is needed for something else.
"""

from collections import OrderedDict
from collections.abc import Sequence as List
from hashlib import sha256

from minikv.nano.sequence import Sequence


def block_digest(previous: bytes, tokens: List[int]) -> bytes:
    """A full block's name: SHA-256 of the digest before it and its tokens, so of all tokens up to its end.

    K and V depend on every token before, so blocks of equal tokens differ behind other beginnings.
    """
    return sha256(previous + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()


def slot_mapping(block_table: List[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of tokens ``start`` to ``end - 1``: rows of a cache seen as [num_blocks * block_size, ...]."""
    return [block_table[i // block_size] * block_size + i % block_size for i in range(start, end)]


class BlockManager:
    """The free list, the reference counts and the prefix cache of one pool of blocks.

    ``free_blocks`` is ordered: the block that was freed longest ago is reused first. A free block keeps its
    digest until then, and can be found meanwhile.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks  # how many sequences hold the block
        self.free_blocks = OrderedDict.fromkeys(range(num_blocks))  # used as an ordered set
        self.digests: list[bytes | None] = [None] * num_blocks
        self.cached: dict[bytes, int] = {}  # digest -> a block with these tokens

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, tokens: List[int]) -> list[int]:
        """The cached blocks that ``tokens`` begin with, in order.

        The last token is never among them: it has to be computed, because its logits choose the next token.
        """
        found: list[int] = []
        digest = b""
        for end in range(self.block_size, len(tokens), self.block_size):
            digest = block_digest(digest, tokens[end - self.block_size : end])
            if digest not in self.cached:
                break
            found.append(self.cached[digest])
        return found

    def allocate(self, seq: Sequence, keep_free: int = 0) -> bool:
        """Give ``seq`` blocks for all its tokens, cached ones first, and leave ``keep_free`` blocks free.

        Returns False, with nothing changed, where blocks are short.
        """
        prefix = self.find_prefix(seq.tokens)
        fresh = self.blocks_for(len(seq.tokens)) - len(prefix)
        reused = sum(block in self.free_blocks for block in prefix)  # free now, but not for `fresh`
        if fresh + reused + keep_free > len(self.free_blocks):
            return False
        for block in prefix:
            self.free_blocks.pop(block, None)
            self.ref_counts[block] += 1
        seq.block_table = prefix + [self._take() for _ in range(fresh)]
        seq.num_computed = seq.num_cached = len(prefix) * self.block_size
        return True

    def append(self, seq: Sequence) -> bool:
        """Make room for the last token of ``seq``. False, with nothing changed, if no block is free."""
        if self.blocks_for(len(seq.tokens)) > len(seq.block_table):
            if not self.free_blocks:
                return False
            seq.block_table.append(self._take())
        return True

    def publish(self, seq: Sequence, end: int) -> None:
        """Note that K and V of tokens up to ``end`` are written: blocks that are full now can be found."""
        size = self.block_size
        for i in range(seq.num_computed // size, end // size):
            previous = self.digests[seq.block_table[i - 1]] if i else b""
            assert previous is not None, "a block is published after the one before it"
            block, digest = seq.block_table[i], block_digest(previous, seq.tokens[i * size : (i + 1) * size])
            self.digests[block] = digest
            self.cached.setdefault(digest, block)
        seq.num_computed = end

    def free(self, seq: Sequence) -> None:
        """Take back the blocks of ``seq``, the last first: a beginning serves more prompts than an end."""
        assert all(self.ref_counts[block] for block in seq.block_table), "a block is freed twice"
        for block in reversed(seq.block_table):
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                self.free_blocks[block] = None
        seq.block_table = []
        seq.num_computed = 0

    def _take(self) -> int:
        """The free block that was used longest ago. What it held cannot be found any more."""
        block, _ = self.free_blocks.popitem(last=False)
        digest = self.digests[block]
        if digest is not None and self.cached.get(digest) == block:  # a twin may have been published first
            del self.cached[digest]
        self.digests[block] = None
        self.ref_counts[block] = 1
        return block
