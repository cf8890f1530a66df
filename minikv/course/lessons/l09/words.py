"""A storage for lesson 09: in place of K and V each slot keeps a word, so that a wrong slot can be read."""

from minikv.blocks import BlockManager
from minikv.blocks.compaction import Copy


class Words:
    """Sequences of words on 12 blocks of 4 slots."""

    def __init__(self) -> None:
        self.manager = BlockManager(num_blocks=12, block_size=4)
        self.slots = ["?"] * 48
        self.ids: dict[str, int] = {}  # a token for each word

    def tokens(self, text: str) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in text.split()]

    def forward(self, name: str, text: str, start: int = 0) -> None:
        """Write the words of ``text`` from position ``start`` on, as a forward pass writes K and V."""
        mapping = self.manager.slot_mapping(name, start, len(text.split()))
        for slot, word in zip(mapping, text.split()[start:], strict=True):
            self.slots[slot] = word

    def append(self, name: str, word: str, copying: bool = True) -> tuple[Copy, ...]:
        """Append ``word``, after the copies that the manager returns."""
        copies = self.manager.append(name, self.tokens(word)[0])
        for copy in copies if copying else ():
            self.slots[copy.dst * 4 : copy.dst * 4 + 4] = self.slots[copy.src * 4 : copy.src * 4 + 4]
        self.slots[self.manager.decode_slots([name])[0]] = word
        return copies

    def read(self, name: str) -> str:
        """Walk through the block table, as attention does."""
        mapping = self.manager.slot_mapping(name, 0, self.manager.num_tokens(name))
        return " ".join(self.slots[slot] for slot in mapping)


def forked() -> Words:
    """Return six words of sequence A, with the forks B and C."""
    words = Words()
    words.manager.allocate("A", words.tokens("the cat sat on the mat"))
    words.forward("A", "the cat sat on the mat")
    words.manager.commit("A")
    words.manager.fork("A", "B")
    words.manager.fork("A", "C")
    return words
