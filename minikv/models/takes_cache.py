"""TakesCache: how a model's class takes what is cached, and a forward behind it. Lesson 11a.

Most classes take a ``Cache`` of transformers. Two keep their states in an object of their own:

    RWKV     state=          five states, each asked for a layer's by [:, :, layer]
    xLSTM    cache_params=   rnn_state[layer]: three states

To the rest of minikv these are layers of a ``Cache`` with ``recurrent_states``, as Mamba's are. A sequence's first
tokens come without an object, so the class makes its own, and what that then holds is copied to the layers; later ones
come with an object that leads to the layers' own tensors, which the class writes over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from minikv.errors import ConfigError
from minikv.models.cache_argument import cache_keyword, file_of, name_of
from minikv.models.lender import Lender, lender_of

States = list[tuple[Tensor, ...]]  # those of each layer, [sequences, ...]


@dataclass(frozen=True)
class OwnObject:
    """``shown``: the object that a class expects, made of the states. ``read``: the states in one that it made.

    ``keyword``: its name, where that is none of a cache's.
    """

    shown: Callable[[States], Any]
    read: Callable[[Any], States]
    keyword: str | None = None


@dataclass(frozen=True)
class TakesCache:
    """``keyword``: under which a model takes what is cached; ``own`` if that is no ``Cache`` of transformers.

    ``lender`` if it is one, but the model looks for its states elsewhere.
    """

    keyword: str
    own: OwnObject | None = None
    lender: Lender | None = None

    @classmethod
    def of(cls, model: Any) -> "TakesCache":
        """Find it out from the class of ``model``. Raises ``ConfigError`` if it takes nothing."""
        own = _OWN.get(file_of(model))
        keyword = cache_keyword(model) or (own.keyword if own else None)
        if keyword is None:
            raise ConfigError("measured_no_cache", name=name_of(model), kind=type(model).__name__)
        return cls(keyword, own, lender_of(model))

    def empty(self, model: Any) -> Any:
        """Return a cache of transformers for a sequence of which nothing is computed."""
        from transformers import Cache, DynamicCache

        if self.own is None:
            return DynamicCache(config=model.config.get_text_config(decoder=True))
        return Cache(layers=[])

    def run(self, model: Any, cache: Any, **options: Any) -> Any:
        """Run the model behind what ``cache`` holds, and put there what it then is; return the model's output."""
        if self.lender is not None:
            with self.lender(model, cache) as lent:
                return model(use_cache=True, **{self.keyword: lent}, **options)
        if self.own is None:
            return model(use_cache=True, **{self.keyword: cache}, **options)
        layers = cache.layers
        if layers and layers[0].has_previous_state[0]:
            shown = self.own.shown([tuple(layer.recurrent_states.values()) for layer in layers])
            return model(use_cache=True, **{self.keyword: shown}, **options)
        out = model(use_cache=True, **options)
        _keep(layers, self.own.read(out[self.keyword]))
        return out

    def returned(self, out: Any, cache: Any) -> Any:
        """Return the cache that the model gives back: ``cache``, if it has used that."""
        known = self.own is not None or self.lender is not None
        return cache if known else getattr(out, self.keyword, None)


def _keep(layers: list[Any], states: States) -> None:
    """Copy the states to the layers, which are made if there are none."""
    from minikv.models.state_cache import state_layer  # it imports transformers

    if not layers:
        for each in states:
            layer = state_layer(len(each), begun=True)
            layer.recurrent_states = {index: state.contiguous() for index, state in enumerate(each)}
            layers.append(layer)
        return
    for layer, each in zip(layers, states, strict=True):
        for held, state in zip(layer.recurrent_states.values(), each, strict=True):
            held.copy_(state)


class _LayerLast:
    """A state of all layers, asked for one layer's as a tensor [sequences, width, layers] would be.

    ``per_token``: with a dimension for the tokens, [sequences, 1, width]. RWKV mixes these states with hidden states
    [sequences, 1, width]; without it, several sequences would be mixed with each other (transformers 5.23).
    """

    def __init__(self, layers: tuple[Tensor, ...], per_token: bool):
        self._layers, self._per_token = layers, per_token

    def __getitem__(self, place: tuple[slice, slice, int]) -> Tensor:
        state = self._layers[place[2]]
        return state[:, None] if self._per_token else state

    def __setitem__(self, place: tuple[slice, slice, int], new: Tensor) -> None:
        self._layers[place[2]].copy_(new)


def _indexed_by_layer(states: States) -> list[_LayerLast]:
    # The first two are the last token's hidden states; the others are sums over all tokens.
    return [_LayerLast(layers, number < 2) for number, layers in enumerate(zip(*states, strict=True))]


def _of_each_layer(made: list[Tensor]) -> States:
    return [tuple(state[:, :, layer] for state in made) for layer in range(made[0].shape[2])]


def _named(states: States) -> SimpleNamespace:
    return SimpleNamespace(rnn_state=dict(enumerate(states)), seqlen_offset=0)


def _by_name(made: Any) -> States:
    return list(made.rnn_state.values())


# By the file with the code of the class: a ``state`` of any other may be anything
_OWN = {
    "modeling_rwkv": OwnObject(_indexed_by_layer, _of_each_layer, "state"),
    "modeling_xlstm": OwnObject(_named, _by_name),
}
