"""A CacheSpec from layers that a file describes, for a model that minikv does not know.

    {"name": "mine", "max_positions": 32768, "kv_dtype": "bf16", "layers": [
        {"count": 24, "kind": "sliding", "kv_heads": 8, "k_dim": 128, "v_dim": 128, "window": 1024},
        {"count": 8, "kind": "full", "kv_heads": 8, "k_dim": 128, "v_dim": 128}]}

The fields of a layer are those of ``LayerSpec``; ``minikv plan MODEL --json`` prints this form, so that a known model
is a draft of its relative.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from minikv.errors import ConfigError, user_path
from minikv.plan.dtypes import AnyKVDtype, KVDtype, find_kv_dtype
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.config import MOST, MOST_LAYERS, load_json
from minikv.plan.spec.layers import LayerSpec

KINDS = (
    "full",
    "sliding",
    "chunked",
    "latent",
    "linear",
    "conv",
    "hybrid",
    "cross",
    "compressed",
    "shared",
    "none",
)
_FIELDS = {field.name for field in fields(LayerSpec)} - {"kind"}
# What ``minikv plan --json`` prints besides, and what follows from the layers.
_FOLLOWS = "token_bytes state_bytes window assumptions context batch cache_bytes".split()
_KNOWN = {"layers", "name", "model", "model_type", "tp", "kv_dtype", "layout", "max_positions", *_FOLLOWS}


def described_spec(source: str | Path | Mapping[str, Any], kv_dtype: AnyKVDtype | None = None) -> CacheSpec:
    """The spec of the layers in ``source``, a JSON file or its content; see ``CacheSpec.from_layers``."""
    if isinstance(source, Mapping):
        stated, file = source, "layers"
    else:
        path = user_path(source)
        if not path.is_file():
            raise ConfigError("no_file", path=str(path))
        stated, file = load_json(path), path.name
    _refuse_unknown(stated, file, _KNOWN)
    listed = stated.get("layers")
    if not isinstance(listed, list) or not listed:
        raise ConfigError("no_layers", name=file)
    dtype = find_kv_dtype(_word(stated, file, "kv_dtype", "bf16"))
    asked = None if kv_dtype is None else find_kv_dtype(kv_dtype)
    layers: list[LayerSpec] = []
    for number, each in enumerate(listed):
        layer, count = _layer(each, f"{file}: layers[{number}]", dtype, asked)
        if len(layers) + count > MOST_LAYERS:
            raise ConfigError("field_too_large", field="layers", name=file, most=MOST_LAYERS)
        layers += [layer] * count
    positions = stated.get("max_positions")
    return CacheSpec(
        layers=tuple(layers),
        name=_word(stated, file, "name", _word(stated, file, "model", file.removesuffix(".json"))),
        model_type=_word(stated, file, "model_type", "custom"),
        tp=_count(stated.get("tp", 1), file, "tp", 1),
        kv_dtype=(asked or dtype).name,
        layout=_word(stated, file, "layout", "hf"),
        max_positions=None if positions is None else _count(positions, file, "max_positions", 1),
    )


def _layer(stated: Any, name: str, dtype: KVDtype, asked: KVDtype | None) -> tuple[LayerSpec, int]:
    """One entry and how often it stands there; ``asked`` replaces the bytes of an element."""
    if not isinstance(stated, Mapping):
        raise ConfigError("not_a_layer", name=name, kind=type(stated).__name__)
    _refuse_unknown(stated, name, {"kind", "count", "token_bytes", *_FIELDS})
    kind = stated.get("kind")
    if kind not in KINDS:
        raise ConfigError("unknown_kind", name=name, value=kind, known=", ".join(KINDS))
    values = {
        field: _count(value, name, field, 1 if field in ("window", "top_k", "rate") else 0)
        for field, value in stated.items()
        if field in _FIELDS and value is not None
    }
    stored = {"itemsize": dtype.itemsize, "scale_bytes": dtype.scale_bytes}
    layer = LayerSpec(kind, **stored | values)
    buffers = (layer.rate - 1) * max(1, layer.waiting_bytes)
    if layer.state_bytes < buffers:
        raise ConfigError("bad_field", field="state_bytes", value=layer.state_bytes, name=name, least=buffers)
    told = stated.get("token_bytes", layer.token_bytes)
    if told != layer.token_bytes:
        raise ConfigError("layer_bytes", name=name, told=told, found=layer.token_bytes)
    if asked is not None:
        if layer.packed_bytes or layer.format_bytes:
            raise ConfigError("layer_packed", name=name, kv_dtype=asked.name)
        layer = replace(layer, itemsize=asked.itemsize, scale_bytes=asked.scale_bytes)
    return layer, _count(stated.get("count", 1), name, "count", 1)


def _word(stated: Mapping, name: str, field: str, default: str) -> str:
    value = stated.get(field, default)
    if not isinstance(value, str):
        raise ConfigError("bad_word", field=field, value=value, name=name)
    return value


def _count(value: Any, name: str, field: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError("bad_field", field=field, value=value, name=name, least=least)
    if value > MOST:
        raise ConfigError("field_too_large", field=field, name=name, most=MOST)
    return value


def _refuse_unknown(stated: Mapping, name: str, known: set[str]) -> None:
    unknown = sorted(map(str, stated.keys() - known))
    if unknown:
        raise ConfigError("unknown_layer_field", field=unknown[0], name=name, known=", ".join(sorted(known)))
