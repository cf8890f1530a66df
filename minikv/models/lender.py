"""lender_of: for classes that look for their states elsewhere than in the ``Cache`` that they are given. Lesson 11a.

Most classes of transformers keep a layer's states in the ``LinearAttentionLayer`` of that number in the ``Cache``, and
so do slots, trials and measurements here. Two that take a ``Cache`` for their K and V do not, and are led to those
layers for the length of a forward:

    MiniMax           takes a cache of its own class alone, and asks it for states by methods of its own
    RecurrentGemma    keeps them in attributes of its modules, where the next text finds them, and returns no cache

The table at the end has them by the file with their code. Any other class gets its cache as it is.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from minikv.models.cache_argument import file_of

# From a model and a cache to what a forward takes in place of that cache
Lender = Callable[[Any, Any], AbstractContextManager[Any]]

_MODULES = threading.Lock()  # held while states of minikv stand in the modules of a model


def lender_of(model: Any) -> Lender | None:
    """Return what leads ``model`` to the states in the layers of its cache; None: it looks for them there."""
    return _ELSEWHERE.get(file_of(model))


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
    """Put the states into the modules, take the new ones out, and put back what stood there before.

    A sequence's first tokens find None there, and begin with zeros. What an earlier ``generate`` has left would change
    a text of one token: its convolution would go on from that (transformers 5.23). Two threads share the modules, so
    one forward waits for the other.
    """
    layers = zip(model.base_model.layers, cache.layers, strict=True)
    mine = [(layer.temporal_block, held) for layer, held in layers if hasattr(layer.temporal_block, "rg_lru")]
    with _MODULES:
        before = [(block.conv1d_state, block.rg_lru.recurrent_states) for block, _ in mine]
        try:
            for block, held in mine:
                begun = held.has_previous_state[0]
                block.conv1d_state = held.conv_states[0] if begun else None
                block.rg_lru.recurrent_states = held.recurrent_states[0] if begun else None
            yield cache
            for block, held in mine:
                held.update_conv_state(block.conv1d_state)
                held.update_recurrent_state(block.rg_lru.recurrent_states)
        finally:
            for (block, _), states in zip(mine, before, strict=True):
                block.conv1d_state, block.rg_lru.recurrent_states = states


_ELSEWHERE: dict[str, Lender] = {
    "modeling_minimax": _minimax,
    "modeling_recurrent_gemma": _recurrent_gemma,
}
