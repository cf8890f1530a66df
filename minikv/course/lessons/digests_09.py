"""Exercise 09.3: the chained digests by which a prefix is found again."""

from array import array
from hashlib import sha256

from minikv.blocks import child_digest, root_digest
from minikv.course.exercise import Exercise, Misconception


def block_digests(tokens: list[int], block_size: int, salt: str) -> list[bytes]:
    return _chain(_full_blocks(tokens, block_size), root_digest(salt))


def _full_blocks(tokens: list[int], block_size: int) -> list[list[int]]:
    ends = range(block_size, len(tokens) + 1, block_size)
    return [tokens[end - block_size : end] for end in ends]


def _chain(blocks: list[list[int]], parent: bytes) -> list[bytes]:
    digests = []
    for block in blocks:
        parent = child_digest(parent, array("q", block).tobytes())
        digests.append(parent)
    return digests


def in_order_of_appearance(fn, prompts: list[tuple[list[int], str]], block_size: int):
    """Equal digests get equal numbers: 0 is the first digest seen, 1 the next new one. Any hash will do."""
    numbers: dict = {}
    numbered = []
    for tokens, salt in prompts:
        digests = fn(list(tokens), block_size, salt)
        if not isinstance(digests, list | tuple):
            return digests
        numbered.append([numbers.setdefault(digest, len(numbers)) for digest in digests])
    return numbered


def digests_without_parent(tokens, block_size, salt):
    return [_chain([block], root_digest(salt))[0] for block in _full_blocks(tokens, block_size)]


def digests_by_place(tokens, block_size, salt):
    return [(salt, place, *block) for place, block in enumerate(_full_blocks(tokens, block_size))]


def digests_of_partial(tokens, block_size, salt):
    blocks = [tokens[start : start + block_size] for start in range(0, len(tokens), block_size)]
    return _chain(blocks, root_digest(salt))


def digests_without_salt(tokens, block_size, salt):
    return block_digests(tokens, block_size, "")


def digests_without_order(tokens, block_size, salt):
    return _chain([sorted(block) for block in _full_blocks(tokens, block_size)], root_digest(salt))


def digests_run_together(tokens, block_size, salt):
    parent, digests = salt, []
    for block in _full_blocks(tokens, block_size):
        parent = sha256((parent + "".join(map(str, block))).encode()).hexdigest()
        digests.append(parent)
    return digests


def digests_commuting(tokens, block_size, salt):
    parent, digests = 0, []
    for block in _full_blocks(tokens, block_size):
        parent ^= int.from_bytes(_chain([block], root_digest(salt))[0])
        digests.append(parent)
    return digests


def digests_of_single_bytes(tokens, block_size, salt):
    """A ``ValueError`` for a token above 255."""
    parent, digests = salt.encode(), []
    for block in _full_blocks(tokens, block_size):
        parent = sha256(parent + bytes(block)).digest()
        digests.append(parent)
    return digests


def draw_prompts(rng) -> list[dict]:
    """Prompts that differ in one respect only; lengths on, below and above a block multiple.

    Token ids are small where a reader may want to compare them, and as large as real ones in half of the cases.
    """
    cases = []
    for i in range(40):
        size = 2 + i % 4
        largest = 30 if i % 2 else 120_000
        base = [rng.randint(1, largest) for _ in range(size * (2 + i // 10))]
        tail = [rng.randint(1, 30) for _ in range((0, 1, size - 1)[i % 3])]
        far = rng.choice([1, 256, 65_536])  # a hash of too few bytes a token takes some of these for equal
        other = [token + far for token in base[:size]] + base[size:]
        variants = [
            other,  # another first block, then the same
            base[size : 2 * size] + base[:size] + base[2 * size :]  # two blocks change places
            if i % 8 < 4
            else base[:size] * 2 + base[size:],  # a block twice
            [*base[: size - 2], base[size - 1] + 1, base[size - 1], *base[size:]],
            [
                *base[: size - 2],
                base[size - 1],
                base[size - 1] + 1,
                *base[size:],
            ],  # the same in another order
            [1, 21, *base[2:]],
            [12, 1, *base[2:]],  # the same digits
        ]
        pick = variants[2:4] if i % 4 == 0 else variants[4:6] if i % 4 == 1 else variants[: 1 + i % 4 // 2]
        prompts = [(base + tail, "a"), *((tokens + tail, "a") for tokens in pick)]
        if i % 2:
            prompts.append((base + tail, "b"))
        cases.append({"prompts": prompts, "block_size": size})
    return cases


DIGESTS = Exercise(
    id="09.3",
    name="block_digests",
    signature=("prompts", "block_size"),
    cases=draw_prompts,
    reference=block_digests,
    drive=in_order_of_appearance,
    misconceptions=(
        Misconception("no_parent", digests_without_parent),
        Misconception("place_for_parent", digests_by_place),
        Misconception("partial_block", digests_of_partial),
        Misconception("no_salt", digests_without_salt),
        Misconception("no_order", digests_without_order),
        Misconception("run_together", digests_run_together),
        Misconception("commutes", digests_commuting),
        Misconception("single_bytes", digests_of_single_bytes),
    ),
)
