"""The memory of a GPU on paper: weights, activations, workspace, context, and the rest is the pool.

The form on paper and the form that an engine measures after a warm-up are the same sum:

    pool = total * utilization - weights - activations - workspace - context
    pool = total * utilization - used - peak + current
           used = weights + context        (all memory in use on the GPU, as the driver sees it)
           peak = weights + activations + workspace     (the most that the forward had allocated)
           current = weights               (what is allocated now)
"""

import math
from dataclasses import dataclass
from typing import Any

from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.i18n import text
from minikv.plan import pool
from minikv.plan.activations import Activations, activation_peak, routed_experts
from minikv.plan.catalog import GPU, find_gpu
from minikv.plan.dtypes import AnyKVDtype, find_kv_dtype
from minikv.plan.measured import MeasuredTerms, check_utilization
from minikv.plan.report import card, shown_budget
from minikv.plan.spec.architectures import ARCHITECTURES
from minikv.plan.spec.cache_spec import LLAMA_CPP, CacheSpec, Layout
from minikv.plan.spec.config import read_config
from minikv.plan.weights.weight_bytes import WeightBytes
from minikv.plan.weights.weight_bytes import weight_bytes as find_weight_bytes
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import MIB, format_bytes

# No config has the memory of a CUDA context, its loaded kernels and a library's workspace. These are assumptions,
# named as such in every answer; an engine measures them (`allocate_kv_cache`).
CUDA_CONTEXT_BYTES = 512 * MIB
WORKSPACE_BYTES = 512 * MIB

DEFAULT_CONTEXT = 4096  # tokens


@dataclass(frozen=True)
class MemoryBudget:
    """One GPU's memory, per rank. All figures are bytes unless their name says otherwise.

    ``experts`` is (experts in a layer, experts a token is routed to), (0, 0) without experts, None where only layers
    were described.
    """

    spec: CacheSpec
    weights: WeightBytes
    activations: Activations
    total_bytes: int
    utilization: float
    cuda_context_bytes: int
    workspace_bytes: int
    block_size: int
    chunk: int
    context: int
    batch: int
    gpu: GPU | None = None
    experts: tuple[int, int] | None = (0, 0)

    @property
    def limit_bytes(self) -> int:
        """The bytes of the GPU that the engine may use: int(total * utilization)."""
        return int(self.total_bytes * self.utilization)

    @property
    def weight_bytes(self) -> int:
        return self.weights.total

    @property
    def weight_source(self) -> str:
        """ "index" (a safetensors index), "shapes" (the config's), or "given"."""
        return self.weights.source

    @property
    def activation_bytes(self) -> int:
        return self.activations.bytes

    @property
    def kv_bytes(self) -> int:
        """The pool: the rest for the KV cache. Negative where the model itself does not fit."""
        taken = self.weight_bytes + self.activation_bytes + self.workspace_bytes + self.cuda_context_bytes
        return self.limit_bytes - taken

    @property
    def needed_bytes(self) -> int:
        """Bytes that ``batch`` sequences of ``context`` tokens take from the pool, in whole blocks."""
        return self.batch * pool.sequence_bytes(self.spec, self.context, self.block_size)

    @property
    def fits(self) -> bool:
        """Whether ``batch`` sequences of ``context`` tokens fit into the pool."""
        return self.needed_bytes <= self.kv_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one of the ``num_blocks`` blocks."""
        return pool.counted_block_bytes(self.spec, self.block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool; see ``pool.num_blocks`` for models with windows or recurrent layers.

        The memory of windows and states is counted for ``batch`` sequences, or for as many as fit.
        """
        batch = min(self.batch, self.max_batch())
        return pool.num_blocks(self.spec, self.kv_bytes, self.context, batch, self.block_size)

    @property
    def max_tokens(self) -> int:
        """Tokens in the pool: num_blocks * block_size, shared by ``batch`` sequences."""
        return self.num_blocks * self.block_size

    def max_batch(self, context: int | None = None) -> int:
        """How many sequences of ``context`` tokens fit into the pool (default: the budget's own context)."""
        context = self.context if context is None else context
        return pool.max_sequences(self.spec, max(0, self.kv_bytes), context, self.block_size)

    def max_context(self, batch: int | None = None) -> int | float:
        """The most tokens that each of ``batch`` sequences can have, capped at ``spec.max_positions``."""
        batch = self.batch if batch is None else batch
        length = pool.max_length(self.spec, max(0, self.kv_bytes), batch, self.block_size)
        return min(length, self.spec.max_positions or math.inf)

    def parts(self) -> dict[str, int]:
        """The parts of the GPU's memory in bytes, in order; they add up to ``total_bytes``.

        ``kv_used`` is the part of the pool that ``batch`` sequences of ``context`` tokens take, ``kv_left`` the rest
        of it. ``kept_free`` is the part that ``utilization`` leaves to other processes.
        """
        used = min(self.needed_bytes, self.kv_bytes)
        return {
            "weights": self.weight_bytes,
            "activations": self.activation_bytes,
            "workspace": self.workspace_bytes,
            "cuda_context": self.cuda_context_bytes,
            "kv_used": used,
            "kv_left": self.kv_bytes - used,
            "kept_free": self.total_bytes - self.limit_bytes,
        }

    def wanted(self) -> dict[str, int]:
        """The bytes that everything would take, in order, whether there is room for it (``limit_bytes``) or not."""
        parts = self.parts()
        taken = ("weights", "activations", "workspace", "cuda_context")
        return {**{name: parts[name] for name in taken}, "kv_used": self.needed_bytes}

    def shown(self, lang: str = "en") -> Shown:
        """The parts of the memory with bars, the contents of the pool, both forms of the sum, and the assumptions."""
        return shown_budget(self, lang)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        pool_size = f"{self.num_blocks:,} blocks of {self.block_size} tokens"
        load = f"{self.batch:,} x {self.context:,} tokens {'fit' if self.fits else 'do not fit'}"
        name = f"{self.spec.name} on {self.spec.tp} x {card(self)}"
        return one_line("MemoryBudget", name, f"KV {format_bytes(self.kv_bytes)}", pool_size, load)

    def assumptions(self, lang: str = "en") -> list[str]:
        """The assumptions behind these figures that are in no config, one sentence each."""
        said = [text(f"plan.{key}", lang, **values) for key, values in self.spec.assumptions]
        said += [text(f"weights.{key}", lang, **values) for key, values in self.weights.assumptions]
        if self.activations.stages:
            stage = text(f"plan.stage_{self.activations.stage}", lang)
            said.append(text("plan.assume_activations", lang, stage=stage, chunk=self.chunk))
        said.append(
            text(
                "plan.assume_other",
                lang,
                context=format_bytes(self.cuda_context_bytes),
                workspace=format_bytes(self.workspace_bytes),
            )
        )
        groups = pool.counted_groups(self.spec)
        if groups and groups[0].layer.window is not None:
            said.append(text("plan.assume_blocks_slide", lang))
        elif self.spec.window is not None or self.spec.constant_state_bytes:
            said.append(text("plan.assume_blocks", lang, batch=self.batch, context=self.context))
        return said

    def measured_form(self) -> dict[str, int]:
        """The same pool as ``total * utilization - used - peak + current``: each term, and ``available``."""
        return MeasuredTerms(
            total=self.total_bytes,
            utilization=self.utilization,
            used=self.weight_bytes + self.cuda_context_bytes,
            peak=self.weight_bytes + self.activation_bytes + self.workspace_bytes,
            current=self.weight_bytes,
        ).as_dict()


