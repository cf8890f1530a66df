"""lender_of: for classes that look for their states elsewhere than in the ``Cache`` that they are given. Lesson 11a.

Most classes of transformers keep a layer's states in the ``LinearAttentionLayer`` of that number in the ``Cache``, and
so do slots, trials and measurements here. Two that take a ``Cache`` for their K and V do not, and are led to those
layers for the length of a forward:

    MiniMax           takes a cache of its own class alone, and asks it for states by methods of its own
    RecurrentGemma    keeps them in attributes of its modules, where the next text finds them, and returns no cache

The table at the end has them by the file with their code. Any other class gets its cache as it is.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

# From a model and a cache to what a forward takes in place of that cache
Lender = Callable[[Any, Any], AbstractContextManager[Any]]


def lender_of(model: Any) -> Lender | None:
    """Return what leads ``model`` to the states in the layers of its cache; None: it looks for them there."""
    return _ELSEWHERE.get(type(model).__module__.rpartition(".")[2])


class _OfClass:
    """``cache``, which ``isinstance`` takes for an object of ``kind``: the model refuses every other class.

    A real one would store K and V itself. A state is the sum of K^T V, each with its decay; it counts as recurrent.
    """

    def __init__(self, cache: Any, kind: type):
        self._cache, self._kind = cache, kind

    __class__ = property(lambda self: self._kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self._cache.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        self._cache.update_recurrent_state(linear_cache, layer_idx)
        self._cache.layers[layer_idx].has_previous_state[0] = True


def _minimax(model: Any, cache: Any) -> AbstractContextManager[Any]:
    return nullcontext(_OfClass(cache, sys.modules[type(model).__module__].MiniMaxCache))


@contextmanager
def _recurrent_gemma(model: Any, cache: Any) -> Iterator[Any]:
    """Put the states into the modules and take the new ones out, so that the modules are left without any.

    A sequence's first tokens find None there, and begin with zeros. What an earlier ``generate`` has left would change
    a text of one token: its convolution would go on from that (transformers 5.23).
    """
    layers = zip(model.base_model.layers, cache.layers, strict=True)
    mine = [(layer.temporal_block, held) for layer, held in layers if hasattr(layer.temporal_block, "rg_lru")]
    try:
        for block, held in mine:
            begun = held.has_previous_state[0]
            block.conv1d_state = held.conv_states[0] if begun else None
            block.rg_lru.recurrent_states = held.recurrent_states[0] if begun else None
        yield cache
        for block, held in mine:
            _keep(held.conv_states, block.conv1d_state)
            _keep(held.recurrent_states, block.rg_lru.recurrent_states)
            held.has_previous_state[0] = True
    finally:
        for block, _ in mine:
            block.conv1d_state = block.rg_lru.recurrent_states = None


def _keep(states: dict[int, Tensor | None], new: Tensor) -> None:
    """Write the state to where it was lent from; of a layer that has none yet it is the first."""
    held = states[0]
    if held is None:
        states[0] = new
    else:
        held.copy_(new)


_ELSEWHERE: dict[str, Lender] = {
    "modeling_minimax": _minimax,
    "modeling_recurrent_gemma": _recurrent_gemma,
}
