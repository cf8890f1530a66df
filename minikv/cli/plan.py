"""``minikv plan``: where every GiB of a GPU goes, how many blocks, tokens and sequences that leaves."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minikv.cli.options import Json, Lang, size
from minikv.errors import ArgumentError, check_count
from minikv.i18n import pick_language, text

if TYPE_CHECKING:
    from minikv.plan.budget import MemoryBudget
    from minikv.plan.spec import CacheSpec


def plan(
    config: Annotated[
        str | None, typer.Argument(help="A catalogue name, a config.json or a local model folder.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="A GPU of the catalogue, such as H200.")] = None,
    gpu_bytes: Annotated[
        str | None, typer.Option(help="The GPU's memory, such as 80GiB; overrides --gpu.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size: GPUs that share the model.")] = 1,
    context: Annotated[int | None, typer.Option(help="Tokens a sequence, prompt and answer.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    kv_dtype: Annotated[
        str | None, typer.Option(help="bf16, fp16, fp32, fp8, fp8_e5m2, fp8_scaled or int8.")
    ] = None,
    utilization: Annotated[float, typer.Option(help="Share of the GPU that may be used.")] = 0.9,
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16,
    chunk: Annotated[int, typer.Option(help="The most tokens that one forward prefills.")] = 8192,
    weight_bytes: Annotated[
        str | None, typer.Option(help="One rank's weights, where they cannot be known.")
    ] = None,
    cuda_context_bytes: Annotated[str | None, typer.Option(help="The CUDA context (assumed 512MiB).")] = None,
    workspace_bytes: Annotated[
        str | None, typer.Option(help="Libraries' scratch memory (assumed 512MiB).")
    ] = None,
    weight_dtype: Annotated[
        str | None, typer.Option(help="Count the weights in bf16, fp16, fp32, fp8, int8, int4 or nvfp4.")
    ] = None,
    model_type: Annotated[
        str | None, typer.Option(help="The architecture, such as llama, where the config does not say it.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="hf, hf-expanded (MLA before transformers 5.15) or vllm.")
    ] = "hf",
    encoder_tokens: Annotated[
        int | None, typer.Option(help="Encoder tokens that cross-attention caches.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Context lengths against blocks, sequences, time.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="The bytes of a token, layer by layer.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the models and GPUs of the catalogue.")] = False,
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
    if config is None:
        raise ArgumentError("no_config")
    source: Any = config
    if model_type is not None:
        from minikv.plan.config import with_model_type

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
    }  # fmt: skip
    if explain or (gpu is None and gpu_bytes is None):
        from minikv.plan import CacheSpec

        spec = CacheSpec.from_config(source, **cache)
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

    assumed: dict[str, Any] = {
        "cuda_context_bytes": size("--cuda-context-bytes", cuda_context_bytes),
        "workspace_bytes": size("--workspace-bytes", workspace_bytes),
    }
    budget = plan_memory(
        source,
        gpu=gpu,
        gpu_bytes=size("--gpu-bytes", gpu_bytes),
        context=context,
        batch=batch,
        utilization=utilization,
        block_size=block_size,
        chunk=chunk,
        weight_bytes=size("--weight-bytes", weight_bytes),
        weight_dtype=weight_dtype,
        **cache,
        **{name: value for name, value in assumed.items() if value is not None},
    )
    if table:
        plan_view.show_table(budget, lang, as_json=as_json)
    elif as_json:
        print(json.dumps(as_dict(budget, lang), indent=2))
    else:
        plan_view.show_budget(budget, lang)


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
    """The cost of the cache as plain JSON values; sizes are integers of bytes."""
    from minikv.plan.explain import countable

    layers = [
        {"count": count, "token_bytes": kind.token_bytes, **asdict(kind)} for kind, count in countable(spec)
    ]
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
