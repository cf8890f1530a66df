"""The layers of configs that were measured: in this process, or before it, those of the catalogue.

``minikv.models.measure`` measures a model that is there. Of a config alone, ``measure_unknown`` has the engine's room
build the model without weights. Nothing of torch is imported here.

A measurement holds for one config, not for its ``model_type``: layers differ from config to config.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from minikv.errors import ConfigError, MissingPackageError
from minikv.extras import load_engine, require_engine
from minikv.plan.spec.config import Config
from minikv.plan.spec.layers import LayerSpec

_MEASURED: dict[str, tuple[LayerSpec, ...]] = {}
_PARAMETERS: dict[str, int] = {}
# What a config says of a file, a version or a run: the layers do not depend on it.
_NOT_OF_THE_LAYERS = {"transformers_version", "architectures", "name_or_path", "use_cache"}


def measured_layers(config: Config) -> tuple[LayerSpec, ...] | None:
    """The layers that were measured for a config with these fields; None if none were."""
    key = _key(config)
    return _MEASURED.get(key) or _listed().get(key, (None, None))[0]


def measured_parameters(config: Config) -> int | None:
    """The parameters of the whole model that was built for a config with these fields; None if none was."""
    key = _key(config)
    return _PARAMETERS.get(key) or _listed().get(key, (None, None))[1]


def keep_measured(config: Config, layers: Sequence[LayerSpec], num_parameters: int | None = None) -> None:
    """Keep ``layers`` for every config with these fields. The ``window`` of a layer counts the query too."""
    key = _key(config)
    _MEASURED[key] = tuple(layers)
    if num_parameters is not None:
        _PARAMETERS[key] = num_parameters


def measure_unknown(config: Config, known: int) -> tuple[LayerSpec, ...]:
    """The layers of a config of a type on no list (``known`` are on it), measured now if they were not before.

    Raises ``ConfigError`` where the packages of the engine are not installed, where transformers has no such type, and
    where minikv cannot explain what the model caches.
    """
    found = measured_layers(config)
    if found is not None:
        return found
    values = {"model_type": config.stated_type, "name": config.name, "known": known}
    try:
        require_engine()
    except MissingPackageError as error:
        raise ConfigError("unknown_type_not_measured", wanted=error.values["wanted"], **values) from error
    if not load_engine("minikv.models.on_meta", "measure_config")(config):
        raise ConfigError("unknown_model_type", **values)
    return _MEASURED[_key(config)]


@lru_cache(maxsize=1)
def _listed() -> dict[str, tuple[tuple[LayerSpec, ...], int | None]]:
    """The layers and parameters of the catalogue's own configs, by key."""
    from minikv.plan.catalog import find_model, model_names  # it reads its models through config.py
    from minikv.plan.spec.described import described_spec  # it imports cache_spec, which imports this file

    found = {}
    for model in map(find_model, model_names()):
        if model.layers:
            kept = described_spec({"layers": list(model.layers)}).layers
            layers = tuple(replace(each, window=each.window and each.window + 1) for each in kept)
            found[_key(Config(model.config))] = layers, model.parameters
    return found


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
