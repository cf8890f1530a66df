"""Reads a GGUF file's header: metadata and tensor infos, never a tensor. The standard library is enough.

A header is the magic "GGUF", a version, the number of tensors and of key-value pairs, the pairs, and the tensors'
names, dimensions, types and offsets; integers are little-endian, texts have their length in front (8 bytes). The
tensors' data follow at the next multiple of ``general.alignment``. Source: ``docs/gguf.md`` of ggml and
``ggml/src/gguf.cpp`` of llama.cpp, which refuses the same damages that are refused here.

A file comes from anywhere, so nothing in it is believed: counts and lengths have bounds, and are compared with the
bytes that are left. Texts in a list (a vocabulary) are passed over, not kept.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minikv.errors import LARGEST_COUNT, ConfigError
from minikv.plan.gguf.ggml_types import GGML_TYPES, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 1 had other widths, and llama.cpp reads it no longer

# The largest real headers have some 60 keys, 50,000 tensors (experts in tensors of their own) and 40 MB of vocabulary.
MOST_PAIRS = 2**16
MOST_TENSORS = 2**20
MOST_ITEMS = 2**24  # of one list
MOST_HEADER_BYTES = 2**28
MOST_NAME = 64  # bytes of a tensor's name: GGML_MAX_NAME
MOST_KEY = 2**16 - 1
MOST_DIMENSIONS = 4
KEPT_ITEMS = 2**13  # a list that is longer belongs to a vocabulary
KEPT_TEXT = 2**16  # bytes; a longer text is a tokenizer or a template

DEFAULT_ALIGNMENT = 32
TEXT, LIST = 8, 9
# The other kinds of values, by number: their struct format.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT32 = 4


@dataclass(frozen=True)
class Passed:
    """A value that was passed over: a list of ``count`` items, or a text of ``count`` bytes."""

    count: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header names it; ``shape`` begins with the elements of a row, as ggml counts."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor's data, without padding."""
        return self.type.row_bytes(math.prod(self.shape))


@dataclass(frozen=True)
class Header:
    """One file's header. ``whole_bytes`` is the size of the whole file, ``file_bytes`` what there is of it now."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    whole_bytes: int
    file_bytes: int


def read_header(path: Path) -> Header:
    """The header of the file at ``path``; the tensors behind it may be missing (a download that goes on).

    Raises ``ConfigError`` with the place and the number for everything that no sound file has.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file, os.fstat(file.fileno()).st_size).header()
    except OSError as error:
        raise ConfigError("unreadable_file", path=str(path), reason=error.strerror or str(error)) from error


