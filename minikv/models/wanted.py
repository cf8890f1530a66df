"""The rows of a forward that are asked for, once its last attention has been computed. Lesson 11a.

A prompt's tokens are computed for their K and V. Behind the last layer's attention nothing reads them any more but the
logits, and of a prompt those are asked for its last token. So whatever is computed row by row there, the modules of
``minikv.models.cpu_modules`` compute for the rows that are asked for, and leave zeros in the others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass
class _Asked:
    """``rows`` [R] of a forward's ``total`` rows, once it is ``behind`` its last attention."""

    total: int
    rows: Tensor
    behind: bool = False


_ASKED: ContextVar[_Asked | None] = ContextVar("asked", default=None)


@contextmanager
def forward(total: int, rows: Tensor | None) -> Iterator[None]:
    """The forward of ``total`` rows, of which ``rows`` [R] are asked for; None: all."""
    token = _ASKED.set(None if rows is None else _Asked(total, rows))
    try:
        yield
    finally:
        _ASKED.reset(token)


def behind_attention() -> None:
    """No token of the forward is attended to any more."""
    asked = _ASKED.get()
    if asked is not None:
        asked.behind = True


def wanted(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``compute(x)`` of the rows of ``x`` [1, T, K] that are asked for, and zeros for the others."""
    asked = _ASKED.get()
    if asked is None or not asked.behind or x.dim() != 3 or x.shape[:2] != (1, asked.total):
        return compute(x)
    found = compute(x.index_select(1, asked.rows))
    return found.new_zeros(1, asked.total, found.shape[2]).index_copy_(1, asked.rows, found)
