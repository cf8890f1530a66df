"""A model in GGUF: one file, or the parts that llama-gguf-split made of it (NAME-00001-of-00003.gguf)."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minikv.errors import ConfigError, user_path
from minikv.plan.gguf.header import Header, TensorInfo, read_header

# SPLIT_PREFIX_FORMAT of llama.cpp: "%s-%05d-of-%05d.gguf".
PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class GGUFModel:
    """The headers of one model's files. ``metadata`` is the first file's; ``tensors`` are those of all files."""

    name: str
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    headers: tuple[Header, ...]

    @property
    def bytes_by_type(self) -> Counter[str]:
        """Bytes of the tensors by ggml type, most first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.type.name] += tensor.num_bytes
        return Counter(dict(counts.most_common()))

    @property
    def missing_bytes(self) -> int:
        """Bytes of the files that are not there (a download that goes on); the header is enough for a plan."""
        return sum(max(0, header.whole_bytes - header.file_bytes) for header in self.headers)


def is_gguf(source: Any) -> bool:
    """Whether ``source`` is the path of a GGUF file, by its name."""
    return isinstance(source, str | Path) and Path(source).suffix.lower() == ".gguf"


def read_gguf(source: str | Path) -> GGUFModel:
    """The model in the file at ``source``, or in all of its parts where it is one of several.

    Raises ``ConfigError`` for a file that is missing, damaged, or no part of the same model.
    """
    path = user_path(source)
    first = _header(path)
    count = first.metadata.get("split.count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError("bad_field", field="split.count", value=count, name=path.name, least=1)
    headers = [first] if count == 1 else _all_parts(path, first, count)
    metadata = headers[0].metadata
    seen: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in seen:
                values = {"what": "tensor", "name": tensor.name, "at": 0}
                raise ConfigError("gguf_repeated", path=str(header.path), **values)
            seen[tensor.name] = tensor
    promised = metadata.get("split.tensors.count", len(seen))
    if promised != len(seen):
        raise ConfigError("gguf_part_tensors", path=str(path), found=len(seen), promised=promised)
    stated = metadata.get("general.name")
    name = stated if isinstance(stated, str) and stated else path.name.removesuffix(".gguf")
    return GGUFModel(name, metadata, tuple(seen.values()), tuple(headers))


def _header(path: Path) -> Header:
    try:
        there = path.is_file()
    except (OSError, ValueError) as error:  # a name too long for the file system, a null character in it
        raise ConfigError("unreadable_file", path=str(path)[:80], reason=str(error)) from error
    if not there:
        raise ConfigError("no_file", path=str(path))
    return read_header(path)


def _all_parts(path: Path, given: Header, count: int) -> list[Header]:
    match = PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ConfigError("gguf_part_name", path=str(path), count=count)
    headers = []
    for number in range(1, count + 1):
        part = path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise ConfigError("gguf_part_missing", path=str(part), number=number, count=count)
        header = given if number == int(match["number"]) else read_header(part)
        stated = (header.metadata.get("split.no"), header.metadata.get("split.count"))
        if stated != (number - 1, count):
            raise ConfigError(
                "gguf_part_other", path=str(part), number=number, count=count, no=stated[0], of=stated[1]
            )
        headers.append(header)
    return headers
