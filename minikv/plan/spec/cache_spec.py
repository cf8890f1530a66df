"""CacheSpec: the exact cost of a token, for any config that minikv understands.

    >>> spec = CacheSpec.from_config("DeepSeek-V3")
    >>> spec.bytes_for(1)
    70272

Bytes are integers. ``bytes_for`` and ``max_tokens`` are the two primitives, each the other's inverse.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minikv.errors import LARGEST_COUNT, ArgumentError, ConfigError, check_choice, check_count
from minikv.plan.dtypes import AnyKVDtype, find_kv_dtype
from minikv.plan.spec.architectures import build_layers
from minikv.plan.spec.config import Config, FieldUse, read_config
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.weights.quantization import kv_cache_quantization
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes

# Fields that a config written by hand may leave out although bytes depend on them.
_SIZES = """num_key_value_heads head_dim intermediate_size vocab_size tie_word_embeddings
    max_position_embeddings""".split()

Layout = Literal["hf", "hf-expanded", "vllm"]
LLAMA_CPP = "llama.cpp"  # the layout of a spec that ``from_gguf`` has read


@dataclass(frozen=True)
class CacheSpec:
    """The cache of one model on one rank: its layers, and the basis of the numbers.

    Build it with ``from_config`` or ``from_gguf``, or with ``from_layers`` for a model that minikv does not know.
    ``fields`` are the config fields that were read, each with its origin; ``assumptions`` are keys of
    ``messages/plan.toml`` with their values.
    """

    layers: tuple[LayerSpec, ...]
    name: str = "custom"
    model_type: str = "custom"
    tp: int = 1
    kv_dtype: str = "bf16"
    layout: str = "hf"
    max_positions: int | None = None
    fields: tuple[FieldUse, ...] = ()
    assumptions: tuple[tuple[str, dict[str, Any]], ...] = field(default=(), hash=False)

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        tp: int = 1,
        kv_dtype: AnyKVDtype | None = None,
        layout: Layout = "hf",
        encoder_tokens: int | None = None,
    ) -> "CacheSpec":
        """The spec of one tensor-parallel rank of the model that ``config`` describes.

        ``config`` is a dict, a Hugging Face config object, a path to a config.json, a model folder or a
        catalogue name. ``tp`` is the tensor-parallel size: KV heads are divided by it, replicated where there
        are fewer heads than ranks; MLA latents are replicated on every rank. ``layout`` "hf" is the cache of
        transformers >= 5.15, "hf-expanded" that of older versions for MLA (per-head K and V), "vllm" the slots of
        vLLM. ``kv_dtype`` None takes the config's dtype; with layout "vllm", the dtype that the checkpoint's
        quantization_config asks for. ``encoder_tokens`` is the length that the cross-attention of an
        encoder-decoder model caches.

        Raises ``ConfigError`` for a config that minikv does not understand (it names the field),
        ``ArgumentError`` for an argument, ``UnknownNameError`` for a name.
        """
        check_choice("layout", layout, Layout)
        check_count("tp", tp)
        reader = read_config(config)
        assumptions: list[tuple[str, dict[str, Any]]] = []
        model_dtype = model_dtype_of(reader, assumptions)
        asked = None
        if kv_dtype is None:
            asked = _asked_of_cache(reader, layout, model_dtype, assumptions)
        dtype = find_kv_dtype(kv_dtype or asked or model_dtype)
        layers = build_layers(
            reader,
            tp=tp,
            dtype=dtype,
            model_itemsize=find_kv_dtype(model_dtype).itemsize,
            layout=layout,
            encoder_tokens=encoder_tokens,
            assumptions=assumptions,
        )
        max_positions = _max_positions(reader, assumptions)
        if reader.assumed_type is not None:
            taken = [f"{name} = {value}" for name, value in reader.left_out(_SIZES).items()]
            values = {"model_type": reader.assumed_type, "fields": ", ".join(taken) or "-"}
            assumptions.append(("model_type_given", values))
        return cls(
            layers=tuple(layers),
            name=reader.name,
            model_type=reader.stated_type,
            tp=tp,
            kv_dtype=dtype.name,
            layout=layout,
            max_positions=max_positions,
            fields=tuple(reader.used.values()),
            assumptions=tuple(assumptions),
        )

    @classmethod
    def from_gguf(cls, path: str | Path, *, kv_dtype: str = "f16", v_dtype: str | None = None) -> "CacheSpec":
        """The layers of the model in a GGUF file, as llama.cpp caches them; only the file's header is read.

        ``kv_dtype`` is llama.cpp's --cache-type-k ("f16", "q8_0", "q4_0", …), and --cache-type-v where ``v_dtype`` is
        None. A part of a split file stands for all of them. ``bytes_for`` counts the cells of that many tokens;
        ``minikv.plan.plan_gguf`` counts what llama.cpp allocates, which is rounded up and never grows.

        Raises ``ConfigError`` for a file that is damaged or not understood, ``ArgumentError`` for a type.
        """
        from minikv.plan.gguf.memory import gguf_spec  # it imports this file
        from minikv.plan.gguf.parts import read_gguf

        return gguf_spec(read_gguf(path), kv_dtype, v_dtype)

    @classmethod
    def from_layers(
        cls, source: str | Path | Mapping[str, Any], *, kv_dtype: AnyKVDtype | None = None
    ) -> "CacheSpec":
        """The spec of layers that you describe, for a model that minikv does not know.

        ``source`` is a JSON file or its content: {"layers": [{"count": 8, "kind": "full", "kv_heads": 8, "k_dim": 128,
        "v_dim": 128}, ...], "name": ..., "max_positions": ..., "kv_dtype": "bf16"}. The fields of a layer are those of
        ``LayerSpec``, on one rank; ``minikv plan MODEL --json`` prints this form. ``kv_dtype`` replaces the file's.

        Raises ``ConfigError`` that names the layer and the field.
        """
        from minikv.plan.spec.described import described_spec  # it imports this file

        return described_spec(source, kv_dtype)

    def bytes_for(self, num_tokens: int, batch: int = 1) -> int:
        """Bytes that ``batch`` sequences of ``num_tokens`` tokens each hold in the cache of this rank.

        It counts the cached elements; ``held_bytes_for`` counts the storage behind them.
        """
        check_count("num_tokens", num_tokens, least=0)
        check_count("batch", batch, least=0)
        return batch * sum(layer.bytes_for(num_tokens) for layer in self.layers)

    def max_tokens(self, num_bytes: int, batch: int = 1) -> int | float:
        """The most tokens that each of ``batch`` sequences can have within ``num_bytes``: the inverse of ``bytes_for``.

        A sequence has to fit at every length on the way, which counts where layers compress. ``math.inf`` where
        more tokens cost nothing more (every layer slides and the windows fit).
        """
        check_count("num_bytes", num_bytes, least=0)
        check_count("batch", batch)
        share = num_bytes // batch
        if not self.slope(2**62):
            ends = [layer.window for layer in self.layers if layer.window is not None]
            if self.bytes_for(max(ends, default=1)) <= share:
                return math.inf
        low, high = 0, 1
        while self.peak_bytes_for(high) <= share:
            low, high = high, 2 * high
        # A peak never falls as tokens are added, so the last length that fits is found by halving.
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.peak_bytes_for(middle) <= share else (low, middle)
        return low

    def peak_bytes_for(self, num_tokens: int) -> int:
        """The most bytes that one sequence holds on its way to ``num_tokens`` tokens: each layer's own most, added up.

        It is ``bytes_for`` unless layers compress.
        """
        check_count("num_tokens", num_tokens, least=0)
        return sum(layer.peak_bytes_for(num_tokens) for layer in self.layers)

    def held_bytes_for(self, num_tokens: int, step: int = 1, batch: int = 1) -> int:
        """Bytes of storage that transformers holds after a forward of ``step`` tokens that ended at ``num_tokens``.

        After a prefill of n tokens (``step=n``) a sliding layer still holds all n; after the next decode step
        (``step=1``) only its window.
        """
        check_count("num_tokens", num_tokens)
        check_count("step", step)
        check_count("batch", batch, least=0)
        if step > num_tokens:
            raise ArgumentError("out_of_range", what="step", value=step, low=0, high=num_tokens)
        return batch * sum(layer.held_bytes_for(num_tokens, step) for layer in self.layers)

    def bytes_read(self, num_tokens: int, batch: int = 1) -> int:
        """Bytes of the cache that one decode step of ``batch`` sequences has to read on this rank."""
        check_count("num_tokens", num_tokens, least=0)
        check_count("batch", batch, least=0)
        return batch * sum(layer.bytes_read(num_tokens) for layer in self.layers)

    def slope(self, num_tokens: int = 0) -> int:
        """Bytes that the next token adds to a sequence of ``num_tokens`` tokens, constant state left out.

        Of a compressed layer it is the token's share of an entry.
        """
        check_count("num_tokens", num_tokens, least=0)
        return sum(
            layer.mean_token_bytes
            for layer in self.layers
            if layer.window is None or num_tokens < layer.window
        )

    @property
    def window(self) -> int | None:
        """The most tokens that the narrowest windowed layer keeps; None where no layer has a window."""
        return min((layer.window for layer in self.layers if layer.window is not None), default=None)

    @property
    def constant_state_bytes(self) -> int:
        """Bytes that a sequence costs whatever its length: recurrent states, cross-attention, compression's buffers."""
        return sum(layer.state_bytes for layer in self.layers)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of ``block_size`` tokens in every layer that caches tokens.

        2 * layers * block_size * kv_heads * head_dim * itemsize for a model with equal layers.
        """
        check_count("block_size", block_size)
        return block_size * sum(layer.mean_token_bytes for layer in self.layers)

    def kinds(self) -> Counter[LayerSpec]:
        """The different layers, each with how many there are, in order of first appearance."""
        return Counter(self.layers)

    def shown(self, lang: str = "en") -> Shown:
        """The kinds of layers as a table, and what a token, a block and a sequence cost."""
        from minikv.plan.report import shown_spec  # it imports this file

        return shown_spec(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        state = [f"{format_bytes(self.constant_state_bytes)} a sequence"] if self.constant_state_bytes else []
        token = f"{format_bytes(self.slope(0))} a token"
        layers = f"{len(self.layers)} layers"
        return one_line(
            "CacheSpec", self.name, layers, token, *state, f"KV in {self.kv_dtype}", f"tp={self.tp}"
        )

    def explain(self, lang: str = "en") -> str:
        """The formula with its numbers, the config fields that it used and every assumption, as plain text."""
        from minikv.plan.explain import explain_spec  # the sentences are needed only here

        return explain_spec(self, lang)


def _asked_of_cache(config: Config, layout: str, model_dtype: str, assumptions: list) -> str | None:
    """The dtype that the checkpoint asks of an engine's cache; None where it asks nothing, or ``layout`` ignores it.

    transformers' own cache never quantizes, even if a checkpoint brings scales. So a scheme that minikv does not
    understand is an error with layout "vllm" only.
    """
    try:
        asked = kv_cache_quantization(config)
    except ConfigError as error:
        if layout == "vllm" or error.code != "kv_scheme_unknown":
            raise
        asked = str(error.values["value"])
    if asked is not None and layout != "vllm":
        assumptions.append(("kv_quantization_unused", {"asked": asked, "dtype": model_dtype}))
        return None
    return asked


def model_dtype_of(config: Config, assumptions: list) -> str:
    """The dtype that the model computes in, from ``dtype`` or the older ``torch_dtype``."""
    for name in ("dtype", "torch_dtype"):
        for fields in (config.fields, config.whole):
            stated = fields.get(name)
            if stated is None:
                continue
            try:
                find_kv_dtype(stated)
            except ArgumentError:
                raise config.refuse(name, stated) from None
            return config.record(name, stated, "config")
    assumptions.append(("assumed_dtype", {}))
    return config.assume("dtype", "bfloat16")


# Whisper's decoder has positions of its own, beside its encoder's frames; MPT has its own name.
_POSITION_FIELDS = ("max_target_positions", "max_position_embeddings", "max_seq_len")


def _max_positions(config: Config, assumptions: list) -> int | None:
    """The most positions that the model has, or None where its config sets no limit (T5, Mamba).

    YaRN stretches the positions that a model was trained on: original_max_position_embeddings * factor. Some
    configs state the product (DeepSeek-V3), some the original (Qwen3 with YaRN switched on): the larger counts.
    """
    stated = next((name for name in _POSITION_FIELDS if config.get(name) is not None), None)
    if stated is None:
        return None
    most = config.count(stated)
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(rope, dict) and "yarn" in (rope.get("rope_type"), rope.get("type")):
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if (
            isinstance(original, int)
            and isinstance(factor, int | float)
            and most < original * factor < LARGEST_COUNT
        ):
            assumptions.append(("yarn_positions", {"original": original, "factor": factor, "stated": most}))
            return int(original * factor)
    return most
