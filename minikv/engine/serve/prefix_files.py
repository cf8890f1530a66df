"""Prefix blocks kept between runs: a file in a folder, for one model with one layout of its cache. Lesson 12.

    <folder>/prefixes-<identity>.safetensors

K and V depend on every weight, so the identity is a SHA-256 over all of them, the config, the layout of the blocks and
the version of this format; two models of one shape never share a file. The blocks' digests begin with the salt, so only
prompts with the same salt share blocks. The file holds the token ids of the prompts, as they lie in the blocks.

A file that does not name this model, or has a wrong checksum, is not used, with a warning; it stays as it is. A file is
written beside the old one and then replaces it, so several processes may use one folder: the last one to close leaves
its own.

The folder is trusted like code. The checksum finds accidents, not tampering: a file that was changed and sealed again
is loaded, and then other tokens come out. A folder that is made here is open to its owner alone (mode 0700).
"""

import json
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from minikv.blocks import BlockManager
from minikv.blocks.prefix import TOKEN_BYTES
from minikv.cache.disk import CorruptFileError, describe, read_blocks, save_blocks
from minikv.cache.offload import HostPool
from minikv.cache.sharded import local
from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError
from minikv.i18n import text
from minikv.memory.stats import MemoryStats
from minikv.models.cpu_modules import plain_weight
from minikv.units import MIB, exact_bytes

FORMAT = "minikv prefixes 1"
_PIECE = 64 * MIB  # bytes of a weight hashed at a time


class PrefixFile:
    """The file of ``model`` and the cache of ``pool`` in ``folder``, which is made if it does not exist.

    Making it reads every weight once. Raises ``ArgumentError`` for an invalid folder.
    """

    def __init__(self, folder: str | Path, model: torch.nn.Module, pool: HostPool):
        folder = Path(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError("prefix_dir_unusable", path=folder, reason=reason) from error
        self.identity = identity_of(model, describe(pool.cache))
        self.path = folder / f"prefixes-{self.identity[:32]}.safetensors"
        self._pool = pool
        self._usable = True

    def load(self, manager: BlockManager) -> int:
        """Load the file into the host blocks of ``manager``; return the number of blocks, of all groups.

        If there are more blocks than room, the last used ones are loaded. A file that cannot be used is a warning.
        """
        try:
            if not self.path.exists():
                return 0
            _check_room(2 * self.path.stat().st_size)  # its bytes, and the tensors made of them
            notes, rows = read_blocks(self.path, self._pool)
            contents = self._contents(notes, [len(parts[0]) for parts in rows])
        except (MiniKVError, MemoryError, OSError) as error:  # OSError: a folder without access
            self._usable = False
            warnings.warn(
                text("engine.prefixes_refused", "en", reason=str(error) or type(error).__name__), stacklevel=6
            )
            return 0
        starts = [
            max(0, len(of_group) - most)
            for of_group, most in zip(contents, self._pool.num_blocks, strict=True)
        ]
        last = [of_group[start:] for of_group, start in zip(contents, starts, strict=True)]
        planned = manager.plan_load(last)
        arrived = False
        try:
            places = [[at for at, block in enumerate(of_group) if block is not None] for of_group in planned]
            blocks = [[block for block in of_group if block is not None] for of_group in planned]
            chosen = [
                [part[[start + at for at in of_group]] for part in parts]
                for parts, of_group, start in zip(rows, places, starts, strict=True)
            ]
            self._pool.fill(blocks, chosen)
            arrived = True
        finally:
            manager.complete_transfers(arrived)
        return sum(map(len, blocks))

    def save(self, manager: BlockManager) -> None:
        """Write every prefix block that ``manager`` can find, on the device and the host; an error is a warning.

        No sequence may be left. The device's blocks are copied through the host's, as many as there is room for.
        """
        if not self._usable:
            return
        try:
            self._write(manager)
        except (MiniKVError, RuntimeError, MemoryError) as error:  # RuntimeError: of CUDA
            warnings.warn(
                text("engine.prefixes_not_saved", "en", reason=str(error) or type(error).__name__),
                stacklevel=5,
            )

    def _write(self, manager: BlockManager) -> None:
        swap, arrived = manager.plan_save_cached(), False
        try:
            for pairs in self._pool.pieces(swap.pairs):
                self._pool.swap_out(pairs).synchronize()
            arrived = True
        finally:
            manager.complete_transfers(arrived)
        contents = [pool.cached() for pool in manager.host_pools]
        if any(contents):
            cache = self._pool.cache
            sizes = [group.block_bytes(cache.block_size) for group in cache.kv_cache_groups]
            _check_room(sum(len(of_group) * size for of_group, size in zip(contents, sizes, strict=True)))
            told = [[(each.digest.hex(), each.tokens.hex()) for each in of_group] for of_group in contents]
            notes = {"format": FORMAT, "identity": self.identity, "blocks": json.dumps(told)}
            save_blocks(
                self.path, self._pool, [[each.block for each in of_group] for of_group in contents], notes
            )

    def _contents(self, notes: dict[str, str], counts: list[int]) -> list[list[tuple[bytes, bytes]]]:
        """Return (digest, tokens) of each block of each group."""
        if (notes.get("format"), notes.get("identity")) != (FORMAT, self.identity):
            raise ArgumentError("prefix_file_foreign", path=self.path)
        try:
            found = [
                [(bytes.fromhex(digest), bytes.fromhex(tokens)) for digest, tokens in of_group]
                for of_group in json.loads(notes["blocks"])
            ]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptFileError("disk_not_blocks", path=self.path) from error
        sizes = {(len(digest), len(tokens)) for of_group in found for digest, tokens in of_group}
        due = {(sha256().digest_size, self._pool.cache.block_size * TOKEN_BYTES)}
        if [len(of_group) for of_group in found] != counts or not sizes <= due:
            raise CorruptFileError("disk_not_blocks", path=self.path)
        return found


def _check_room(need: int) -> None:
    """Raise ``DoesNotFitError`` unless a file and the host pool fit beside each other."""
    free = MemoryStats.read("cpu").free  # Linux promises more than it has, and then ends the process
    if need > free:
        raise DoesNotFitError("prefixes_no_room", need=exact_bytes(need), free=exact_bytes(free))


def identity_of(model: torch.nn.Module, layout: str) -> str:
    """Return 64 hex digits that identify a model's weights and config, and a layout of its K and V."""
    digest = sha256(f"{FORMAT}\n{layout}\n".encode())
    config: dict[str, Any] = {
        name: value for name, value in model.config.to_dict().items() if not name.startswith("_")
    }
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        tensor = local(plain_weight(tensor).detach())  # another LLM may have packed it
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), _PIECE):
            digest.update(flat[start : start + _PIECE].cpu().numpy())
    return digest.hexdigest()
