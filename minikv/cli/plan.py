"""``minikv plan``: where every GiB of a GPU goes, how many blocks, tokens and sequences that leaves."""

import json
import math
from typing import Annotated, Any

import typer

from minikv.cli.options import Json, Lang, size
from minikv.errors import ArgumentError
from minikv.i18n import pick_language


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
    """Plan a GPU's memory for a model: weights, activations, KV cache, blocks, tokens, sequences."""
    from minikv.cli import plan_view

    lang = pick_language(lang)
    if list_:
        plan_view.show_catalogue(lang, as_json=as_json)
        return
    if config is None:
        raise ArgumentError("no_config")
    if explain:
        from minikv.plan import CacheSpec

        spec = CacheSpec.from_config(
            config, tp=tp, kv_dtype=kv_dtype, layout=layout, encoder_tokens=encoder_tokens
        )
        print(spec.explain(lang))
        return
    from minikv.plan import plan_memory

    assumed = {
        "cuda_context_bytes": size("--cuda-context-bytes", cuda_context_bytes),
        "workspace_bytes": size("--workspace-bytes", workspace_bytes),
    }
    budget = plan_memory(
        config,
        gpu=gpu,
        gpu_bytes=size("--gpu-bytes", gpu_bytes),
        tp=tp,
        context=context,
        batch=batch,
        kv_dtype=kv_dtype,
        utilization=utilization,
        block_size=block_size,
        chunk=chunk,
        weight_bytes=size("--weight-bytes", weight_bytes),
        layout=layout,
        encoder_tokens=encoder_tokens,
        **{name: value for name, value in assumed.items() if value is not None},
    )
    if table:
        plan_view.show_table(budget, lang, as_json=as_json)
    elif as_json:
        print(json.dumps(as_dict(budget, lang), indent=2))
    else:
        plan_view.show_budget(budget, lang)


def as_dict(budget: Any, lang: str = "en") -> dict[str, Any]:
    """The budget as plain JSON values; sizes are integers of bytes, None stands for "no limit"."""
    spec = budget.spec
    most = budget.max_context()
    return {
        "model": spec.name,
        "model_type": spec.model_type,
        "gpu": budget.gpu.name if budget.gpu else None,
        "tp": spec.tp,
        "kv_dtype": spec.kv_dtype,
        "layout": spec.layout,
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
        "token_bytes": spec.slope(0),
        "state_bytes": spec.constant_state_bytes,
        "window": spec.window,
        "num_blocks": budget.num_blocks,
        "max_tokens": budget.max_tokens,
        "context": budget.context,
        "batch": budget.batch,
        "needed_bytes": budget.needed_bytes,
        "fits": budget.fits,
        "max_batch": budget.max_batch(),
        "max_context": None if most == math.inf else most,
        "max_positions": spec.max_positions,
        "assumptions": budget.assumptions(lang),
    }
