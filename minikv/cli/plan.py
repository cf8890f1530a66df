"""``minikv plan``: where every GiB of a GPU goes, how many blocks, tokens and sequences that leaves.

A GGUF file is planned as llama.cpp allocates: ``plan_gguf.py``.
"""

import json
import math
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minikv.cli.options import Json, Lang, size
from minikv.errors import ArgumentError, check_count
from minikv.i18n import pick_language, text
from minikv.plan.gguf.parts import is_gguf

if TYPE_CHECKING:
    from minikv.plan.budget import MemoryBudget
    from minikv.plan.spec.cache_spec import CacheSpec

# The options that llama.cpp's memory for a GGUF file depends on, or that say how it is shown.
OF_GGUF = set(
    """config gpu gpu_bytes context batch kv_dtype v_dtype chunk cuda_context_bytes workspace_bytes table explain
    as_json lang""".split()
)

# Those that only a config answers; a file of layers is one rank's, and says the rest itself.
OF_A_CONFIG = {"tp", "layout", "encoder_tokens", "weight_dtype", "model_type"}


def plan(
    context_of_call: typer.Context,
    config: Annotated[str | None, typer.Argument()] = None,
    gpu: str | None = None,
    gpu_bytes: str | None = None,
    tp: int = 1,
    context: int | None = None,
    batch: int = 1,
    kv_dtype: str | None = None,
    v_dtype: str | None = None,
    utilization: float = 0.9,
    block_size: int = 16,
    chunk: int = 8192,
    weight_bytes: str | None = None,
    cuda_context_bytes: str | None = None,
    workspace_bytes: str | None = None,
    weight_dtype: str | None = None,
    activation_bytes: str | None = None,
    layers: str | None = None,
    model_type: str | None = None,
    layout: str = "hf",
    encoder_tokens: int | None = None,
    table: Annotated[bool, typer.Option("--table")] = False,
    explain: Annotated[bool, typer.Option("--explain")] = False,
    list_: Annotated[bool, typer.Option("--list")] = False,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Plan a GPU's memory for a model: weights, activations, KV cache, blocks, tokens, sequences.

    Without a GPU: what a token of the cache costs, and the bytes of --context and --batch.
    """
    from minikv.cli import plan_view

    lang = pick_language(lang)
    if list_:
        plan_view.show_catalogue(lang, as_json=as_json)
        return
    if layers is not None and config is not None:
        raise ArgumentError("config_and_layers", config=config, layers=layers)
    if config is None and layers is None:
        raise ArgumentError("no_config")
    memory: dict[str, Any] = {
        "gpu": gpu,
        "gpu_bytes": size("--gpu-bytes", gpu_bytes),
        "context": context,
        "batch": batch,
    }
    assumed: dict[str, Any] = {
        "cuda_context_bytes": size("--cuda-context-bytes", cuda_context_bytes),
        "workspace_bytes": size("--workspace-bytes", workspace_bytes),
    }
    assumed = {name: value for name, value in assumed.items() if value is not None}
    if config is not None and is_gguf(config):
        from minikv.cli.plan_gguf import show_gguf
        from minikv.plan import plan_gguf

        given = {name for name in context_of_call.params if _is_given(context_of_call, name)}
        unused = [_option(name) for name in context_of_call.params if name in given - OF_GGUF]
        if unused:
            raise ArgumentError("gguf_options", asked=", ".join(unused))
        if "chunk" in given:
            memory["chunk"] = chunk
        planned = plan_gguf(config, kv_dtype=kv_dtype or "f16", v_dtype=v_dtype, **memory, **assumed)
        show_gguf(planned, lang, explain=explain, table=table, as_json=as_json)
        return
    if v_dtype is not None:
        raise ArgumentError("plan_v_dtype", value=v_dtype)
    source: Any = config
    if layers is not None:
        given = {name for name in OF_A_CONFIG if _is_given(context_of_call, name)}
        if given:
            raise ArgumentError("layers_have_it", asked=", ".join(map(_option, sorted(given))))
    elif model_type is not None:
        from minikv.plan.spec.config import with_model_type

        source = with_model_type(config, model_type)
    cache: dict[str, Any] = {
        "tp": tp,
        "kv_dtype": kv_dtype,
        "layout": layout,
        "encoder_tokens": encoder_tokens,
    }
    needs_gpu = {
        "--utilization": utilization != 0.9, "--block-size": block_size != 16, "--chunk": chunk != 8192,
        "--weight-bytes": weight_bytes, "--weight-dtype": weight_dtype, "--table": table,
        "--cuda-context-bytes": cuda_context_bytes, "--workspace-bytes": workspace_bytes,
        "--activation-bytes": activation_bytes,
    }  # fmt: skip
    if layers is not None:
        from minikv.plan import CacheSpec

        source, cache = CacheSpec.from_layers(layers, kv_dtype=kv_dtype), {}
    if explain or (gpu is None and gpu_bytes is None):
        from minikv.plan import CacheSpec

        spec = source if layers is not None else CacheSpec.from_config(source, **cache)
        asked = [option for option, given in needs_gpu.items() if given]
        if explain:
            print(spec.explain(lang))
        elif asked:
            raise ArgumentError("plan_needs_gpu", asked=", ".join(asked))
        else:
            load = _load(spec, context, batch)
            if as_json:
                print(json.dumps(spec_dict(spec, lang) | load, indent=2))
            else:
                plan_view.show_spec(spec, load, lang)
        return
    from minikv.plan import plan_memory

    budget = plan_memory(
        source,
        utilization=utilization,
        block_size=block_size,
        chunk=chunk,
        weight_bytes=size("--weight-bytes", weight_bytes),
        weight_dtype=weight_dtype,
        activation_bytes=size("--activation-bytes", activation_bytes),
        **memory,
        **cache,
        **assumed,
    )
    if table:
        plan_view.show_table(budget, lang, as_json=as_json)
    elif as_json:
        print(json.dumps(as_dict(budget, lang), indent=2))
    else:
        plan_view.show_budget(budget, lang)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether the option stands on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _load(spec: "CacheSpec", context: int | None, batch: int) -> dict[str, int]:
    """What --context and --batch ask for, and its bytes in the cache; {} where neither is given."""
    from minikv.plan.budget import find_context

    check_count("batch", batch)
    if context is not None:
        check_count("context", context)
    elif batch == 1:
        return {}
    length = find_context(spec, context)
    return {"context": length, "batch": batch, "cache_bytes": spec.bytes_for(length, batch)}


def spec_dict(spec: "CacheSpec", lang: str = "en") -> dict[str, Any]:
    """The cost of the cache as plain JSON values; sizes are integers of bytes. Equal neighbours are one entry."""
    runs = [(layer, sum(1 for _ in run)) for layer, run in groupby(spec.layers)]
    layers = [{"count": count, "token_bytes": layer.token_bytes, **asdict(layer)} for layer, count in runs]
    return {
        "model": spec.name,
        "model_type": spec.model_type,
        "tp": spec.tp,
        "kv_dtype": spec.kv_dtype,
        "layout": spec.layout,
        "token_bytes": spec.slope(0),
        "state_bytes": spec.constant_state_bytes,
        "window": spec.window,
        "max_positions": spec.max_positions,
        "layers": layers,
        "assumptions": [text(f"plan.{key}", lang, **values) for key, values in spec.assumptions],
    }


def as_dict(budget: "MemoryBudget", lang: str = "en") -> dict[str, Any]:
    """The budget as plain JSON values; sizes are integers of bytes, None stands for "no limit"."""
    most = budget.max_context()
    return spec_dict(budget.spec) | {
        "gpu": budget.gpu.name if budget.gpu else None,
        "total_bytes": budget.total_bytes,
        "utilization": budget.utilization,
        "parts": budget.parts(),
        "pool_bytes": budget.kv_bytes,
        "measured_form": budget.measured_form(),
        "weight_source": budget.weight_source,
        "num_parameters": budget.weights.num_parameters,
        "activation_stage": budget.activations.stage,
        "chunk": budget.chunk,
        "block_size": budget.block_size,
        "block_bytes": budget.block_bytes,
        "num_blocks": budget.num_blocks,
        "max_tokens": budget.max_tokens,
        "context": budget.context,
        "batch": budget.batch,
        "needed_bytes": budget.needed_bytes,
        "fits": budget.fits,
        "max_batch": budget.max_batch(),
        "max_context": None if most == math.inf else most,
        "assumptions": budget.assumptions(lang),
    }
