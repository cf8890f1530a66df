"""GGUF headers put together byte by byte: a sound one, and each hostile one changes a part of it."""

import struct

# Five numbers of a small decoder.
SMALL = {
    "context_length": 2048,
    "embedding_length": 256,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def number(value: int, form: str = "I") -> bytes:
    return struct.pack(f"<{form}", value)


def words(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw), "Q") + raw


def pair(key: str | bytes, kind: int, raw: bytes) -> bytes:
    return words(key) + number(kind) + raw


def counted(key: str, value: int) -> bytes:
    return pair(key, 4, number(value))


def tensor(
    name: str | bytes,
    shape: tuple[int, ...] = (32,),
    kind: int = 0,
    offset: int = 0,
    dimensions: int | None = None,
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    lengths = b"".join(number(length, "q") for length in shape)
    return words(name) + number(count) + lengths + number(kind) + number(offset, "Q")


PAIRS = (
    pair("general.architecture", 8, words("llama")),
    *(counted(f"llama.{key}", value) for key, value in SMALL.items()),
)


def header(
    pairs: tuple[bytes, ...] = PAIRS,
    tensors: tuple[bytes, ...] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """A header of these parts; the counts are those of the parts unless given."""
    counts = [
        len(parts) if stated is None else stated
        for parts, stated in ((tensors, num_tensors), (pairs, num_pairs))
    ]
    start = magic + number(version) + b"".join(number(count, "Q") for count in counts)
    return start + b"".join(pairs) + b"".join(tensors)
