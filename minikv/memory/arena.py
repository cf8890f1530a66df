"""Arena: one owned allocation from which tensors are borrowed, and which knows the loans that are still alive.

    >>> import torch
    >>> arena = Arena(1024)
    >>> scores = arena.borrow("scores", (4, 8), torch.float32)
    >>> row = scores[0]
    >>> del scores
    >>> [borrower.name for borrower in arena.report().borrowers if borrower.alive]  # row still reads it
    ['scores']

An engine knows its largest step before it runs, so it can allocate all of its memory at the start and lend it out.
The memory never moves and never grows: a pointer that a captured CUDA graph holds stays valid.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError, UnknownNameError, check_count
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class Borrower:
    """One loan: ``nbytes`` bytes at ``offset`` of the arena, and whether anything still refers to them."""

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    alive: bool


@dataclass(frozen=True)
class ArenaReport:
    """The loans of an arena, in order; all sizes in bytes. used + padding + free == capacity.

    ``used`` are the bytes of every loan, ``padding`` those lost to alignment between loans. A loan that is no
    longer alive is still counted: an arena is carved once, in order, and lends no byte twice.
    """

    name: str
    device: torch.device
    capacity: int
    used: int
    padding: int
    borrowers: tuple[Borrower, ...]
    closed: bool

    @property
    def free(self) -> int:
        """Bytes after the last loan; 0 once the arena is closed."""
        return 0 if self.closed else self.capacity - self.used - self.padding

    @property
    def alive(self) -> tuple[Borrower, ...]:
        """The loans that something still refers to."""
        return tuple(borrower for borrower in self.borrowers if borrower.alive)

    def shown(self, lang: str = "en") -> Shown:
        """The sums, and a line a loan."""
        lang = pick_language(lang)
        head = "memory.arena_closed" if self.closed else "memory.arena_head"
        sizes = {"used": self.used, "padding": self.padding, "free": self.free}
        written = {name: f"{size:,}" for name, size in sizes.items()}
        title = text(head, lang, name=self.name, capacity=exact_bytes(self.capacity), **written)
        lines = []
        for loan in self.borrowers:
            lines.append(
                text(
                    "memory.arena_alive" if loan.alive else "memory.arena_gone",
                    lang,
                    name=loan.name,
                    offset=f"{loan.offset:,}",
                    nbytes=f"{loan.nbytes:,}",
                    shape=list(loan.shape),
                    dtype=str(loan.dtype).removeprefix("torch."),
                )
            )
        return Shown(title, lines=lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        lent = f"{format_bytes(self.used)} lent to {len(self.borrowers):,}, {len(self.alive):,} alive"
        left = "closed" if self.closed else f"{format_bytes(self.free)} free"
        return one_line(
            "ArenaReport", self.name, f"{format_bytes(self.capacity)} on {self.device}", lent, left
        )


# The largest alignment of a loan; CUDA's caching allocator aligns every allocation to it.
MAX_ALIGN = 512

_DTYPE_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128"
)
DTYPES = {name: getattr(torch, name) for name in _DTYPE_NAMES.split() if hasattr(torch, name)}


class ArenaFullError(MiniKVError):
    """A loan is larger than the rest of the arena; ``values`` holds asked, padding, free, short, capacity."""


class ArenaInUseError(MiniKVError):
    """The arena cannot be closed: ``values["names"]`` are the borrowers that are still alive."""


class ArenaClosedError(MiniKVError):
    """The arena was closed; nothing can be borrowed from it any more."""


class Arena:
    """``num_bytes`` of memory on ``device``, allocated once and lent out as tensors.

    The memory is not set to zero. Every loan starts at a multiple of its alignment, counted both from the
    arena's start and as an address: the start itself is a multiple of ``MAX_ALIGN`` (512). CUDA gives such an
    address; elsewhere up to 512 bytes more than ``num_bytes`` are allocated and not lent.

    Raises ``ArgumentError`` for a size or a device that cannot be used, ``DoesNotFitError`` where the device
    has not that much memory.
    """

    def __init__(self, num_bytes: int, device: str | torch.device = "cpu", *, name: str = "arena"):
        check_count("num_bytes", num_bytes)
        _check_name(name)
        self.name = name
        self.device = find_device(device)
        self.capacity = num_bytes
        self._storage: torch.UntypedStorage | None
        self._storage, self._start = _allocate(num_bytes, self.device, name)
        self.device = self._storage.device  # "cuda" has become "cuda:0"
        self._end = 0  # bytes carved so far, padding included
        self._loans: list[tuple[Borrower, list[Callable[[], bool]]]] = []  # alive where a function says so

    def borrow(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, *, align: int = 256
    ) -> torch.Tensor:
        """The next ``shape`` elements of ``dtype`` as a contiguous tensor, uninitialised.

        ``align`` is a power of two of at most 512 bytes. An alignment below the dtype's item size counts as the item
        size, since a GPU cannot read elements at other addresses. The tensor has a storage of its own (``ownership``
        calls it borrowed), which cannot be resized and keeps the arena's memory alive.

        Raises ``ArenaFullError`` with the shortage, ``ArenaClosedError``, or ``ArgumentError`` for a shape with a zero,
        a dtype or an alignment that cannot be used, and for a name with a tensor that is still alive. An error changes
        nothing.
        """
        if self._storage is None:
            raise ArenaClosedError("arena_closed", name=self.name)
        _check_name(name)
        nbytes = _bytes_of(shape, dtype)
        offset = _aligned(self._end, dtype, align)
        if any(loan.name == name and _any_alive(watches) for loan, watches in self._loans):
            raise ArgumentError("arena_name_taken", arena=self.name, name=name)
        if offset + nbytes > self.capacity:
            raise ArenaFullError(
                "arena_full",
                arena=self.name,
                name=name,
                asked=nbytes,
                padding=offset - self._end,
                free=self.capacity - self._end,
                short=offset + nbytes - self.capacity,
                capacity=self.capacity,
            )
        loan = Borrower(name, offset, nbytes, tuple(shape), dtype, True)
        tensor, watch = self._lend(self._storage, loan)
        self._loans.append((loan, [watch]))
        self._end = offset + nbytes
        return tensor

    def renew(self, name: str) -> torch.Tensor:
        """Another tensor on the last loan of ``name``: the same bytes with the same contents.

        So a loan to which nothing refers any more is not lost. A tensor that is still alive reads the same
        memory. Raises ``ArenaClosedError``, or ``UnknownNameError`` if nothing was borrowed as ``name``.
        """
        if self._storage is None:
            raise ArenaClosedError("arena_closed", name=self.name)
        for loan, watches in reversed(self._loans):
            if loan.name == name:
                tensor, watch = self._lend(self._storage, loan)
                watches[:] = [*(old for old in watches if old()), watch]
                return tensor
        known = ", ".join(loan.name for loan, _ in self._loans)
        raise UnknownNameError("unknown_choice", what="name", value=name, known=known)

    def _lend(self, storage: torch.UntypedStorage, loan: Borrower) -> tuple[torch.Tensor, Callable[[], bool]]:
        """A tensor on the loan's bytes, and a function that says whether anything refers to it."""
        # A slice of a storage is a storage. It keeps the whole alive, and every tensor, view and numpy array that
        # refers to it keeps it alive. So watching the slice is enough.
        start = self._start + loan.offset
        piece = storage[start : start + loan.nbytes]
        tensor = torch.empty(0, dtype=loan.dtype, device=self.device).set_(piece, 0, loan.shape)
        return tensor, _watch(piece)

    def report(self) -> ArenaReport:
        """All loans in order, and which of them are still alive."""
        loans = [replace(loan, alive=_any_alive(watches)) for loan, watches in self._loans]
        used = sum(loan.nbytes for loan in loans)
        closed = self._storage is None
        return ArenaReport(
            self.name, self.device, self.capacity, used, self._end - used, tuple(loans), closed
        )

    def close(self) -> None:
        """Give the memory back. Closing again does nothing.

        A loan is alive as long as anything that torch counts refers to its bytes: the tensor, a view or a
        detached alias of it (taken in ``inference_mode`` too), a numpy array or DLPack capsule made from it, a
        graph that saved it for a backward. Torch cannot see a bare address (``data_ptr()`` in a captured CUDA
        graph, ctypes or another library), nor a kernel that is still running: synchronize first.

        Raises ``ArenaInUseError`` naming the borrowers that are alive; the arena stays open then.
        """
        alive = self.report().alive
        if alive:
            names = tuple(loan.name for loan in alive)
            total = sum(loan.nbytes for loan in alive)
            raise ArenaInUseError(
                "arena_in_use", arena=self.name, names=", ".join(names), count=len(alive), nbytes=total
            )
        self._storage = None

    @property
    def closed(self) -> bool:
        """Whether ``close`` has given the memory back."""
        return self._storage is None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{format_bytes(self.capacity - self._end)} free"
        return f"Arena({self.name!r}, {format_bytes(self.capacity)} on {self.device}, {state})"