def plan_memory(
    config: Any,
    *,
    gpu: str | None = None,
    gpu_bytes: int | None = None,
    tp: int = 1,
    context: int | None = None,
    batch: int = 1,
    kv_dtype: AnyKVDtype | None = None,
    utilization: float = 0.9,
    block_size: int = 16,
    chunk: int = 8192,
    weight_bytes: int | None = None,
    weight_dtype: str | None = None,
    activation_bytes: int | None = None,
    cuda_context_bytes: int = CUDA_CONTEXT_BYTES,
    workspace_bytes: int = WORKSPACE_BYTES,
    layout: Layout = "hf",
    encoder_tokens: int | None = None,
) -> MemoryBudget:
    """The budget of one GPU that is one of ``tp`` ranks serving the model of ``config``.

    ``gpu`` is a catalogue name; ``gpu_bytes`` overrides its memory and is required where the catalogue has no
    figure that torch would see. ``chunk`` is the most tokens that one forward prefills, ``utilization`` the
    share of the GPU that the engine may use. ``context`` is tokens a sequence, prompt and answer together; None
    is 4,096 or all of the model's positions where it has fewer. ``weight_bytes`` is one rank's, for models of
    unknown shapes; ``weight_dtype`` ("bf16", "fp8", "int8", "int4", …) counts them by shapes in that dtype, not
    in the checkpoint's. ``activation_bytes`` (one rank's, of a forward of ``chunk`` tokens) stands in place of the
    estimate. The other arguments are those of ``CacheSpec.from_config``.

    ``config`` may be a ``CacheSpec``, too: of a model that minikv does not know, so that ``weight_bytes`` and
    ``activation_bytes`` have to be given, and ``tp``, ``kv_dtype``, ``layout`` and ``encoder_tokens`` are the spec's.

    Raises ``ConfigError``, ``UnknownNameError``, ``ArgumentError``, and ``DoesNotFitError`` where no block is
    left for the cache, with every term.
    """
    # A wrong name raises before anything else.
    reader = None if isinstance(config, CacheSpec) else read_config(config)
    counts = {"batch": batch, "block_size": block_size, "chunk": chunk}
    if context is not None:
        counts["context"] = context
    for what, value in counts.items():
        check_count(what, value)
    for what, value in (("cuda_context_bytes", cuda_context_bytes), ("workspace_bytes", workspace_bytes)):
        check_count(what, value, least=0)
    check_utilization(utilization)
    card, total = find_total_bytes(gpu, gpu_bytes)
    if activation_bytes is not None:
        check_count("activation_bytes", activation_bytes, least=0)
    asked: dict[str, Any] = {
        "tp": tp,
        "kv_dtype": kv_dtype,
        "layout": layout,
        "encoder_tokens": encoder_tokens,
    }
    if reader is None:
        spec = config
        weights = _described_weights(
            spec, weight_bytes, activation_bytes, asked | {"weight_dtype": weight_dtype}
        )
    else:
        spec = CacheSpec.from_config(config, **asked)
        known = ARCHITECTURES.get(reader.model_type)
        if activation_bytes is None and known is None:
            raise ArgumentError("measured_needs_activations", name=reader.name, model_type=reader.stated_type)
        weights = find_weight_bytes(config, tp=tp, weight_bytes=weight_bytes, weight_dtype=weight_dtype)
    context = find_context(spec, context)
    if activation_bytes is not None or reader is None:
        activations = Activations(activation_bytes or 0, "given", {})
    else:
        itemsize = find_kv_dtype(_dtype_of(spec)).itemsize
        activations = activation_peak(
            reader, chunk=chunk, batch=batch, tp=tp, itemsize=itemsize, context=context
        )
    budget = MemoryBudget(
        spec=spec,
        weights=weights,
        activations=activations,
        total_bytes=total,
        utilization=utilization,
        cuda_context_bytes=cuda_context_bytes,
        workspace_bytes=workspace_bytes,
        block_size=block_size,
        chunk=chunk,
        context=context,
        batch=batch,
        gpu=card,
        experts=None if reader is None else routed_experts(reader),
    )
    smallest = pool.sequence_bytes(spec, 1, block_size)
    if budget.kv_bytes < smallest:
        raise _does_not_fit(budget, smallest)
    return budget


