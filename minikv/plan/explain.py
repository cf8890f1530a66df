"""A CacheSpec in words: the formula with its numbers, the fields that it used, its assumptions."""

from typing import TYPE_CHECKING, Any

from minikv.i18n import text
from minikv.plan.spec.layers import LayerSpec

if TYPE_CHECKING:
    from minikv.plan.spec.cache_spec import CacheSpec

# The sentence that names the fields of each origin; what is assumed has sentences of its own.
_ORIGINS = {
    "spec_fields": "config",
    "spec_defaults": "class default",
    "spec_header": "header",
    "spec_llama_cpp": "llama.cpp",
}


def explain_spec(spec: "CacheSpec", lang: str) -> str:
    """The lines of ``CacheSpec.explain``."""

    def say(key: str, **values: Any) -> str:
        return text(f"plan.{key}", lang, **values)

    lines = [
        say(
            "spec_head",
            name=spec.name,
            model_type=spec.model_type,
            tp=spec.tp,
            kv_dtype=spec.kv_dtype,
            layout=spec.layout,
        )
    ]
    for layer, count in countable(spec):
        lines += [f"  {line}" for line in _layer_lines(layer, count, spec.kv_dtype, say)]
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    lines.append(say("spec_first" if windows else "spec_each", slope=spec.slope(0)))
    if windows:
        lines.append(say("spec_later", window=max(windows), slope=spec.slope(max(windows))))
    if spec.constant_state_bytes:
        lines.append(say("spec_state", state_bytes=spec.constant_state_bytes))
    for key, origin in _ORIGINS.items():
        # A default of null only says that the class derives the field; the layers above show the result.
        used = [
            use
            for use in spec.fields
            if use.origin == origin and (origin != "class default" or use.value is not None)
        ]
        fields = [f"{use.name} = {_short(use.value)}" for use in used]
        if fields:
            lines.append(say(key, fields=", ".join(fields)))
    lines += [say("spec_assumed", sentence=say(key, **values)) for key, values in spec.assumptions]
    return "\n".join(lines)


def countable(spec: "CacheSpec") -> list[tuple[LayerSpec, int]]:
    """Different layers with their counts. All shared layers count as one kind, whichever layer they read."""
    counts: dict[LayerSpec, int] = {}
    for layer in spec.layers:
        key = LayerSpec("shared") if layer.kind == "shared" else layer
        counts[key] = counts.get(key, 0) + 1
    return list(counts.items())


def _layer_lines(layer: LayerSpec, count: int, kv_dtype: str, say) -> list[str]:
    kind = say(f"kind_{layer.kind}")
    lines = []
    if layer.token_bytes:
        product = layer.packed_bytes or layer.kv_heads * (layer.k_dim + layer.v_dim) * layer.itemsize
        sizes = dict(heads=layer.kv_heads, k_dim=layer.k_dim, v_dim=layer.v_dim)
        stored = dict(kv_dtype=kv_dtype) if layer.packed_bytes else dict(itemsize=layer.itemsize)
        key = "layer_packed" if layer.packed_bytes else "layer_tokens" if layer.rate == 1 else "layer_entry"
        lines.append(say(key, count=count, kind=kind, product=product, **sizes, **stored))
        if layer.scale_bytes:
            tensors = (layer.k_dim > 0) + (layer.v_dim > 0)
            scales = tensors * layer.kv_heads * layer.scale_bytes
            lines.append(
                say(
                    "layer_scales",
                    tensors=tensors,
                    heads=layer.kv_heads,
                    scale_bytes=layer.scale_bytes,
                    scales=scales,
                )
            )
        if layer.index_bytes:
            lines.append(say("layer_index", index_bytes=layer.index_bytes))
        if layer.format_bytes:
            lines.append(say("layer_format", format_bytes=layer.format_bytes))
        if layer.token_bytes != product and layer.rate == 1:
            lines.append(say("layer_sum", token_bytes=layer.token_bytes))
    if layer.window is not None:
        lines.append(say("layer_window", window=layer.window, most=layer.window * layer.token_bytes))
    if layer.rate > 1:
        lines.append(
            say(
                "layer_entries",
                entry=layer.token_bytes,
                rate=layer.rate,
                waiting=layer.waiting_bytes,
                most=layer.state_bytes,
            )
        )
    elif layer.state_bytes:
        lines.append(say("layer_state", count=count, kind=kind, state_bytes=layer.state_bytes))
    if not lines:
        lines.append(say("layer_nothing", count=count, kind=kind))
    return lines


def _short(value: Any) -> str:
    """A field's value on one line; a long list is shown by its length and first entries."""
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(str, value[:2]))}, … {len(value)}]"
    if isinstance(value, dict):
        return f"{{… {len(value)}}}"
    return str(value)
