"""StateSlots: the states of recurrent layers, a slot for each running sequence, beside the blocks. Lesson 11a.

A linear-attention, Mamba or convolution layer has no K and V of each token: it keeps tensors of a fixed size for a
sequence, and each token changes them. So a sequence needs one slot however long it is, and what a slot held before a
token cannot be had back.

    slots     [num_slots + num_saved, *shape]      one tensor for each state of each layer: ``StateShape``

The last ``num_saved`` slots belong to no sequence: they keep copies of what a slot held at the border of a block.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from minikv.cache.checks import as_indices, check_pairs, check_range
from minikv.cache.codec import find_codec
from minikv.cache.pages import LayerCache, Pages
from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.memory.stats import MemoryStats
from minikv.plan.pool import KVCacheGroupSpec
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec
from minikv.units import exact_bytes

ENDLESS = 2**20  # tokens of a pool without K and V: its blocks take no memory but that of their bookkeeping


@dataclass(frozen=True)
class StateShape:
    """One tensor of a fixed size that a layer keeps for a sequence: ``name`` "conv" or "recurrent", its ``index``.

    The names of a compressed layer's are those of its buffers. ``shape`` is without the sequences' dimension, which is
    the first.
    """

    layer: int
    name: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The bytes of one sequence."""
        return prod(self.shape) * self.dtype.itemsize


class StateSlots:
    """``num_slots`` slots with the states of ``shapes`` on ``device``, and ``num_saved`` behind them for copies.

    It knows no sequences. A slot that is used again is not cleared: a sequence's first token reads nothing from it.
    """

    def __init__(
        self,
        shapes: Sequence[StateShape],
        num_slots: int,
        device: torch.device | str = "cpu",
        *,
        num_saved: int = 0,
    ):
        check_count("num_slots", num_slots)
        check_count("num_saved", num_saved, least=0)
        self.shapes, self.device = tuple(shapes), torch.device(device)
        self.num_slots, self.num_saved = num_slots, num_saved
        need, free = self.nbytes, MemoryStats.read(self.device).free
        if need > free:
            sizes = {"need": exact_bytes(need), "free": exact_bytes(free)}
            slots = num_slots + num_saved
            raise DoesNotFitError("states_no_room", slots=slots, device=str(self.device), **sizes)
        # They outlive the block in which they were made, and an inference tensor could not be written outside it.
        with torch.inference_mode(False):
            self._held = {
                shape: torch.zeros(num_slots + num_saved, *shape.shape, dtype=shape.dtype, device=self.device)
                for shape in self.shapes
            }

    @property
    def slot_bytes(self) -> int:
        """The bytes of one sequence."""
        return sum(shape.num_bytes for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """The bytes of all slots, those for copies included."""
        return self.num_slots * self.slot_bytes + self.saved_bytes

    @property
    def saved_bytes(self) -> int:
        """The bytes of the slots for copies."""
        return self.num_saved * self.slot_bytes

    def tensor(self, shape: StateShape) -> Tensor:
        """Return [num_slots + num_saved, *shape.shape]: what every slot holds of this state."""
        return self._held[shape]

    def copy(self, src: Iterable[int], dst: Iterable[int]) -> None:
        """Copy slot ``src[i]`` to slot ``dst[i]``, every state of it; all are read before any is written."""
        pairs = [as_indices(what, list(slots), self.device) for what, slots in (("src", src), ("dst", dst))]
        for what, slots in zip(("src", "dst"), pairs, strict=True):
            check_range(what, slots, 0, self.num_slots + self.num_saved - 1)
        check_pairs(*pairs)
        from_, to = (slots.to(self.device) for slots in pairs)
        for tensor in self._held.values():
            tensor[to] = tensor[from_]

    def close(self) -> None:
        """Free the memory. A second call does nothing."""
        self._held = {}


class StatePages(Pages):
    """The pages of a model without K and V, for ``max_num_seqs`` sequences: blocks without a byte in them.

    Their tables and digests find the prefixes behind which a state was saved. ``longest`` is the most tokens of a
    sequence. There are blocks for all sequences of that length, but no more than ``ENDLESS`` tokens, or one sequence,
    need.
    """

    def __init__(
        self,
        spec: CacheSpec,
        max_num_seqs: int,
        longest: int | None,
        device: torch.device | str,
        block_size: int = 16,
    ):
        if any(layer.token_bytes for layer in spec.layers):
            raise ArgumentError("states_have_tokens", name=spec.name)
        # Every sequence's last block may be a part of one.
        one = -(-(longest or ENDLESS) // block_size)
        most = max(one, ENDLESS // block_size, max_num_seqs)
        self.spec, self.block_size, self.num_blocks = spec, block_size, (min(max_num_seqs * one, most),)
        self.kv_cache_groups = (KVCacheGroupSpec(LayerSpec("none"), len(spec.layers)),)
        self.codec, self.device, self.nbytes = find_codec(spec.kv_dtype), torch.device(device), 0
        self._closed = False

    def layer(self, layer: int) -> LayerCache:
        """Raise ``ArgumentError``: no layer stores tokens."""
        raise ArgumentError("cache_no_kv", layer=layer, name=self.spec.name)

    def close(self) -> None:
        """Forget the pages; there is no memory to free."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def _tensors(self, group: int) -> Iterable[tuple[Tensor, int]]:
        return ()

    def _source(self, layer: int) -> int:
        raise ArgumentError("cache_no_kv", layer=layer, name=self.spec.name)
