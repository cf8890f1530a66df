"""The memory that llama.cpp takes for a GGUF model: weights, and a cache that is allocated whole at the start.

llama.cpp's cache has cells, not blocks. A layer without a window has ``n_ctx`` of them, shared by all sequences
(``--kv-unified``) or divided among them; a layer with a window has the window's and those of one batch. Both are
rounded up to 256. Source: ``llama_context``'s constructor, ``llama_kv_cache_iswa`` and ``llama_memory_recurrent`` of
llama.cpp b11434. The compute buffer is allocated after them; no header has its size, so it is assumed.
"""

import math
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from minikv.errors import ArgumentError, ConfigError, check_count
from minikv.plan.budget import CUDA_CONTEXT_BYTES, WORKSPACE_BYTES, find_context, find_total_bytes
from minikv.plan.catalog import GPU
from minikv.plan.gguf.ggml_types import find_cache_type
from minikv.plan.gguf.keys import Keys
from minikv.plan.gguf.layers import read_layers
from minikv.plan.gguf.parts import GGUFModel, read_gguf
from minikv.plan.spec.cache_spec import LLAMA_CPP, CacheSpec
from minikv.plan.spec.layers import LayerSpec
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes

CELL_STEP = 256  # llama.cpp rounds its numbers of cells up to it
DEFAULT_CHUNK = 512  # --ubatch-size

# Looked up on the CPU, one row a token: LLM_TENSOR_LAYER_INPUT in llama-arch.cpp.
HOST_TENSORS = (
    "token_embd.weight",
    "position_embd.weight",
    "token_types.weight",
    "per_layer_token_embd.weight",
)
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class GGUFWeights:
    """Bytes of a model's tensors: of each block that runs, of the output (the head, a norm), and of the rest.

    ``host`` are the embedding tables, which llama.cpp leaves in host memory; a head that is tied to one is counted in
    ``output``, since it is copied. ``not_loaded`` are ``num_predicting`` blocks for multi-token prediction. ``by_type``
    are the bytes in the files by ggml type, most first.
    """

    blocks: tuple[int, ...]
    output: int
    host: int
    not_loaded: int
    num_predicting: int
    num_parameters: int
    by_type: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def on_gpu(self) -> int:
        """Bytes with every layer on the GPU (-ngl 99)."""
        return sum(self.blocks) + self.output

    @property
    def in_files(self) -> int:
        return sum(self.by_type.values())