_OF_A_SPEC = {"tp": 1, "kv_dtype": None, "layout": "hf", "encoder_tokens": None, "weight_dtype": None}


def _described_weights(
    spec: CacheSpec, weight_bytes: int | None, activation_bytes: int | None, asked: dict[str, Any]
) -> WeightBytes:
    """The weights as given, since no config has their shapes.

    Raises ``ArgumentError`` where they or the activations are missing, and for what the spec has itself.
    """
    twice = [name for name, value in asked.items() if value != _OF_A_SPEC[name]]
    if twice:
        raise ArgumentError("spec_has_it", asked=", ".join(twice), name=spec.name)
    given = {"weight_bytes": weight_bytes, "activation_bytes": activation_bytes}
    missing = [name for name, value in given.items() if value is None]
    if weight_bytes is None or missing:
        raise ArgumentError("spec_needs_bytes", missing=", ".join(missing), name=spec.name)
    check_count("weight_bytes", weight_bytes)
    return WeightBytes(weight_bytes, None, "given")


def find_context(spec: CacheSpec, context: int | None) -> int:
    """``context`` tokens, or where it is None 4,096 or all positions of a model that has fewer.

    Raises ``ArgumentError`` for more than the model has.
    """
    context = context or min(DEFAULT_CONTEXT, spec.max_positions or DEFAULT_CONTEXT)
    if spec.max_positions and context > spec.max_positions:
        field = "context_length" if spec.layout == LLAMA_CPP else "max_position_embeddings"
        values = {"context": context, "most": spec.max_positions, "field": field}
        raise ArgumentError("context_too_long", name=spec.name, **values)
    return context


def find_total_bytes(gpu: str | None, gpu_bytes: int | None) -> tuple[GPU | None, int]:
    """The GPU of that name, None without one, and its memory: ``gpu_bytes`` where it is given.

    Raises ``ArgumentError`` where neither gives the memory, ``UnknownNameError`` for a name.
    """
    card = find_gpu(gpu) if gpu is not None else None
    if gpu_bytes is not None:
        check_count("gpu_bytes", gpu_bytes)
        return card, gpu_bytes
    if card is None:
        raise ArgumentError("no_gpu")
    if card.total_bytes is None:
        raise ArgumentError("gpu_without_bytes", name=card.name)
    return card, card.total_bytes


def _dtype_of(spec: CacheSpec) -> str:
    """The dtype that the model computes in, as the spec read it from the config."""
    return next((use.value for use in spec.fields if use.name in ("dtype", "torch_dtype")), "bf16")


def _does_not_fit(budget: MemoryBudget, smallest: int) -> DoesNotFitError:
    refusal = DoesNotFitError(
        "does_not_fit",
        name=budget.spec.name,
        short=format_bytes(smallest - budget.kv_bytes),
        limit=format_bytes(budget.limit_bytes),
        weights=format_bytes(budget.weight_bytes),
        activations=format_bytes(budget.activation_bytes),
        other=format_bytes(budget.workspace_bytes + budget.cuda_context_bytes),
        tp=budget.spec.tp,
        chunk=budget.chunk,
    )
    refusal.budget = budget
    return refusal
