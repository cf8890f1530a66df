"""PagedKV: the cached tokens of B sequences, the input of every attention kernel. Lesson 10."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PagedKV:
    """K and V of one layer in N blocks, and the blocks of B sequences. All tensors are on one device.

    ``k`` [N, block_size, Hkv, Dk] and ``v`` [N, block_size, Hkv, Dv]: views allowed, the last dimension contiguous;
    float16, bfloat16, float32, float8 or int8. In a latent layer (MLA) ``k`` [N, block_size, 1, R] is the latent and
    ``v`` [N, block_size, 1, P] the rope key.
    ``block_tables`` [B, W]: the blocks of each sequence from its first token on. Entries behind a window and past the
    length are not read, and may be -1. ``lengths`` [B], in tokens, the new ones included. Both are int32 or int64.
    ``k_scale`` and ``v_scale`` [N, block_size, Hkv] float32: the scale of each token and head, which int8 needs; None
    where elements are stored without one.
    ``memo`` holds what kernels derive from the tables and lengths alone, and the memory that they copy tiles into. The
    layers of a step share one.

    Nothing is copied, and nothing is checked until a public kernel is called with it.
    """

    k: Tensor
    v: Tensor
    block_tables: Tensor
    lengths: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Any, make: Callable[[], Any], *given: Tensor) -> Any:
        """Return ``make()``, or its earlier result for this ``key`` and the same tables, lengths and ``given``.

        The same means these very tensors, with nothing written to them since.
        """
        tensors = (self.block_tables, self.lengths, *given)
        if any(tensor.is_inference() for tensor in tensors):
            return make()  # it is not recorded when something was written to these
        versions = [tensor._version for tensor in tensors]
        known, at, found = self.memo.get(key, ((), [], None))
        if at != versions or any(old is not new for old, new in zip(known, tensors, strict=True)):
            found = make()
            self.memo[key] = (tensors, versions, found)
        return found
