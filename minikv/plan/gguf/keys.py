"""The keys of a GGUF header that the cache depends on, read one by one, each with its origin."""

from typing import Any

from minikv.errors import ConfigError
from minikv.plan.gguf.header import Passed
from minikv.plan.spec.config import MOST, FieldUse

MOST_BLOCKS = 512  # LLAMA_MAX_LAYERS

_ABSENT = object()


class Keys:
    """The metadata of one model under its architecture's prefix; ``used`` are the keys that were read."""

    def __init__(self, metadata: dict[str, Any], name: str):
        self._metadata, self.name = metadata, name
        self.used: dict[str, FieldUse] = {}
        kind = metadata.get("general.type", "model")
        if kind != "model":  # an adapter, a projector of images, an importance matrix
            raise ConfigError("gguf_no_model", name=name, kind=kind)
        self.architecture = self._text("general.architecture")

    def has(self, key: str) -> bool:
        return self._full(key) in self._metadata

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """An integer of at least ``least``; ``default``, llama.cpp's own, where the file does not state it.

        Raises ``ConfigError`` for any other value, and where there is neither a value nor a default.
        """
        value = self._get(key, _ABSENT if default is None else default)
        most = MOST_BLOCKS if key == "block_count" else MOST
        return self._checked(key, value, least, most)

    def per_layer(self, key: str, layers: int, default: list[int] | None = None) -> list[int]:
        """One integer a layer: a list of that length, or one number for all of them."""
        value = self._get(key, _ABSENT if default is None else default)
        if not isinstance(value, tuple | list):
            return [self._checked(key, value, 0, MOST)] * layers
        if len(value) != layers:
            raise ConfigError(
                "gguf_per_layer", field=self._full(key), listed=len(value), stated=layers, name=self.name
            )
        return [self._checked(key, each, 0, MOST) for each in value]

    def flags(self, key: str, layers: int) -> list[bool] | None:
        """One yes or no a layer, as bools or as 0 and 1; None where the key is absent or one number."""
        value = self._metadata.get(self._full(key))
        if not isinstance(value, tuple):
            return None
        return [bool(each) for each in self.per_layer(key, layers)]

    def refuse(self, key: str) -> ConfigError:
        """The error for a key with a value that minikv cannot plan with."""
        value = self._metadata.get(self._full(key))
        values = {"field": self._full(key), "value": value, "name": self.name}
        return ConfigError("gguf_not_planned", architecture=self.architecture, **values)

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _get(self, key: str, default: Any) -> Any:
        full = self._full(key)
        if full in self._metadata:
            value = self._metadata[full]
            self.used[full] = FieldUse(full, list(value) if isinstance(value, tuple) else value, "header")
            return value
        if default is _ABSENT:
            raise ConfigError("gguf_no_key", field=full, name=self.name)
        self.used[full] = FieldUse(full, default, "llama.cpp")
        return default

    def _checked(self, key: str, value: Any, least: int, most: int) -> int:
        value = int(value) if isinstance(value, bool) and least == 0 else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            shown = f"a list of {value.count}" if isinstance(value, Passed) else value
            shown = shown if len(repr(shown)) < 60 else f"{repr(shown)[:60]}..."
            raise ConfigError("bad_field", field=self._full(key), value=shown, name=self.name, least=least)
        if value > most:
            raise ConfigError("field_too_large", field=self._full(key), name=self.name, most=most)
        return value

    def _text(self, key: str) -> str:
        value = self._metadata.get(key)
        if not isinstance(value, str):
            raise ConfigError("gguf_no_key", field=key, name=self.name)
        return value
