"""StateCache: the cache object of a forward of one sequence, for a model with layers that keep a state. Lesson 11a.

Layers with K and V get the sequence's history, as of ``GatheredCache``. Of a layer with a state, transformers' own
``LinearAttentionLayer`` does the work, on views of the sequence's slot: it writes every new state over the old one.
"""

from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from minikv.cache.states import StateSlots
from minikv.models.hf_cache import GatheredCache


class StateCache(GatheredCache):
    """``held`` beside the states of ``slots`` in ``slot``; a sequence without a token before this forward has none."""

    def __init__(self, held: GatheredCache, slots: StateSlots, slot: int):
        super().__init__(held.batch, held.row, held.start, held.end, held.lengths)
        begun = self.get_seq_length() > 0
        numbers: dict[int, int] = {}
        for shape in slots.shapes:
            numbers[shape.layer] = max(numbers.get(shape.layer, 1), shape.index + 1)
        # The methods of ``Cache`` for states look for them here; layers without a state are never asked.
        count = len(held.batch.cache.spec.layers)
        self.layers = [
            _state_layer(numbers[layer], begun) if layer in numbers else None for layer in range(count)
        ]
        for shape in slots.shapes:
            _lend(self.layers[shape.layer], shape.name, shape.index, slots.tensor(shape)[slot : slot + 1])

    @property
    def is_linear(self) -> list[bool]:
        """For each layer whether it keeps a state and no K and V."""
        layers = zip(self.layers, self.batch.cache.spec.layers, strict=True)
        return [held is not None and not spec.token_bytes for held, spec in layers]


def _state_layer(number: int, begun: bool) -> LinearAttentionLayer:
    layer = LinearAttentionLayer(number_of_states=number)
    layer.has_previous_state = dict.fromkeys(range(number), begun)
    return layer


def _lend(layer: LinearAttentionLayer, name: str, index: int, view: Tensor) -> None:
    """Give the layer ``view`` as its state, which it then changes in place."""
    layer.device, layer.dtype = view.device, view.dtype
    if name == "conv":
        layer.conv_states[index], layer.is_conv_states_initialized[index] = view, True
        layer.conv_kernel_size[index] = view.shape[-1]
    else:
        layer.recurrent_states[index], layer.is_recurrent_states_initialized[index] = view, True
