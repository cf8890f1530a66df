"""The owner of the memory that a tensor reads, and how much more than that the tensor keeps alive.

    >>> import torch
    >>> whole = torch.zeros(1000)
    >>> tenth = ownership(whole[:100])
    >>> tenth.view, tenth.nbytes, tenth.storage_bytes, tenth.keeps_alive_bytes
    (True, 400, 4000, 3600)

A torch tensor is a small description (shape, stride, offset, dtype) of a storage, which holds the bytes. A storage
counts its references: every tensor on it holds one, and the whole storage is freed with the last.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.errors import ArgumentError
from minikv.extras import engine_needed
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ownership:
    """What torch knows of one tensor's memory. Sizes and ``offset`` in bytes, ``stride`` in elements.

    ``view``: torch recorded the tensor as a view of another, or it does not cover its storage from the first byte
    to the last. ``borrowed``: torch cannot resize the memory of the storage; it belongs to a numpy array, a buffer,
    another library or an ``Arena``. ``owner``: neither. In C++ the owner alone frees. In torch the last reference
    frees, so "owner" means that the tensor covers all of its storage; other tensors may use it too.

    ``touched_bytes`` counts each byte that an element lies on once: less than ``nbytes`` where elements share bytes
    (``expand`` has stride 0). ``keeps_alive_bytes`` is the rest of the storage, which lives as long as the tensor.

    Torch does not see, so neither does this class:
    - a full-size alias by ``detach()``, ``.data`` or made in ``inference_mode``: torch does not record it as a view,
      so it looks like an owner. ``share_storage`` finds it;
    - what a borrowed storage itself keeps alive: ``torch.from_numpy(array[:10])`` holds all of ``array``;
    - memory that its owner frees or moves although torch still reads it: a C++ library, or a ``bytearray`` that
      grows behind ``torch.frombuffer``, which holds the object and does not lock its buffer (numpy does).
    """

    view: bool
    borrowed: bool
    data_ptr: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    numel: int
    dtype: "torch.dtype"
    device: "torch.device"
    nbytes: int
    touched_bytes: int
    storage_bytes: int
    contiguous: bool

    @property
    def owner(self) -> bool:
        """Whether the tensor covers the whole of a storage that is torch's own."""
        return not (self.view or self.borrowed)

    @property
    def keeps_alive_bytes(self) -> int:
        """Bytes of the storage that no element of this tensor lies on, and that live as long as it does."""
        return self.storage_bytes - self.touched_bytes

    @property
    def kind(self) -> str:
        """ "view", "borrowed" or "owner"."""
        return "view" if self.view else "borrowed" if self.borrowed else "owner"

    def shown(self, lang: str = "en") -> Shown:
        """One line: the owner of the memory, the part that the tensor reads, and what else is kept alive."""
        said = text(
            f"memory.{self.kind}",
            pick_language(lang),
            nbytes=f"{self.touched_bytes:,}",
            offset=f"{self.offset:,}",
            storage=f"{self.storage_bytes:,}",
            beside=f"{self.keeps_alive_bytes:,}",
        )
        return Shown(said)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        kept = f"keeps {self.keeps_alive_bytes:,} B alive beside its own"
        where = f"{self.touched_bytes:,} B from byte {self.offset:,} of {self.storage_bytes:,} B"
        return one_line("Ownership", self.kind, where, kept)


def ownership(tensor: "torch.Tensor") -> Ownership:
    """Describe the memory of a dense tensor; nothing is copied and nothing is kept.

    Elements that overlap irregularly (``as_strided``, ``unfold``) are counted with one bit for each element between
    the first and the last.

    Raises ``ArgumentError`` for what is no tensor, for tensors without one plain storage (sparse, nested, meta and
    fake tensors), and for one that reaches beyond its storage: the storage was resized through another tensor, or
    ``resize_`` of the tensor failed halfway, as it does on borrowed memory.
    """
    storage = _storage_of(tensor)
    storage_bytes = storage.nbytes()
    offset = tensor.storage_offset() * tensor.element_size()
    end = _end_of(tensor)
    if end > storage_bytes:
        raise ArgumentError("beyond_storage", shape=list(tensor.shape), end=end, storage=storage_bytes)
    touched = _distinct_elements(tuple(tensor.shape), tensor.stride()) * tensor.element_size()
    return Ownership(
        view=tensor._is_view() or offset > 0 or touched < storage_bytes,
        borrowed=not storage.resizable(),
        data_ptr=tensor.data_ptr(),
        offset=offset,
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        numel=tensor.numel(),
        dtype=tensor.dtype,
        device=tensor.device,
        nbytes=tensor.numel() * tensor.element_size(),
        touched_bytes=touched,
        storage_bytes=storage_bytes,
        contiguous=tensor.is_contiguous(),
    )


def share_storage(first: "torch.Tensor", second: "torch.Tensor") -> bool:
    """Whether two tensors lie on the same storage, all of which lives as long as either of them.

    Sharing a storage is not overlapping: ``t[:5]`` and ``t[5:]`` share one and have no element in common. Storages
    are told apart by device and first address, so two storages that torch made over one numpy array count as the
    same. Empty storages have no address and are never shared. Raises as ``ownership`` does.
    """
    one, other = _storage_of(first), _storage_of(second)
    return one.device == other.device and one.data_ptr() == other.data_ptr() != 0


def _storage_of(tensor: Any) -> "torch.UntypedStorage":
    """The storage of a tensor that has exactly one, with real memory behind it."""
    with engine_needed():
        import torch

    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError("not_a_tensor", kind=type(tensor).__name__)
    kind = str(tensor.layout).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise ArgumentError("no_plain_storage", kind="nested" if tensor.is_nested else kind)
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        raise ArgumentError("no_plain_storage", kind=type(tensor).__name__) from None
    if storage.device.type == "meta":
        raise ArgumentError("no_plain_storage", kind="meta")
    return storage


def _end_of(tensor: "torch.Tensor") -> int:
    """The offset in the storage just after the tensor's last element; 0 for a tensor without elements."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((length - 1) * step for length, step in steps)
    return (last + 1) * tensor.element_size()


def _distinct_elements(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """The number of different places in the storage that elements of this shape and stride lie on."""
    if 0 in shape:
        return 0
    dims = sorted((step, length) for length, step in zip(shape, stride, strict=True) if length > 1 and step)
    reach = 1  # from the first element to the last over the dimensions so far, both counted
    count = 1
    for step, length in dims:
        if step < reach:
            return _overlapping_elements(dims)
        reach += step * (length - 1)
        count *= length
    return count


def _overlapping_elements(dims: list[tuple[int, int]]) -> int:
    """The size of the set {sum of i * step, i < length} over all dimensions, as the bits of one integer."""
    places = 1
    for step, length in dims:
        done = 1  # shifts by 0 ... done - 1 steps are in; each round at most doubles them
        while done < length:
            more = min(done, length - done)
            places |= places << step * more
            done += more
    return places.bit_count()
