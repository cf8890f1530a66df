"""Lesson 15b: the three calls that attention makes of a layer that forgets, recorded while a model runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minikv.eviction.hf.cache import evicting_layers

PORT = ("update", "observe", "evict")


@dataclass(frozen=True)
class PortCall:
    """A call ``name`` of a layer: the rows that it held ``before`` and ``after``, of ``seen`` tokens of the text."""

    layer: int
    name: str
    before: int
    after: int
    seen: int


@contextmanager
def record_calls(cache: Any) -> Iterator[list[PortCall]]:
    """Yield a list that grows with each ``update``, ``observe`` and ``evict`` of the evicting layers of ``cache``."""
    calls: list[PortCall] = []
    layers = evicting_layers(cache)

    def recorded(layer: Any, name: str) -> Callable[..., Any]:
        own = getattr(layer, name)

        def call(*args: Any, **more: Any) -> Any:
            before = layer.resident
            result = own(*args, **more)
            calls.append(PortCall(layer.rules.layer, name, before, layer.resident, layer.get_seq_length()))
            return result

        return call

    for layer in layers:
        for name in PORT:
            setattr(layer, name, recorded(layer, name))
    try:
        yield calls
    finally:
        for layer in layers:
            for name in PORT:
                delattr(layer, name)
