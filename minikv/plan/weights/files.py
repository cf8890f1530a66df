"""Weight bytes from the files themselves: the safetensors index, or the header of each file.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, a JSON object
``{tensor: {"dtype", "shape", "data_offsets": [begin, end]}}``. Only headers are read.
"""

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minikv.errors import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SHARD = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
# The same weights in another layout, and weights that are added to a model's own.
NOT_THE_MODEL = ("consolidated", "adapter")
# The format's own limit; a longer header is a broken length.
MAX_HEADER_BYTES = 100 * 10**6


@dataclass(frozen=True)
class Checkpoint:
    """``num_bytes`` of all tensors; ``files`` are the counted ones, named only where there was a choice.

    There is one if the folder has other safetensors files, or files with names that transformers does not write.
    """

    num_bytes: int
    files: tuple[str, ...] = ()


def folder_of(source: Any) -> Path | None:
    """The model folder that ``source`` names (the folder, or the config.json in it); None for anything else."""
    if not isinstance(source, str | Path):
        return None
    path = Path(source)
    if path.name == "config.json" and path.is_file():
        return path.parent
    return path if path.is_dir() else None


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in ``folder``; None where there is neither an index nor a file of the model's weights.

    Raises ``ConfigError`` for an index or a header that cannot be read, for an index without a total if files
    are missing, and for an incomplete set of shards without an index.
    """
    index = folder / INDEX
    if index.is_file():
        stated = _index_total(index)
        if stated is not None:
            return Checkpoint(stated)
        names = _index_files(index)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConfigError("index_without_total", path=str(index), missing=missing[0])
        return Checkpoint(sum(header_bytes(folder / name) for name in names))
    present = sorted(path.name for path in folder.glob("*.safetensors"))
    counted = _model_files(folder, present)
    if not counted:
        return None
    usual = counted == [SINGLE_FILE] or all(SHARD.fullmatch(name) for name in counted)
    files = () if usual and counted == present else tuple(counted)
    return Checkpoint(sum(header_bytes(folder / name) for name in counted), files)


def _model_files(folder: Path, present: list[str]) -> list[str]:
    """The files that hold the model once: those with names of transformers, else all that may be the model's."""
    if SINGLE_FILE in present:
        return [SINGLE_FILE]
    shards = {name: match for name in present if (match := SHARD.fullmatch(name))}
    if not shards:
        return [name for name in present if not name.startswith(NOT_THE_MODEL)]
    numbers = sorted(int(match[1]) for match in shards.values())
    totals = {int(match[2]) for match in shards.values()}
    if numbers != list(range(1, len(shards) + 1)) or totals != {len(shards)}:
        raise ConfigError("shards_incomplete", path=str(folder), found=len(shards), total=max(totals))
    return list(shards)


def header_bytes(path: Path) -> int:
    """Bytes of all tensors in one safetensors file, from its header. Raises ``ConfigError`` where it is corrupt."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else None
            if length is None or length > min(size - 8, MAX_HEADER_BYTES):
                raise _corrupt(path, f"its header would have {length} of the file's {size} bytes")
            header = _parse(path, file.read(length))
    except OSError as error:
        raise ConfigError("unreadable_file", path=str(path), reason=str(error)) from error
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            total += _tensor_bytes(path, name, tensor, size - 8 - length)
    return total


def _tensor_bytes(path: Path, name: str, tensor: Any, data_bytes: int) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not (
        isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets)
    ):
        raise _corrupt(path, f"tensor {name!r} has no data_offsets")
    begin, end = offsets
    if not 0 <= begin <= end <= data_bytes:
        raise _corrupt(path, f"tensor {name!r} lies at bytes {begin} to {end} of {data_bytes}")
    return end - begin


def _index_total(path: Path) -> int | None:
    metadata = _load(path).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return None
    # Some tools write the total as 1.6e10.
    whole = int(total) if isinstance(total, float) and total.is_integer() else total
    if type(whole) is not int or whole <= 0:
        raise _corrupt(path, f"metadata.total_size is {total!r}")
    return whole


def _index_files(path: Path) -> list[str]:
    weight_map = _load(path).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    # A name with a folder in it could point anywhere; the format has only file names.
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise _corrupt(path, "it has no metadata.total_size and no weight_map of file names")
    return sorted(set(names))


def _load(path: Path) -> dict[str, Any]:
    try:
        return _parse(path, path.read_bytes())
    except OSError as error:
        raise ConfigError("unreadable_file", path=str(path), reason=str(error)) from error


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(raw.decode("utf-8"))
    # RecursionError: thousands of nested brackets. ValueError: no UTF-8, no JSON, or an int of 5,000 digits.
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise _corrupt(path, f"a JSON {type(loaded).__name__} instead of an object")
    return loaded


def _corrupt(path: Path, reason: str) -> ConfigError:
    return ConfigError("corrupt_weights_file", path=str(path), reason=reason)