def arena_bytes(requests: Iterable[tuple[Sequence[int], torch.dtype]], align: int = 256) -> int:
    """Bytes that an arena needs to lend ``requests`` ((shape, dtype), ...) in this order: exactly enough.

    Padding comes before a loan, so none follows the last one. Raises as ``borrow`` does.
    """
    end = 0
    for shape, dtype in requests:
        nbytes = _bytes_of(shape, dtype)
        end = _aligned(end, dtype, align) + nbytes
    return end


def _any_alive(watches: list[Callable[[], bool]]) -> bool:
    return any(watch() for watch in watches)


def _watch(storage: torch.UntypedStorage) -> Callable[[], bool]:
    """A function that says whether anything still refers to ``storage``, without itself keeping it alive.

    torch counts the references to a storage and has no public way to read the count without holding one.
    torch.multiprocessing and the CUDA graph trees use ``StorageWeakRef``. The name is stable but undocumented,
    so it is used here and nowhere else. Where it is missing, a Python weak reference to the storage does the
    same: since torch 2.1 the Python object lives exactly as long as the storage.
    """
    try:
        from torch.multiprocessing.reductions import StorageWeakRef
    except ImportError:
        import weakref

        reference = weakref.ref(storage)
        return lambda: reference() is not None
    watched = StorageWeakRef(storage)
    return lambda: not watched.expired()


