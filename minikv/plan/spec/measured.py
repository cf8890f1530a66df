"""The layers of configs after their models were measured in this process; ``minikv.models.measure`` measures one.

A measurement holds for one config, not for its ``model_type``: layers differ from config to config.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from minikv.plan.spec.config import Config
from minikv.plan.spec.layers import LayerSpec

_MEASURED: dict[str, tuple[LayerSpec, ...]] = {}
# What a config says of a file, a version or a run: the layers do not depend on it.
_NOT_OF_THE_LAYERS = {"transformers_version", "architectures", "name_or_path", "use_cache"}


def measured_layers(config: Config) -> tuple[LayerSpec, ...] | None:
    """The layers that were measured for a config with these fields; None if none were."""
    return _MEASURED.get(_key(config)) if _MEASURED else None


def keep_measured(config: Config, layers: Sequence[LayerSpec]) -> None:
    """Keep ``layers`` for every config with these fields. The ``window`` of a layer counts the query too."""
    _MEASURED[_key(config)] = tuple(layers)


def _key(config: Config) -> str:
    return json.dumps(_relevant(config.whole), sort_keys=True, default=str)


def _relevant(fields: Any) -> Any:
    """The fields without those that the layers do not depend on, at every depth."""
    if not isinstance(fields, Mapping):
        return fields
    return {
        str(name): _relevant(value)
        for name, value in fields.items()
        if name not in _NOT_OF_THE_LAYERS and not str(name).startswith("_")
    }
