"""Exercise 09.3: `block_digest` of minikv.nano, the chained digest by which a prefix is found again."""

from hashlib import sha256

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.block_manager import block_digest

NOT_BYTES = "not bytes"  # what the check records for a digest of another type


def in_order_of_appearance(fn, prompts: list[tuple[list[int], str]], block_size: int):
    """Chain the digests of the full blocks of each prompt, beginning with its salt. Equal digests get equal numbers.

    The first digest is 0 and each new one gets the next number, so any digest function passes.
    """
    numbers: dict = {}
    numbered = []
    for tokens, salt in prompts:
        previous, row = salt.encode(), []
        for end in range(block_size, len(tokens) + 1, block_size):
            previous = fn(previous, tokens[end - block_size : end])
            if previous is None or previous is ...:
                return previous
            if not isinstance(previous, bytes):
                return NOT_BYTES
            row.append(numbers.setdefault(previous, len(numbers)))
        numbered.append(row)
    return numbered


def digest_without_previous(previous, tokens):
    return block_digest(b"", tokens)


def digest_without_salt(previous, tokens):
    """Ignores ``previous`` unless it is the digest of a block, so the salt has no effect."""
    return block_digest(previous if len(previous) == 32 else b"", tokens)


def digest_without_order(previous, tokens):
    return block_digest(previous, sorted(tokens))


def digest_of_the_last_token(previous, tokens):
    return block_digest(previous, tokens[-1:])


def digest_run_together(previous, tokens):
    return sha256(previous + "".join(map(str, tokens)).encode()).digest()


def digest_commuting(previous, tokens):
    mine = int.from_bytes(block_digest(b"", tokens), "big")
    before = int.from_bytes(previous, "big") % 2**256
    return (mine ^ before).to_bytes(32, "big")


def digest_of_single_bytes(previous, tokens):
    """Raises ``ValueError`` for a token above 255."""
    return sha256(previous + bytes(tokens)).digest()


def digest_of_low_bytes(previous, tokens):
    return sha256(previous + bytes(token % 256 for token in tokens)).digest()


def digest_as_text(previous, tokens):
    return block_digest(previous, tokens).hex()


def draw_prompts(rng) -> list[dict]:
    """Draw prompts that differ in one respect only; lengths on, below and above a block multiple.

    Token ids are small in half of the cases (easy to compare), and as large as real ones in the others.
    """
    cases = []
    for i in range(40):
        size = 2 + i % 4
        largest = 30 if i % 2 else 120_000
        base = [rng.randint(1, largest) for _ in range(size * (2 + i // 10))]
        tail = [rng.randint(1, 30) for _ in range((0, 1, size - 1)[i % 3])]
        # A hash that reads too few bytes of a token takes some of these prompts for equal.
        far = rng.choice([1, 256, 65_536])
        other = [token + far for token in base[:size]] + base[size:]
        # Two blocks change places, or one occurs twice; then two tokens of one block change places.
        variants = [
            other,  # another first block, then the same ones
            base[size : 2 * size] + base[:size] + base[2 * size :]
            if i % 8 < 4
            else base[:size] * 2 + base[size:],
            [*base[: size - 2], base[size - 1] + 1, base[size - 1], *base[size:]],
            [
                *base[: size - 2],
                base[size - 1],
                base[size - 1] + 1,
                *base[size:],
            ],
            [1, 21, *base[2:]],
            [12, 1, *base[2:]],  # [1, 21] and [12, 1] have the same digits
        ]
        pick = variants[2:4] if i % 4 == 0 else variants[4:6] if i % 4 == 1 else variants[: 1 + i % 4 // 2]
        prompts = [(base + tail, ""), *((tokens + tail, "") for tokens in pick)]
        if i % 2:
            prompts.append((base + tail, "b"))
        cases.append({"prompts": prompts, "block_size": size})
    return cases


DIGEST = Exercise(
    id="09.3",
    minutes=4,
    name="block_digest",
    signature=("prompts", "block_size"),
    cases=draw_prompts,
    reference=block_digest,
    drive=in_order_of_appearance,
    misconceptions=(
        Misconception("no_previous", digest_without_previous),
        Misconception("no_salt", digest_without_salt),
        Misconception("no_order", digest_without_order),
        Misconception("last_token", digest_of_the_last_token),
        Misconception("run_together", digest_run_together),
        Misconception("commutes", digest_commuting),
        Misconception("single_bytes", digest_of_single_bytes),
        Misconception("low_bytes", digest_of_low_bytes),
        Misconception("not_bytes", digest_as_text),
    ),
)
