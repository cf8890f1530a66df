"""The rows of a forward that are asked for, once its last attention has been computed. Lesson 11a.

A prompt's tokens are computed for their K and V. Behind the last layer's attention nothing reads them any more but the
logits, and of a prompt those are asked for its last token. So whatever is computed row by row there, the modules of
``minikv.models.cpu_modules`` compute for the rows that are asked for, and leave zeros in the others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_WANTED: ContextVar[tuple[int, Tensor] | None] = ContextVar("wanted", default=None)


@contextmanager
def forward() -> Iterator[None]:
    """In a forward all rows are asked for, until ``only`` is called."""
    token = _WANTED.set(None)
    try:
        yield
    finally:
        _WANTED.reset(token)


def only(total: int, rows: Tensor) -> None:
    """From here on ``rows`` [R] of the forward's ``total`` rows are asked for."""
    if len(rows) < total:
        _WANTED.set((total, rows))


def wanted(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``compute(x)`` of the rows of ``x`` [1, T, K] that are asked for, and zeros for the others."""
    asked = _WANTED.get()
    if asked is None or x.dim() != 3 or x.shape[:2] != (1, asked[0]):
        return compute(x)
    rows = asked[1]
    found = compute(x.index_select(1, rows))
    return found.new_zeros(1, asked[0], found.shape[2]).index_copy_(1, rows, found)