@dataclass(frozen=True)
class GGUFPlan:
    """What llama.cpp allocates for ``batch`` sequences of ``context`` tokens. All figures are bytes unless named else.

    ``chunk`` is its --ubatch-size. ``unified``: one cache for all sequences (--kv-unified). ``total_bytes`` is the
    GPU's memory, None where none was named.
    """

    model: GGUFModel
    spec: CacheSpec
    weights: GGUFWeights
    context: int
    batch: int
    chunk: int
    unified: bool = True
    total_bytes: int | None = None
    gpu: GPU | None = None
    cuda_context_bytes: int = CUDA_CONTEXT_BYTES
    workspace_bytes: int = WORKSPACE_BYTES

    @property
    def n_ctx(self) -> int:
        """llama.cpp's --ctx-size: the tokens of all sequences together, rounded up to whole steps of 256."""
        return _up(self.context * self.batch)

    @property
    def cells(self) -> int:
        """Cells of a layer without a window, over all sequences."""
        return self.n_ctx if self.unified else self.batch * _up(self.n_ctx // self.batch)

    def layer_cells(self, layer: LayerSpec) -> int:
        """Cells of ``layer``, over all sequences: those of its window and of one batch where it has a window."""
        if layer.window is None:
            return self.cells
        if self.unified:
            return _up(min(self.cells, layer.window * self.batch + self.chunk))
        return self.batch * _up(min(self.cells // self.batch, layer.window + self.chunk))

    def layer_bytes(self, layer: LayerSpec) -> int:
        """Bytes of the cells of ``layer``, and of its states."""
        return self.layer_cells(layer) * layer.token_bytes + self.batch * layer.state_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes that llama.cpp allocates for the cache when it starts, whatever is said later."""
        return sum(map(self.layer_bytes, self.spec.layers))

    @property
    def other_bytes(self) -> int:
        """The CUDA context and the workspace: both assumed."""
        return self.cuda_context_bytes + self.workspace_bytes

    @property
    def left_bytes(self) -> int:
        """Memory of the GPU that stays free with every layer on it; negative where they do not fit."""
        if self.total_bytes is None:
            raise ArgumentError("no_gpu")
        return self.total_bytes - self.other_bytes - self.weights.on_gpu - self.cache_bytes

    @property
    def fits(self) -> bool:
        """Whether weights and cache fit with every layer on the GPU."""
        return self.left_bytes >= 0

    @property
    def gpu_layers(self) -> int:
        """The largest -ngl that fits: the output first, then the last layers, each with its cache."""
        room = (self.total_bytes or 0) - self.other_bytes
        # -ngl counts blocks for multi-token prediction, too, though they are not loaded.
        sizes = [self.weights.output, *[0] * self.weights.num_predicting]
        for weights, layer in zip(self.weights.blocks[::-1], self.spec.layers[::-1], strict=True):
            sizes.append(weights + self.layer_bytes(layer))
        fitting = 0
        for size in sizes:
            room -= size
            if room < 0:
                break
            fitting += 1
        return fitting

    def with_context(self, context: int) -> "GGUFPlan":
        """The same with ``context`` tokens a sequence."""
        return replace(self, context=context)

    def divided(self) -> "GGUFPlan":
        """The same with cells of its own for each sequence (without --kv-unified)."""
        return replace(self, unified=False)

    def max_context(self, batch: int | None = None) -> int:
        """The most tokens that each of ``batch`` sequences can have, in whole steps; 0 where none fit.

        No more than the model's positions.
        """
        batch = self.batch if batch is None else batch
        check_count("batch", batch)
        most = self.spec.max_positions or 2**40
        low, high = 0, -(-most // CELL_STEP) + 1
        while high - low > 1:
            middle = (low + high) // 2
            tried = replace(self, context=middle * CELL_STEP, batch=batch)
            low, high = (middle, high) if tried.fits else (low, middle)
        return min(low * CELL_STEP, most)

    def in_type(self, kv_dtype: str) -> "GGUFPlan":
        """The same load with K and V in another cache type.

        Raises ``ConfigError`` where the type's blocks do not divide a head.
        """
        return replace(self, spec=gguf_spec(self.model, kv_dtype, None))

    def compared(self) -> dict[str, "GGUFPlan"]:
        """The same load in its own types and in those that are asked for most, the largest first."""
        plans = {self.spec.kv_dtype: self}
        for name in ("f16", "q8_0", "q4_0"):
            with suppress(ConfigError):  # its blocks do not divide a head
                plans.setdefault(name, self.in_type(name))
        return dict(sorted(plans.items(), key=lambda each: -each[1].cache_bytes))

    def parts(self) -> dict[str, int]:
        """The parts of the GPU's memory, in order; they add up to ``total_bytes``. ``left`` may be negative."""
        return {
            "weights": self.weights.on_gpu,
            "workspace": self.workspace_bytes,
            "cuda_context": self.cuda_context_bytes,
            "kv_cells": self.cache_bytes,
            "left": self.left_bytes,
        }

    def command(self) -> str:
        """The llama-server command with this load."""
        k, _, v = self.spec.kv_dtype.partition("/")
        words = [
            "llama-server",
            "-m",
            str(self.model.headers[0].path),
            "-c",
            str(self.n_ctx),
            "-np",
            str(self.batch),
        ]
        words += ["--kv-unified"] if self.unified and self.batch > 1 else []
        words += ["-ctk", k, "-ctv", v or k, "-ub", str(self.chunk)]
        words += ["-ngl", str(self.gpu_layers)] if self.total_bytes is not None else []
        return shlex.join(words)

    def shown(self, lang: str = "en") -> Shown:
        """The parts of the GPU's memory, or without a GPU the layers; what is allocated, and what fits."""
        from minikv.plan.gguf.report import shown_plan  # it imports this file

        return shown_plan(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        load = f"{self.batch:,} x {self.context:,} tokens take {format_bytes(self.cache_bytes)}"
        weights = f"weights {format_bytes(self.weights.on_gpu)}"
        fits = [] if self.total_bytes is None else ["it fits" if self.fits else "it does not fit"]
        return one_line("GGUFPlan", self.spec.name, weights, f"KV in {self.spec.kv_dtype}", load, *fits)


def plan_gguf(
    path: str | Path,
    *,
    kv_dtype: str = "f16",
    v_dtype: str | None = None,
    context: int | None = None,
    batch: int = 1,
    chunk: int = DEFAULT_CHUNK,
    unified: bool = True,
    gpu: str | None = None,
    gpu_bytes: int | None = None,
    cuda_context_bytes: int = CUDA_CONTEXT_BYTES,
    workspace_bytes: int = WORKSPACE_BYTES,
) -> GGUFPlan:
    """What llama.cpp allocates for the GGUF file at ``path``, from its header alone.

    ``kv_dtype`` is llama.cpp's --cache-type-k, and --cache-type-v where ``v_dtype`` is None. ``context`` is tokens a
    sequence (None: 4,096, or all positions where there are fewer), ``batch`` the sequences, ``chunk`` --ubatch-size.
    ``gpu`` and ``gpu_bytes`` are those of ``plan_memory``; without both, nothing is asked of a GPU.

    Raises ``ConfigError`` for a file that is damaged or not understood, ``ArgumentError`` and ``UnknownNameError``.
    """
    counts = {"batch": batch, "chunk": chunk} | ({"context": context} if context is not None else {})
    for what, value in counts.items():
        check_count(what, value)
    for what, value in (("cuda_context_bytes", cuda_context_bytes), ("workspace_bytes", workspace_bytes)):
        check_count(what, value, least=0)
    model = read_gguf(path)
    spec = gguf_spec(model, kv_dtype, v_dtype)
    card, total = None, None
    if gpu is not None or gpu_bytes is not None:
        card, total = find_total_bytes(gpu, gpu_bytes)
    return GGUFPlan(
        model=model,
        spec=spec,
        weights=_weights(model, spec),
        context=find_context(spec, context),
        batch=batch,
        chunk=chunk,
        unified=unified,
        total_bytes=total,
        gpu=card,
        cuda_context_bytes=cuda_context_bytes,
        workspace_bytes=workspace_bytes,
    )


def gguf_spec(model: GGUFModel, kv_dtype: str, v_dtype: str | None) -> CacheSpec:
    """The layers of ``model`` with K in ``kv_dtype`` and V in ``v_dtype`` (None: the same)."""
    k_type = find_cache_type(kv_dtype)
    v_type = k_type if v_dtype is None else find_cache_type(v_dtype)
    keys = Keys(model.metadata, model.name)
    layers = read_layers(keys, k_type, v_type)
    shared = sum(layer.kind == "shared" for layer in layers)
    return CacheSpec(
        layers=tuple(layers),
        name=model.name,
        model_type=keys.architecture,
        kv_dtype=k_type.name if k_type == v_type else f"{k_type.name}/{v_type.name}",
        layout=LLAMA_CPP,
        max_positions=keys.count("context_length"),
        fields=tuple(keys.used.values()),
        assumptions=(("shared_layers", {"count": shared}),) if shared else (),
    )


def _weights(model: GGUFModel, spec: CacheSpec) -> GGUFWeights:
    num_layers = len(spec.layers)
    blocks = [0] * num_layers
    output = host = not_loaded = 0
    sizes = {tensor.name: tensor.num_bytes for tensor in model.tensors}
    for name, size in sizes.items():
        match = _BLOCK.match(name)
        if match and int(match[1]) < num_layers:
            blocks[int(match[1])] += size
        elif match:
            not_loaded += size
        elif name in HOST_TENSORS:
            host += size
        else:
            output += size
    if "output.weight" not in sizes:  # tied: the GPU gets a copy of the embedding table as its head
        output += sizes.get("token_embd.weight", 0)
    parameters = sum(math.prod(tensor.shape) for tensor in model.tensors)
    return GGUFWeights(
        blocks=tuple(blocks),
        output=output,
        host=host,
        not_loaded=not_loaded,
        num_predicting=model.metadata[f"{spec.model_type}.block_count"] - num_layers,
        num_parameters=parameters,
        by_type=dict(model.bytes_by_type),
    )


def _up(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP
