"""Reads a model's config.json without transformers, and without a guess.

A config.json names some fields and leaves the others to its config class: Gemma-3-4B names neither its
heads nor its head_dim. transformers fills them in, at the cost of two seconds and of importing torch.
Here they come from ``data/config_defaults.json``. ``tools/config_defaults.py`` generates that file from
transformers, and a test compares it with the installed version. Each field that is read is recorded with its origin,
so that an answer can name its basis.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from minikv.errors import ArgumentError, ConfigError

# Names under which composite (multimodal) configs keep their decoder, most specific first.
TEXT_CONFIG_NAMES = ("text_config", "language_config", "llm_config")

# Architectures with a config class outside transformers and a cache that is a class of transformers.
SAME_CACHE_AS = {"kimi_k2": "deepseek_v3", "mimo": "qwen2", "nemotron-nas": "llama"}

# Field names of old hub configs that a class still takes and renames. They win over the new names.
OLD_NAMES = {
    "bloom": {"hidden_size": "n_embed"},
    "lfm2": {"intermediate_size": "block_ff_dim"},
    "nemotron_h": {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "expand": "mamba_expand"},
}

# No decoder is deeper. A larger number is a mistake, and would be built layer by layer.
MOST_LAYERS = 10_000
MOST = 2**40  # of anything else that a config counts

# The config itself must have these: a class default would be another model's size.
NEVER_DEFAULTED = ("num_hidden_layers", "hidden_size")

_MISSING = object()


@dataclass(frozen=True)
class FieldUse:
    """One field that an answer depends on.

    ``origin``: "config", "class default" or "assumed"; of a GGUF file "header", or "llama.cpp" for its default.
    """

    name: str
    value: Any
    origin: str


@lru_cache(maxsize=1)
def config_defaults() -> dict[str, Any]:
    """The generated table: ``{"composites", "aliases", "defaults", "transformers"}``."""
    source = files("minikv.plan") / "data" / "config_defaults.json"
    return json.loads(source.read_text(encoding="utf-8"))


class Config:
    """The decoder's part of a config, read field by field; ``used`` records every field and its origin.

    ``model_type`` is the decoder's (``gemma3_text`` for a ``gemma3`` config); ``name`` is the name that the caller
    gave, for messages. ``assumed_type`` is the type that the caller gave for a config without one, else None.
    """

    def __init__(self, fields: Mapping[str, Any], name: str = "config", assumed_type: str | None = None):
        self.name = name
        self.whole = dict(fields)
        self.used: dict[str, FieldUse] = {}
        inner = {key: fields[key] for key in TEXT_CONFIG_NAMES if fields.get(key) is not None}
        for key, value in inner.items():
            if not isinstance(value, Mapping):
                raise ConfigError("inner_config", field=key, kind=type(value).__name__, name=name)
        self.fields = dict(next(iter(inner.values()), fields))
        table = config_defaults()
        stated = self.fields.get("model_type") or self.whole.get("model_type")
        self.assumed_type = None if stated else assumed_type
        stated = stated or assumed_type
        if not isinstance(stated, str):
            raise ConfigError("no_model_type", name=name)
        # A text_config may repeat the composite's type, and old hub configs of composites are flat.
        self.stated_type: str = table["composites"].get(stated, stated)
        self.model_type: str = SAME_CACHE_AS.get(self.stated_type, self.stated_type)
        self._defaults = table["defaults"].get(self.model_type, {})
        self._aliases = table["aliases"].get(self.model_type, {})

    def get(self, field: str, default: Any = None) -> Any:
        """The field's value: the config's own, else its class's, else ``default`` (which is not recorded)."""
        old = OLD_NAMES.get(self.model_type, {}).get(field)
        for key in (old, field, self._aliases.get(field)):
            if key is not None and key in self.fields:
                return self.record(key, self.fields[key], "config")
        own = self._aliases.get(field, field)
        if own in self._defaults and field not in NEVER_DEFAULTED:
            return self.record(own, self._defaults[own], "class default")
        return default

    def knows(self, field: str) -> bool:
        """Whether the config's class has this field at all; a file may have fields that the class ignores."""
        return self._aliases.get(field, field) in self._defaults

    def require(self, field: str) -> Any:
        """The field's value. Raises ``ConfigError`` where neither config nor class has it, or it is null."""
        value = self.get(field, _MISSING)
        if value is _MISSING or value is None:
            raise ConfigError("missing_field", field=self._aliases.get(field, field), name=self.name)
        return value

    def count(self, field: str, value: Any = _MISSING, least: int = 1) -> int:
        """A field that counts something: an int of at least ``least``. Raises ``ConfigError`` for another value."""
        value = self.require(field) if value is _MISSING else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            value = value if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
            raise ConfigError("bad_field", field=field, value=value, name=self.name, least=least)
        most = MOST_LAYERS if field == "num_hidden_layers" else MOST
        if value > most:
            raise ConfigError("field_too_large", field=field, name=self.name, most=most)
        return value

    def left_out(self, fields: Iterable[str]) -> dict[str, Any]:
        """Those of ``fields`` that the config does not have, with their class defaults; a null default is left out."""
        own = {name: self._aliases.get(name, name) for name in fields}
        absent = [key for name, key in own.items() if not {name, key} & self.fields.keys()]
        return {key: self._defaults[key] for key in absent if self._defaults.get(key) is not None}

    def optional_count(self, field: str) -> int:
        """Like ``count``, but 0 where the field is absent, null or 0."""
        value = self.get(field)
        return self.count(field, value, least=0) if value is not None else 0

    def assume(self, field: str, value: Any) -> Any:
        """Record that ``field`` is assumed to be ``value``, because no config has it. Returns ``value``."""
        return self.record(field, value, "assumed")

    def refuse(self, field: str, value: Any) -> ConfigError:
        """The error for a field with a value that this version does not understand."""
        return ConfigError(
            "not_understood", field=field, value=value, name=self.name, model_type=self.model_type
        )

    def record(self, field: str, value: Any, origin: str) -> Any:
        self.used[field] = FieldUse(field, value, origin)
        return value


def read_config(source: Any) -> Config:
    """A ``Config`` from a dict, a Hugging Face config object, a config.json, a model folder or a catalogue name.

    Raises ``ConfigError`` (unreadable file, no JSON, no object), ``UnknownNameError`` (no such file or name) and
    ``ArgumentError`` (none of these).
    """
    if isinstance(source, Config):
        return Config(source.whole, source.name, source.assumed_type)
    return Config(*_read_fields(source))


def with_model_type(source: Any, model_type: str) -> Config:
    """A config (as for ``read_config``) without a ``model_type``, taken to be of this one.

    Raises ``ConfigError`` where it has another, and what ``read_config`` raises.
    """
    fields, name = _read_fields(source)
    stated = fields.get("model_type")
    if stated not in (None, model_type):
        raise ConfigError("other_model_type", name=name, stated=stated, model_type=model_type)
    return Config(fields, name, model_type)


def with_dtype(source: Any, dtype: str) -> Config:
    """A config (as for ``read_config``) of a model in this dtype, whatever it says itself."""
    config = read_config(source)
    fields = config.whole | {"dtype": dtype}
    inner = {
        name: fields[name] | {"dtype": dtype} for name in TEXT_CONFIG_NAMES if fields.get(name) is not None
    }
    return Config(fields | inner, config.name, config.assumed_type)


def _read_fields(source: Any) -> tuple[Mapping[str, Any], str]:
    """The fields as they are in the source, and its name in messages."""
    if isinstance(source, Config):
        return source.whole, source.name
    if isinstance(source, Mapping):
        return source, str(source.get("_name_or_path") or source.get("model_type") or "config")
    if hasattr(source, "to_dict"):
        return _object_fields(source), str(getattr(source, "name_or_path", "") or source.model_type)
    if not isinstance(source, str | Path):
        raise ArgumentError("not_a_config", kind=type(source).__name__)
    path = Path(source)
    try:
        if path.is_dir():
            path = path / "config.json"
            if not path.is_file():
                raise ConfigError("no_config_json", path=str(path.parent))
        is_file = path.is_file()
    except OSError as error:  # a name too long for the file system, a folder that may not be entered
        raise ConfigError(
            "unreadable_file", path=str(path)[:80], reason=error.strerror or str(error)
        ) from error
    if is_file:
        return load_json(path), path.parent.name if path.name == "config.json" else path.name
    if path.suffix == ".json":
        raise ConfigError("no_file", path=str(path))
    from minikv.plan.catalog import find_model  # the catalogue reads its own models through this file

    model = find_model(str(source))
    return model.config, model.name


def _object_fields(config: Any) -> dict[str, Any]:
    """A Hugging Face config object as the dict that it would save, its dtype as text."""
    fields = config.to_dict()
    # A model that was loaded in another dtype than its file says has changed `config.dtype`, a torch.dtype.
    dtype = getattr(config, "dtype", None)
    if dtype is not None:
        fields["dtype"] = str(dtype)
    return fields


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ``ConfigError`` where there is none."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("unreadable_file", path=str(path), reason=str(error)) from error
    except json.JSONDecodeError as error:
        raise ConfigError("bad_json", path=str(path), line=error.lineno, reason=error.msg) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or an int of thousands of digits
        raise ConfigError("unreadable_file", path=str(path), reason=str(error)) from error
    if not isinstance(loaded, dict):
        raise ConfigError("not_an_object", path=str(path), kind=type(loaded).__name__)
    return loaded