def _allocate(num_bytes: int, device: torch.device, name: str) -> tuple[torch.UntypedStorage, int]:
    """A storage of at least ``num_bytes`` bytes, and the offset in it of its first multiple of ``MAX_ALIGN``."""
    spares = (0, MAX_ALIGN) if device.type == "cuda" else (MAX_ALIGN,)
    for spare in spares:
        try:
            memory = torch.empty(num_bytes + spare, dtype=torch.uint8, device=device)
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            raise DoesNotFitError(
                "arena_no_memory", arena=name, nbytes=exact_bytes(num_bytes), device=device
            ) from error
        storage = memory.untyped_storage()
        start = -storage.data_ptr() % MAX_ALIGN
        if start <= spare:
            break
    return storage, start


def find_device(device: Any) -> torch.device:
    """The device, if it can hold tensors; else ``ArgumentError``. "meta" has no memory."""
    try:
        found = torch.device(device)
        if found.type == "meta":
            raise RuntimeError("meta")
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError):
        raise ArgumentError("arena_device", device=device) from None
    return found


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ArgumentError("arena_bad_name", name=name)


def _bytes_of(shape: Any, dtype: Any) -> int:
    """Bytes of ``shape`` elements of ``dtype``; () is one element."""
    if not isinstance(shape, list | tuple):  # torch.Size is a tuple
        raise ArgumentError("arena_bad_shape", shape=shape)
    for length in shape:
        check_count("shape", length)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES.values():
        raise ArgumentError("unknown_choice", what="dtype", value=dtype, known=", ".join(DTYPES))
    nbytes = math.prod(shape) * dtype.itemsize
    check_count("nbytes", nbytes)
    return nbytes


def _aligned(end: int, dtype: torch.dtype, align: Any) -> int:
    """The first offset from ``end`` on that is a multiple of ``align`` and of the dtype's item size."""
    check_count("align", align)
    if align > MAX_ALIGN or align & (align - 1):
        raise ArgumentError("arena_bad_align", align=align, most=MAX_ALIGN)
    step = max(align, dtype.itemsize)
    return -(-end // step) * step
