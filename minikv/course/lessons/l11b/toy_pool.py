"""A small pool of blocks for exercise 11b.3. It does not check that a step uses it rightly."""

from collections.abc import Sequence


class Shelf:
    """``num_blocks`` blocks of ``block_size`` tokens, with their tables, ref counts and contents.

    A block that was published and then freed can still be found, until it is taken again.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self._free = list(range(num_blocks))
        self._tables: dict[str, list[int]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._holders = [0] * num_blocks
        self._found_as: dict[tuple[int, ...], int] = {}  # all tokens up to the end of a block -> the block
        self._written: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]

    @property
    def held(self) -> list[str]:
        """The names of the sequences that hold blocks, in the order in which they took them."""
        return list(self._tables)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the full blocks of ``tokens`` that can be found now, from the first one up to the first miss."""
        found = []
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            block = self._found_as.get(tuple(tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def take(self, name: str, tokens: Sequence[int], hits: Sequence[int]) -> None:
        """Give ``name`` the blocks ``hits``, and new blocks for the rest of its ``tokens``."""
        table = list(hits)
        for block in table:
            self._holders[block] += 1
            if block in self._free:
                self._free.remove(block)
        for _ in range(-(-len(tokens) // self.block_size) - len(table)):
            block = self._free.pop(0)
            self._forget(block)
            self._holders[block] = 1
            table.append(block)
        self._tables[name], self._tokens[name] = table, list(tokens)

    def publish(self, name: str) -> None:
        """Make the full blocks of ``name`` findable."""
        tokens = self._tokens[name]
        for place, block in enumerate(self._tables[name][: len(tokens) // self.block_size]):
            self._found_as.setdefault(tuple(tokens[: (place + 1) * self.block_size]), block)

    def free(self, name: str) -> None:
        """Release the blocks of ``name``. Raises ``ValueError`` if it holds none."""
        if name not in self._tables:
            raise ValueError(f"{name} holds no blocks")
        for block in reversed(self._tables.pop(name)):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def write(self, name: str, start: int, end: int) -> None:
        """Write the tokens at positions ``start`` to ``end - 1``, as the forward does."""
        for position in range(start, end):
            place, offset = divmod(position, self.block_size)
            self._written[self._tables[name][place]][offset] = self._tokens[name][position]

    def read(self, name: str, end: int) -> list[int | None]:
        """Return what attention reads at positions 0 to ``end - 1``; None for a slot that was never written."""
        size = self.block_size
        places = (divmod(position, size) for position in range(end))
        return [self._written[self._tables[name][place]][offset] for place, offset in places]

    def _forget(self, block: int) -> None:
        """Remove a block that is being reused from the index: it can no longer be found."""
        for key in [key for key, other in self._found_as.items() if other == block]:
            del self._found_as[key]
        self._written[block] = [None] * self.block_size
