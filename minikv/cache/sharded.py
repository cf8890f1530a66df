"""The part of a model on this rank: transformers' tensor parallelism may leave a ``DTensor`` for a parameter."""

from typing import Any

from torch import Tensor


def local(tensor: Any) -> Tensor:
    """Return this rank's shard of a ``DTensor``, nothing copied; any other tensor as it is.

    A ``DTensor`` reports the shape and the bytes of the whole. It is recognised by its method, so that nothing of
    ``torch.distributed`` has to be imported for a model that is not sharded.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
