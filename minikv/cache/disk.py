"""The disk tier: host blocks in a safetensors file, with a checksum over every byte. Lesson 12.

A file holds, for each KV cache group, one tensor [blocks, *block_shape] for each of the group's tensors, named "0.0",
"0.1", "1.0", …; any reader of safetensors can open it. The metadata describe the cache that it belongs to. Their
SHA-256 is that of the whole file with 64 zeros in its own place. It finds accidents, not tampering: it has no key, so a
file can be changed and sealed again, and is loaded then. Trust a file's folder as you trust code.

The shapes do not distinguish two models with equal caches: put the checkpoint's name into ``notes``,
and compare what ``load_blocks`` returns.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from minikv.cache.offload import HostPool
from minikv.cache.paged import PagedKVCache
from minikv.errors import ArgumentError, MiniKVError

_FORMAT = "minikv blocks 1"
_NO_DIGEST = "0" * 64
_MARK = b'"sha256":"'


class CorruptFileError(MiniKVError):
    """A file is damaged, cut off, or no file of blocks at all: ``values["path"]``. Nothing was loaded from it."""


def save_blocks(
    path: str | Path, pool: HostPool, blocks: Sequence[Any], notes: dict[str, str] | None = None
) -> None:
    """Write the host blocks ``blocks[group]`` to ``path``; ``load_blocks`` returns ``notes``.

    The file appears whole or not at all: it is written beside ``path``, flushed, and renamed. Raises
    ``ArgumentError`` for an empty block and for a path that cannot be written.
    """
    _check_pool(pool)
    notes = {} if notes is None else notes
    if not isinstance(notes, dict) or not all(
        isinstance(text, str) for pair in notes.items() for text in pair
    ):
        raise ArgumentError("disk_notes")
    tensors = {
        f"{group}.{place}": tensor
        for group, parts in enumerate(pool.read(blocks))
        for place, tensor in enumerate(parts)
    }
    metadata = {
        "format": _FORMAT,
        "cache": describe(pool.cache),
        "notes": json.dumps(notes),
        "sha256": _NO_DIGEST,
    }
    path = _as_path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        save_file(tensors, temporary, metadata)
        _seal(temporary)
        os.replace(temporary, path)
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a path with a zero byte in it
        raise ArgumentError(
            "disk_write", path=path, reason=getattr(error, "strerror", None) or error
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def load_blocks(path: str | Path, pool: HostPool, blocks: Sequence[Any]) -> dict[str, str]:
    """Read a file of ``save_blocks`` into the host blocks ``blocks[group]``, in the order saved; return its notes.

    Raises ``CorruptFileError`` if a bit has changed, if the file was cut off, or if its header is not one of
    ``save_blocks``; ``ArgumentError`` for a file of another cache, for other numbers of blocks, and for a file that
    cannot be read. Nothing has changed then. It takes about twice the file's size of CPU memory.
    """
    _check_pool(pool)
    targets = pool.host_blocks(blocks)
    notes, rows = read_blocks(path, pool)
    for group, (host, parts) in enumerate(zip(targets, rows, strict=True)):
        if len(host) != len(parts[0]):
            raise ArgumentError(
                "disk_count", path=_as_path(path), kv_cache_group=group, saved=len(parts[0]), given=len(host)
            )
    pool.fill(blocks, rows)
    return notes


def read_blocks(path: str | Path, pool: HostPool) -> tuple[dict[str, str], list[list[Tensor]]]:
    """Return the notes of a file of ``save_blocks``, and its blocks as ``pool.fill`` takes them. Raises likewise."""
    _check_pool(pool)
    path = _as_path(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError("unreadable_file", path=path, reason=reason) from error
    metadata = _verify(path, data)
    if metadata.get("cache") != describe(pool.cache):
        raise ArgumentError("disk_other_cache", path=path, name=pool.cache.spec.name)
    try:
        tensors = load(data)
        rows = [
            [tensors[f"{group}.{place}"] for place in range(len(pool.cache.parts(group)))]
            for group in range(len(pool.cache.kv_cache_groups))
        ]
    except (
        SafetensorError,
        LookupError,
        RuntimeError,
    ) as error:
        # torch raises RuntimeError for a wrong shape or dtype.
        raise CorruptFileError("disk_not_blocks", path=path) from error
    for group, parts in enumerate(rows):
        shapes = [part.shape for part in pool.cache.parts(group)]
        due = [((*parts[0].shape[:1], *shape.block_shape), shape.dtype) for shape in shapes]
        if [(tuple(row.shape), row.dtype) for row in parts] != due:
            raise CorruptFileError("disk_not_blocks", path=path)
    return _texts(path, _fields(path, metadata.get("notes", ""))), rows


def _as_path(path: Any) -> Path:
    if not isinstance(path, str | Path):
        raise ArgumentError("disk_path", kind=type(path).__name__)
    return Path(path)


def _check_pool(pool: Any) -> None:
    if not isinstance(pool, HostPool):
        raise ArgumentError("disk_not_a_pool", kind=type(pool).__name__)


def describe(cache: PagedKVCache) -> str:
    """Return the layout that makes blocks interchangeable, as JSON: block size, codec, and every layer."""
    layers = [
        (layer.kind, layer.kv_heads, layer.k_dim, layer.v_dim, layer.window, layer.reads_layer)
        for layer in cache.spec.layers
    ]
    about = {"block_size": cache.block_size, "codec": cache.codec.name, "layers": layers}
    return json.dumps({"model_type": cache.spec.model_type, "tp": cache.spec.tp, **about})


def _seal(path: str) -> None:
    """Put the checksum into its place in the header, and make sure that every byte is on the disk."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        at = 8 + file.read(size).index(_MARK) + len(_MARK)
        file.seek(0)
        digest = sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
        file.seek(at)
        file.write(digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


def _verify(path: Path, data: bytes) -> dict[str, str]:
    """Return the metadata of a file with a right checksum."""
    size = int.from_bytes(data[:8], "little")
    at = data.find(_MARK, 8, 8 + size) + len(_MARK)
    if len(data) < 8 or at < len(_MARK) or at + len(_NO_DIGEST) > len(data):
        raise CorruptFileError("disk_not_blocks", path=path)
    stated, end = data[at : at + len(_NO_DIGEST)], at + len(_NO_DIGEST)
    whole = memoryview(data)
    digest = sha256(whole[:at])
    digest.update(_NO_DIGEST.encode())
    digest.update(whole[end:])
    if digest.hexdigest().encode() != stated:
        raise CorruptFileError("disk_checksum", path=path, size=len(data))
    metadata = _texts(path, _fields(path, data[8 : 8 + size]).get("__metadata__"))
    if metadata.get("format") != _FORMAT:
        raise CorruptFileError("disk_not_blocks", path=path)
    return metadata


def _fields(path: Path, written: str | bytes) -> dict[str, Any]:
    """Return a JSON object in ``path``."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError("disk_not_blocks", path=path) from error
    if not isinstance(found, dict):
        raise CorruptFileError("disk_not_blocks", path=path)
    return found


def _texts(path: Path, fields: Any) -> dict[str, str]:
    """Return ``fields`` if each of them is a text; raise otherwise."""
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise CorruptFileError("disk_not_blocks", path=path)
    return fields
