"""Every storage that torch tensors of this process hold, counted once however many tensors read it. Lesson 16.

Python's garbage collector lists the tensors; torch gives the storage of each. Tensors without memory are left out:
meta and fake tensors, and the shell of a wrapper subclass (its inner tensors are listed themselves).
"""

import gc
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minikv.memory.retention.plain import own_dict
from minikv.memory.retention.walk import TENSOR, grad_of

GRAD = ".grad"
LARGEST_GRAPH = 200_000  # nodes of autograd graphs that are searched


@dataclass(frozen=True)
class LiveTensors:
    """Counts at one moment: live tensors, their storages, and the bytes of those storages."""

    tensors: int
    storages: int
    nbytes: int


@dataclass
class Live:
    """One storage and the Python objects on it. It keeps them alive, so it must not outlive a search.

    ``saved``: tensors with an autograd graph that saved this storage, with the name of the node that did, or ".grad".
    """

    nbytes: int
    device: torch.device
    mark: StorageWeakRef  # exact identity: while it exists, no other storage gets the address
    shape: tuple[int, ...] = ()  # of the largest tensor on it, and its dtype
    dtype: str = "-"
    objects: list[Any] = field(default_factory=list)
    saved: list[tuple[torch.Tensor, str]] = field(default_factory=list)


def live_storages(device: torch.device | None = None) -> dict[int, Live]:
    """Every storage with memory of its own (on ``device``, None: on any), by its identity."""
    found: dict[int, Live] = {}
    graphs: list[torch.Tensor] = []
    grads: list[tuple[torch.Tensor, torch.Tensor]] = []
    tensors: set[int] = set()
    is_tensor: dict[type, bool] = {}
    with torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for item in gc.get_objects():
            kind = type(item)
            wanted = is_tensor.get(kind)
            if wanted is None:
                wanted = is_tensor[kind] = issubclass(kind, torch.Tensor | torch.UntypedStorage)
            if wanted:
                _add(found, item, storages_of(item), device)
                if issubclass(kind, torch.Tensor):
                    tensors.add(id(item))
                    if TENSOR.grad_fn.__get__(item) is not None:
                        graphs.append(item)
                    if (grad := grad_of(item)) is not None:
                        grads.append((item, grad))
        for owner, grad in grads:  # held by C++: Python has no object for it until ``.grad`` is read
            if id(grad) not in tensors:
                tensors.add(id(grad))
                _add(found, grad, storages_of(grad), device)
            for storage in storages_of(grad):
                live = _live_of(found, storage, device)
                if live is not None:
                    live.saved.append((owner, GRAD))
        for owner, node, saved in _saved_by(graphs):
            for storage in storages_of(saved):
                live = _live_of(found, storage, device)
                if live is not None:
                    live.saved.append((owner, node))
                    _describe(live, saved)
    return found


def count(found: dict[int, Live]) -> LiveTensors:
    """The counts of a search."""
    tensors = sum(isinstance(item, torch.Tensor) for live in found.values() for item in live.objects)
    return LiveTensors(tensors, len(found), sum(live.nbytes for live in found.values()))


def storages_of(item: Any) -> list[torch.UntypedStorage]:
    """The storages behind a tensor: one where it is strided, two or three where it is sparse, none if it hides them."""
    try:
        if isinstance(item, torch.UntypedStorage):
            return [item]
        if item.layout is torch.strided:
            return [TENSOR.untyped_storage(item)]
        if item.layout is torch.sparse_coo:
            parts = [item._indices(), item._values()]
        elif item.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [item.crow_indices(), item.col_indices(), item.values()]
        elif item.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = [item.ccol_indices(), item.row_indices(), item.values()]
        else:
            return []
        return [part.untyped_storage() for part in parts]
    except (RuntimeError, NotImplementedError, AttributeError):
        return []


def _add(found: dict[int, Live], item: Any, storages: Iterable[Any], device: torch.device | None) -> None:
    for storage in storages:
        live = _live_of(found, storage, device)
        if live is not None:
            live.objects.append(item)
            if isinstance(item, torch.Tensor):
                _describe(live, item)


def _describe(live: Live, tensor: torch.Tensor) -> None:
    if live.dtype == "-" or tensor.numel() > math.prod(live.shape):
        live.shape, live.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _live_of(found: dict[int, Live], storage: Any, device: torch.device | None) -> Live | None:
    """The entry of ``storage``, made if it is new; None if it has no memory, or none on ``device``."""
    key = storage._cdata
    if key in found:
        return found[key]
    try:
        where, nbytes = storage.device, storage.nbytes()
        if where.type == "meta" or not nbytes or (device is not None and where != device):
            return None
        if not storage.data_ptr():
            return None
    except RuntimeError:  # the storage of a wrapper subclass: no memory behind it
        return None
    found[key] = Live(nbytes, where, StorageWeakRef(storage))
    return found[key]


def _saved_by(owners: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    """(tensor, node, saved tensor) for what the autograd graphs behind ``owners`` hold for a backward pass.

    Each saved tensor is given once, under a tensor that no other graph leads to. The raw entries are read, because
    unpacking them would run the hooks of checkpointing and offloading.
    """
    inner: set[int] = set()
    whole = list(_nodes(owners, {}))  # keeps the nodes: an id is valid while its object lives
    for _, node in whole:
        inner |= {id(following) for following, _ in node.next_functions}
    ends = [owner for owner in owners if id(TENSOR.grad_fn.__get__(owner)) not in inner]
    names: dict[type, list[str]] = {}
    for owner, node in _nodes(ends, {}):
        kind = type(node)
        if kind not in names:
            names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved")]
        for name in names[kind]:
            for tensor in _raw(node, name):
                yield owner, node.name(), tensor
        for value in own_dict(node).values():  # what a Python Function put on its context
            if issubclass(type(value), torch.Tensor):
                yield owner, node.name(), value


def _nodes(owners: list[torch.Tensor], seen: dict[int, Any]) -> Iterator[tuple[torch.Tensor, Any]]:
    for owner in owners:
        waiting = [TENSOR.grad_fn.__get__(owner)]
        while waiting and len(seen) < LARGEST_GRAPH:
            node = waiting.pop()
            if node is not None and id(node) not in seen:
                seen[id(node)] = node
                waiting += [following for following, _ in node.next_functions]
                yield owner, node


def _raw(node: Any, name: str) -> Iterator[torch.Tensor]:
    try:
        entries = getattr(node, name)
    except RuntimeError:  # freed by a backward pass
        return
    for entry in entries if isinstance(entries, tuple | list) else (entries,):
        try:
            data = entry.data
        except (RuntimeError, AttributeError):
            continue
        if isinstance(data, torch.Tensor):
            yield data
