"""BlockPool: the free blocks, the reference count of each block, and the content that can be found in them.

A block is in one of three states:

    used      its reference count is 1 or more
    cached    its reference count is 0, but its content can be found by its digest, and taken back by ``touch``
    empty     its reference count is 0, and nothing can be found in it

Cached blocks are free blocks: ``allocate`` takes empty blocks first, then evicts the cached block that has been
free the longest. Every operation costs the same for any size of the pool. The pool knows nothing of
sequences, and nothing of tensors: a block is a number from 0 to num_blocks - 1.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minikv.errors import ArgumentError, BrokenInvariantError, OutOfBlocksError, check_count
from minikv.shown import one_line

NULL_BLOCK = -1
"""The entry of a block table behind a window: no block of any pool; it must not be read."""


LARGEST_POOL = 2**31 - 1  # block tables are int32, as kernels read them

BLOCK_BOOK_BYTES = 48
"""Host memory for each block of an empty pool: two list entries of 8 bytes, and an int of 32 on the stack."""


@dataclass(frozen=True)
class PoolStats:
    """Blocks by state (``total`` = ``used`` + ``free``; ``cached`` are the free ones that can still be found).

    ``hits`` counts the references that ``touch`` added, ``evictions`` the cached blocks that ``allocate`` emptied.
    """

    total: int
    free: int
    used: int
    cached: int
    hits: int
    evictions: int


class Content(NamedTuple):
    """The content of a published block: its token ids, 8 bytes each, under the digest of all tokens up to its end."""

    block: int
    digest: bytes
    tokens: bytes


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens each.

    Raises ``ArgumentError`` unless both are whole numbers of at least 1, and for more than 2**31 - 1 blocks.
    ``reclaimed`` is None, or a list to which ``allocate`` adds what it evicts; the pool never empties the list.
    """

    def __init__(self, num_blocks: int, block_size: int = 16):
        check_count("num_blocks", num_blocks)
        if num_blocks > LARGEST_POOL:
            raise ArgumentError("out_of_range", what="num_blocks", value=num_blocks, low=0, high=LARGEST_POOL)
        check_count("block_size", block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 is taken first
        # A dict has the order too, but finding its first key gets slow after many deletions at the front.
        self._cached: OrderedDict[int, None] = OrderedDict()  # from the least to the most recently freed
        self._block_of: dict[bytes, int] = {}  # digest -> the block that holds it
        self._published: dict[int, tuple[bytes, bytes]] = {}  # block -> its digest and its tokens
        self._hits = 0
        self._evictions = 0
        self.reclaimed: list[Content] | None = None

    @property
    def num_free(self) -> int:
        """The number of blocks that ``allocate`` can take: the empty and the cached ones."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """The number of free blocks with content that can still be found."""
        return len(self._cached)

    def ref_count(self, block: int) -> int:
        """Return how many holders ``block`` has; 0 if it is free."""
        self._check(block)
        return self._refs[block]

    def is_published(self, block: int) -> bool:
        """Return whether the content of ``block`` can be found by its digest."""
        self._check(block)
        return block in self._published

    def count_free(self, blocks: Sequence[int]) -> int:
        """Return how many of ``blocks``, which must exist, are free."""
        refs = self._refs
        return sum(not refs[block] for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one holder: empty ones first, then the least recently used cached ones.

        Raises ``OutOfBlocksError``, and takes none, if fewer are free.
        """
        if type(count) is not int or count < 0:
            check_count("count", count, least=0)
        empty, cached = self._empty, self._cached
        if count > len(empty) + len(cached):
            free = self.num_free
            fits = free * self.block_size
            raise OutOfBlocksError("out_of_blocks", asked=count, free=free, total=self.num_blocks, fits=fits)
        first = max(0, len(empty) - count)
        taken = empty[first:]
        del empty[first:]
        taken.reverse()
        while len(taken) < count:
            block, _ = cached.popitem(last=False)
            digest, tokens = self._published.pop(block)
            del self._block_of[digest]
            self._evictions += 1
            if self.reclaimed is not None:
                self.reclaimed.append(Content(block, digest, tokens))
            taken.append(block)
        for block in taken:
            self._refs[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """Add a holder to blocks that a prefix search found. A cached block leaves the free list from any place in it.

        Raises ``ArgumentError``, and changes nothing, if one of them is empty.
        """
        self._check_list(blocks)
        refs, cached, last = self._refs, self._cached, self.num_blocks
        for block in blocks:
            if type(block) is not int or not 0 <= block < last:
                self._check(block)
            if not refs[block] and block not in cached:
                raise ArgumentError("block_is_empty", block=block)
        for block in blocks:
            if not refs[block]:
                del cached[block]
            refs[block] += 1
        self._hits += len(blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to blocks that are held already.

        Raises ``ArgumentError``, and changes nothing, if one of them is free.
        """
        self._check_held(blocks)
        for block in blocks:
            self._refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Remove a holder from each block; a block without holders is free.

        The last of ``blocks`` is freed first, so that a cached sequence's tail is evicted before its
        beginning, which more requests share. Raises ``ArgumentError``, and changes nothing, if a block is
        free already or is named twice.
        """
        self._check_held(blocks)
        refs, published = self._refs, self._published
        for block in reversed(blocks):
            refs[block] -= 1
            if not refs[block]:
                if block in published:
                    self._cached[block] = None
                else:
                    self._empty.append(block)

    def lookup_block(self, digest: bytes, tokens: bytes) -> int | None:
        """Return the block that was published under ``digest``, or None. Changes nothing; ``touch`` takes the block.

        The block's tokens must be equal too: two texts with the same digest must never share.
        """
        try:
            block = self._block_of.get(digest)
        except TypeError:  # a list, or another type that cannot be a key
            raise ArgumentError("bad_digest", value=type(digest).__name__) from None
        if block is None or self._published[block][1] != tokens:
            return None
        return block

    def publish(self, block: int, digest: bytes, tokens: bytes) -> bool:
        """Make the content of a held block findable. False, and no change, if another block has the digest.

        Raises ``ArgumentError`` for a free block, and for one that is published under another digest.
        """
        self._check(block)
        if not self._refs[block]:
            raise ArgumentError("block_is_free", block=block)
        if type(digest) is not bytes:
            raise ArgumentError("bad_digest", value=type(digest).__name__)
        other = self._block_of.get(digest)
        if other is not None:
            return other == block and self._published[block][1] == tokens
        if block in self._published:
            raise ArgumentError("block_published_before", block=block)
        self._block_of[digest] = block
        self._published[block] = (digest, tokens)
        return True

    def forget(self, block: int) -> None:
        """Make the content of ``block`` unfindable; a cached block becomes an empty one."""
        self._check(block)
        entry = self._published.pop(block, None)
        if entry is None:
            return
        del self._block_of[entry[0]]
        if not self._refs[block]:
            del self._cached[block]
            self._empty.append(block)

    def cached(self) -> list[Content]:
        """Return the free blocks with content that can still be found, the next to be evicted first."""
        return [Content(block, *self._published[block]) for block in self._cached]

    def __repr__(self) -> str:
        blocks = f"{self.num_blocks:,} blocks of {self.block_size:,} tokens"
        return one_line("BlockPool", "", blocks, f"{self.num_used:,} used", f"{self.num_cached:,} cached")

    def stats(self) -> PoolStats:
        return PoolStats(
            self.num_blocks, self.num_free, self.num_used, self.num_cached, self._hits, self._evictions
        )

    def check_invariants(self) -> None:
        """Check every block, in time proportional to the pool; ``BrokenInvariantError`` names the fault.

        Every block is either held, cached or empty, and in one place; cached blocks are published; digests and
        published blocks correspond one to one.
        """
        places = self._empty + list(self._cached)
        if len(set(places)) != len(places):
            raise BrokenInvariantError("invariant", what="a block is twice in the free list")
        free = set(places)
        for block, count in enumerate(self._refs):
            if count < 0 or (count == 0) != (block in free):
                what = f"block {block} has {count} holders and is {'' if block in free else 'not '}free"
                raise BrokenInvariantError("invariant", what=what)
        if not self._cached.keys() <= self._published.keys():
            raise BrokenInvariantError("invariant", what="a cached block is not published")
        if self._published.keys() & set(self._empty):
            raise BrokenInvariantError("invariant", what="an empty block is published")
        if {block: entry[0] for block, entry in self._published.items()} != {
            block: digest for digest, block in self._block_of.items()
        }:
            raise BrokenInvariantError("invariant", what="digests and published blocks do not match")

    def _check(self, block: int) -> None:
        if type(block) is not int or not 0 <= block < self.num_blocks:
            raise ArgumentError("no_such_block", block=block, last=self.num_blocks - 1)

    def _check_list(self, blocks: Sequence[int]) -> None:
        if not isinstance(blocks, (list, tuple, range)):  # twice as fast as list | tuple | range
            raise ArgumentError("not_a_list", what="blocks", value=type(blocks).__name__)

    def _check_held(self, blocks: Sequence[int]) -> None:
        """Raise unless each of ``blocks`` exists, is held, and is named once."""
        self._check_list(blocks)
        refs = self._refs
        last = self.num_blocks
        for block in blocks:
            if type(block) is not int or not 0 <= block < last:
                self._check(block)
            if not refs[block]:
                raise ArgumentError("block_is_free", block=block)
        if len(set(blocks)) != len(blocks):
            twice = next(block for block in blocks if list(blocks).count(block) > 1)
            raise ArgumentError("block_named_twice", block=twice)
