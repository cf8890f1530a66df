"""LentStates: the states of the sequences of one forward, as layers of transformers' ``Cache``. Lesson 11a.

Of a layer with a state, transformers' own ``LinearAttentionLayer`` does the work, and writes every new state over the
old one: of one sequence on views of its slot, of several on copies, which then go back to their slots.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from minikv.cache.states import StateShape, StateSlots


class LentStates:
    """The states in ``rows`` of ``slots``; sequences without a token before this forward (not ``begun``) have none.

    ``layers`` are those of a ``Cache`` of ``num_layers``: its methods for states look for them there, and never ask for
    a layer without a state.
    """

    def __init__(self, slots: StateSlots, rows: Sequence[int], num_layers: int, *, begun: bool):
        self._slots, self._rows = slots, torch.tensor(rows, device=slots.device)
        numbers: dict[int, int] = {}
        for shape in slots.shapes:
            numbers[shape.layer] = max(numbers.get(shape.layer, 1), shape.index + 1)
        self.layers: list[Any] = [
            state_layer(numbers[layer], begun) if layer in numbers else None for layer in range(num_layers)
        ]
        for shape in slots.shapes:
            held = slots.tensor(shape)
            states = held[rows[0] : rows[0] + 1] if len(rows) == 1 else held[self._rows]
            _lend(self.layers[shape.layer], shape, states)

    def put_back(self) -> None:
        """Write the states of several sequences to their slots. Those of one are there already."""
        if len(self._rows) > 1:
            for shape in self._slots.shapes:
                states = getattr(self.layers[shape.layer], f"{shape.name}_states")
                self._slots.tensor(shape)[self._rows] = states[shape.index]


def state_layer(number: int, begun: bool) -> LinearAttentionLayer:
    """Return a layer for ``number`` states, of a sequence with tokens before this forward, or without."""
    layer = LinearAttentionLayer(number_of_states=number)
    layer.has_previous_state = dict.fromkeys(range(number), begun)
    return layer


def _lend(layer: LinearAttentionLayer, shape: StateShape, states: Tensor) -> None:
    """Give the layer ``states``, which it then changes in place."""
    layer.device, layer.dtype = states.device, states.dtype
    getattr(layer, f"{shape.name}_states")[shape.index] = states
    getattr(layer, f"is_{shape.name}_states_initialized")[shape.index] = True
    if shape.name == "conv":
        layer.conv_kernel_size[shape.index] = states.shape[-1]
