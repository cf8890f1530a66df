"""TokenBuffers: tensors that hold the same tokens, with room for the next ones. They grow, compact and reuse slots.

Keys, values, positions and scores of a layer belong to the same tokens, so all of them move together. A token lies in
one slot of dimension 2; the heads of a tensor may hold different tokens in the same slot.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class TokenBuffers:
    """Named tensors [B, heads, room, ...]; the first ``length`` slots are in use.

    A tensor with one head beside others with several stands for all of them.
    """

    def __init__(self, empty: dict[str, Tensor]):
        """``empty``: a tensor [B, heads, 0, ...] of each name; it says dtype, device and trailing sizes."""
        self._tensors = dict(empty)
        self.length = 0

    @property
    def room(self) -> int:
        """Slots allocated."""
        return next(iter(self._tensors.values())).shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the storage behind all tensors, unused room included."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        """A view [B, heads, length, ...]: writing to it writes to the buffer."""
        return self._tensors[name][:, :, : self.length]

    def append(self, new: dict[str, Tensor], limit: int) -> None:
        """Put tokens [B, heads, n, ...] behind the last. Room grows by doubling up to ``limit`` slots, past it exactly.

        A name that ``new`` lacks gets zeros.
        """
        count = next(iter(new.values())).shape[2]
        needed = self.length + count
        if needed > self.room:
            self._allocate(min(max(needed, 2 * self.room), limit) if needed <= limit else needed)
        self.length = needed
        for name in self._tensors:
            end = self[name][:, :, needed - count :]
            end.copy_(new[name]) if name in new else end.zero_()

    def compact(self, index: Tensor, room: int) -> None:
        """Keep the slots ``index`` [B, H, keep] in that order, in new storage of ``room`` slots; the old one is freed.

        A slice would do for tokens that lie together, but it would keep the whole old storage alive.
        """
        keep = index.shape[2]
        for name, tensor in self._tensors.items():
            kept = tensor.new_empty(_with_room(tensor, max(room, keep)))
            kept[:, :, :keep] = take(tensor, index)
            self._tensors[name] = kept
        self.length = keep

    def drop(self, dropped: Tensor) -> None:
        """Free the slots ``dropped`` [B, H, n], all different: the last tokens move into those before the new end.

        No other token is touched, so an eviction of one token costs the copy of one token.
        """
        count = dropped.shape[2]
        length = self.length - count
        if count == 1:  # the last token of every row and head lies in the same slot
            for tensor in self._tensors.values():
                tensor.scatter_(2, _one_slot(tensor, dropped), tensor[:, :, length : length + 1].clone())
            self.length = length
            return
        tail = torch.arange(length, self.length, device=dropped.device).expand_as(dropped)
        # Pair the survivors of the tail with the holes before it; the rest of each list is copied onto itself.
        dead = (tail.unsqueeze(-1) == dropped.unsqueeze(-2)).any(-1)
        source = tail.gather(-1, dead.long().argsort(dim=-1, stable=True))
        inside = dropped >= length
        holes = dropped.gather(-1, inside.long().argsort(dim=-1, stable=True))
        target = torch.where(holes < length, holes, source)
        for tensor in self._tensors.values():
            rows, heads = _rows_and_heads(tensor)
            to = target[:, : tensor.shape[1]]
            tensor[rows, heads, to] = take(tensor, source)
        self.length = length

    def for_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply ``change``, which picks or repeats rows of the batch, to every tensor."""
        self._tensors = {name: change(tensor) for name, tensor in self._tensors.items()}

    def _allocate(self, room: int) -> None:
        for name, tensor in self._tensors.items():
            larger = tensor.new_empty(_with_room(tensor, room))
            larger[:, :, : self.length] = tensor[:, :, : self.length]
            self._tensors[name] = larger


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """``tensor`` [B, heads, S, ...] at ``index`` [B, H, n]: [B, heads, n, ...]; one head takes those of the first."""
    if index.shape[2] == 1:
        return tensor.gather(2, _one_slot(tensor, index))
    rows, heads = _rows_and_heads(tensor)
    return tensor[rows, heads, index[:, : tensor.shape[1]]]


def _one_slot(tensor: Tensor, index: Tensor) -> Tensor:
    """``index`` [B, H, 1] for all elements of a token: fewer operations than three lists of indices."""
    own = index if index.shape[1] == tensor.shape[1] else index[:, : tensor.shape[1]]
    if tensor.dim() == 3:
        return own
    ones = (1,) * (tensor.dim() - 3)
    return own.reshape(*own.shape, *ones).expand(*own.shape, *tensor.shape[3:])


def _rows_and_heads(tensor: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.arange(tensor.shape[0], device=tensor.device).view(-1, 1, 1)
    return rows, torch.arange(tensor.shape[1], device=tensor.device).view(1, -1, 1)


def _with_room(tensor: Tensor, room: int) -> tuple[int, ...]:
    return (*tensor.shape[:2], room, *tensor.shape[3:])