class _Reader:
    """The bytes of a header from the start on; ``at`` is how many are read or passed over."""

    def __init__(self, path: Path, file: IO[bytes], size: int):
        self._path, self._file, self._size = path, file, size
        self.at = 0

    def header(self) -> Header:
        version = self._version()
        num_tensors, num_pairs = self._count("tensors", MOST_TENSORS), self._count("keys", MOST_PAIRS)
        metadata: dict[str, Any] = {}
        alignment = DEFAULT_ALIGNMENT
        for _ in range(num_pairs):
            key = self._text("key", MOST_KEY)
            if not key or key in metadata:
                raise self._refuse("gguf_repeated", what="key", name=key)
            (kind,) = self._numbers("I")
            metadata[key] = self._value(key, kind)
            if key == "general.alignment":
                alignment = self._alignment(kind, metadata[key])
        tensors: dict[str, TensorInfo] = {}
        end = 0  # of the tensors so far, from the start of the data
        for _ in range(num_tensors):
            tensor = self._tensor()
            if tensor.name in tensors:
                raise self._refuse("gguf_repeated", what="tensor", name=tensor.name)
            if tensor.offset != end:
                values = {"name": tensor.name, "offset": tensor.offset, "expected": end}
                raise self._refuse("gguf_offset", alignment=alignment, **values)
            tensors[tensor.name] = tensor
            end = _padded(end + tensor.num_bytes, alignment)
            if end > LARGEST_COUNT:
                raise self._refuse("gguf_too_large", name=tensor.name, most=LARGEST_COUNT)
        whole = _padded(self.at, alignment) + end if tensors else self.at
        # Nothing reads the padding behind the last tensor, and some writers leave it out.
        last = next(reversed(tensors.values()), None)
        whole -= end - last.offset - last.num_bytes if last else 0
        return Header(self._path, version, metadata, tuple(tensors.values()), whole, self._size)

    def _version(self) -> int:
        magic = self._take(4, "magic")
        if magic != MAGIC:
            raise self._refuse("gguf_magic", found=magic.hex(" "), wanted=MAGIC.hex(" "))
        (version,) = self._numbers("I")
        known = " and ".join(map(str, VERSIONS))
        if version & 0xFFFF == 0:  # 3 written the other way round is 0x03000000
            raise self._refuse(
                "gguf_big_endian", version=int.from_bytes(version.to_bytes(4, "big"), "little")
            )
        if version not in VERSIONS:
            raise self._refuse("gguf_version", version=version, known=known)
        return version

    def _alignment(self, kind: int, value: Any) -> int:
        if kind != UINT32 or value < 1 or value & (value - 1):
            raise self._refuse("gguf_alignment", value=value)
        return value

    def _value(self, key: str, kind: int) -> Any:
        if kind == TEXT:
            return self._long_text(key)
        if kind != LIST:
            return self._scalars(key, kind, 1)[0]
        (inner,) = self._numbers("I")
        count = self._count(key, MOST_ITEMS)
        if inner == TEXT:
            for _ in range(count):
                self._pass(self._length(key), key)
            return Passed(count)
        return self._scalars(key, inner, count)

    def _scalars(self, key: str, kind: int, count: int) -> Any:
        """That many numbers of one kind as a tuple; ``Passed`` where there are more than a model has layers."""
        letter = SCALARS.get(kind)
        if letter is None:  # a list of lists, too: llama.cpp reads none
            raise self._refuse("gguf_kind", key=key, kind=kind)
        if count > KEPT_ITEMS:
            self._pass(count * struct.calcsize(f"<{letter}"), key)
            return Passed(count)
        return self._numbers(f"{count}{letter}", key)

    def _tensor(self) -> TensorInfo:
        name = self._text("tensor", MOST_NAME - 1)
        (num_dimensions,) = self._numbers("I")
        if num_dimensions > MOST_DIMENSIONS:
            raise self._refuse("gguf_dimensions", name=name, count=num_dimensions, most=MOST_DIMENSIONS)
        shape = self._numbers(f"{num_dimensions}q")
        if any(length < 0 for length in shape) or math.prod(shape) > LARGEST_COUNT:
            raise self._refuse("gguf_shape", name=name, shape=shape, most=LARGEST_COUNT)
        number, offset = self._numbers("IQ")
        kind = GGML_TYPES.get(number)
        if kind is None:
            raise self._refuse("gguf_tensor_type", name=name, number=number, most=max(GGML_TYPES))
        row = shape[0] if shape else 1
        if not kind.divides(row):
            raise self._refuse("gguf_row", name=name, row=row, kind=kind.name, block=kind.block_elements)
        return TensorInfo(name, shape, kind, offset)

    def _count(self, what: str, most: int) -> int:
        (count,) = self._numbers("Q", what)
        if count > most:
            raise self._refuse("gguf_count", what=what, count=count, most=most)
        return count

    def _length(self, what: str) -> int:
        (length,) = self._numbers("Q", what)
        return length

    def _text(self, what: str, most: int) -> str:
        length = self._length(what)
        if length > most:
            raise self._refuse("gguf_count", what=what, count=length, most=most)
        return self._decoded(length, what)

    def _long_text(self, key: str) -> str | Passed:
        length = self._length(key)
        if length > KEPT_TEXT:
            self._pass(length, key)
            return Passed(length)
        return self._decoded(length, key)

    def _decoded(self, length: int, what: str) -> str:
        raw = self._take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._refuse("gguf_text", what=what, byte=raw[error.start]) from None

    def _numbers(self, form: str, what: str = "header") -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self._take(struct.calcsize(form), what))

    def _take(self, length: int, what: str) -> bytes:
        self._check(length, what)
        taken = self._file.read(length)
        if len(taken) != length:  # the file has become shorter
            self._size = self.at + len(taken)
            self._check(length, what)
        self.at += length
        return taken

    def _pass(self, length: int, what: str) -> None:
        self._check(length, what)
        self._file.seek(length, os.SEEK_CUR)
        self.at += length

    def _check(self, length: int, what: str) -> None:
        if length > self._size - self.at:
            raise self._refuse("gguf_cut", what=what, length=length, size=self._size)
        if self.at + length > MOST_HEADER_BYTES:
            raise self._refuse("gguf_count", what=what, count=self.at + length, most=MOST_HEADER_BYTES)

    def _refuse(self, code: str, **values: Any) -> ConfigError:
        return ConfigError(code, path=str(self._path), at=self.at, **values)


def _padded(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment
