"""cache_argument: a cache as the keyword argument of a forward, which not every release of transformers calls the same.

    until 5.23    past_key_values, in Mamba's classes cache_params; outputs have it under the same name
    from 5.24     cache; until 5.40 the older names do too, with a warning

The signature of the forward says which it is. Code of models outside transformers keeps its own name in any release.
"""

import inspect
from collections.abc import Mapping
from typing import Any

CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def cache_keyword(model: Any) -> str | None:
    """Return the keyword under which ``model`` takes a cache; None: its forward names none."""
    accepted = inspect.signature(model.forward).parameters
    # XLM and Flaubert have a dictionary of their own under that name, in any release.
    kinds = {name: str(accepted[name].annotation).lower() for name in CACHE_NAMES if name in accepted}
    return next((name for name, kind in kinds.items() if "dict" not in kind), None)


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return ``{keyword: cache}`` for a call of ``model``.

    The wrappers of PEFT and ``torch.compile`` name no cache and pass everything on: the name that all releases take.
    """
    return {cache_keyword(model) or "past_key_values": cache}


def with_cache(model: Any, named: Mapping[str, Any], cache: Any) -> dict[str, Any]:
    """Return the keyword arguments of a forward with ``cache`` in place of the one that they have, if any."""
    others = {name: value for name, value in named.items() if name not in CACHE_NAMES}
    return others | cache_argument(model, cache)


def cache_in(named: Mapping[str, Any]) -> Any:
    """Return the cache among the keyword arguments of a forward, or in its output; None: it has none."""
    return next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)


def file_of(model: Any) -> str:
    """Return the name of the file with the model's code: ``modeling_llama``."""
    return type(model).__module__.rpartition(".")[2]


def name_of(model: Any) -> str:
    """Return where the model came from, or its model_type."""
    return str(getattr(model.config, "name_or_path", "") or model.config.model_type)
