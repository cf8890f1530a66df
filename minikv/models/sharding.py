"""A model's weights over several processes, by transformers' own plan of its architecture. Lesson 12.

    torchrun --nproc-per-node 2 script.py        every process: load("...", tp="auto")

Each process is a rank and holds its shard of the weights. transformers exchanges the activations within the forward,
and every rank gets all logits. The cache holds the rank's own share of the KV heads, or whole latents.
"""

import atexit
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from minikv.errors import ArgumentError, ConfigError, RankLostError, check_count, first_line
from minikv.models.cache_argument import cache_argument
from minikv.plan.spec.architectures import ARCHITECTURES
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.config import read_config

# A rank that does not join a collective operation in this time is lost. It is long because a rank may load slowly.
SECONDS = 300.0
_REPEATED = (".k_proj.", ".v_proj.")


def world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from torchrun's variables; (0, 1) without it."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def ranks_wanted(tp: int | str) -> int:
    """Return ``tp`` as a number: "auto" is the number of processes. Raises ``ArgumentError`` for other words."""
    size = world()[1]
    if tp == "auto":
        return size
    check_count("tp", tp)
    if tp not in (1, size):
        raise ArgumentError("parallel_world", tp=tp, size=size)
    return int(tp)


def ranks_of(model: Any) -> int:
    """Return over how many ranks the model was sharded when it was loaded."""
    return int(getattr(model, "_tp_size", None) or 1)


def start_ranks(tp: int, seconds: float = SECONDS) -> None:
    """Connect the ranks of this run, unless the caller has done so: then the caller's time limits hold.

    Raises ``ArgumentError`` if there are not ``tp`` processes, GPUs for them, or transformers' requirements,
    ``RankLostError`` if a rank does not come.
    """
    from torch import distributed

    if not distributed.is_initialized():
        ranks_wanted(tp)
        if importlib.util.find_spec("accelerate") is None:
            raise ArgumentError("parallel_accelerate")
        if torch.cuda.is_available():
            place = int(os.environ.get("LOCAL_RANK", 0))
            if place >= torch.cuda.device_count():
                raise ArgumentError("parallel_gpus", rank=place, gpus=torch.cuda.device_count())
            torch.cuda.set_device(place)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        with together(tp):
            distributed.init_process_group(backend, timeout=timedelta(seconds=seconds))
        atexit.register(_end_ranks)
    if distributed.get_world_size() != tp:
        raise ArgumentError("parallel_world", tp=tp, size=distributed.get_world_size())


@contextmanager
def together(size: int) -> Iterator[None]:
    """Turn errors of the connection between ``size`` ranks into ``RankLostError`` while the block runs."""
    try:
        yield
    except Exception as error:
        if not of_connection(error):
            raise
        raise RankLostError("parallel_no_start", size=size, reason=first_line(error)) from error


def of_connection(error: BaseException | None) -> bool:
    """Return whether the connection of the ranks has raised ``error``, or its cause.

    NCCL and the store have one of torch's classes; gloo's errors are recognised by the file that they name.
    """
    from torch import distributed

    while error is not None:
        if isinstance(error, distributed.DistError):
            return True
        if type(error) is RuntimeError and "gloo" in str(error).lower():
            return True
        error = error.__cause__
    return False


def _end_ranks() -> None:
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def rank_device(asked: str | torch.device) -> torch.device:
    """Return the device of this rank's shard: a GPU each if there are any. Raises ``ArgumentError`` for another."""
    place = int(os.environ.get("LOCAL_RANK", 0))
    own = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    if asked != "auto" and torch.device(asked).type != own.type:
        raise ArgumentError("parallel_device", device=asked, expected=own.type)
    return own


def read_shard(folder: Path, config: Any, dtype: torch.dtype, tp: int) -> tuple[Any, dict[str, Any]]:
    """Read this rank's shard of the folder's model; return it with transformers' loading info.

    With more ranks than KV heads, transformers would cut heads into pieces. So each head is repeated, as the cache's
    plan counts it, and the shard is made of the repeated weights. Raises ``ConfigError`` if the heads do not divide or
    cannot be repeated, or transformers has no plan.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    spec = CacheSpec.from_config(config, tp=tp)  # raises for heads that do not divide
    if read_config(config).model_type not in ARCHITECTURES:
        raise ConfigError("measured_tp", name=spec.name, model_type=spec.model_type, tp=tp)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    text = config.get_text_config(decoder=True)
    if not getattr(text, "base_model_tp_plan", None):
        raise ConfigError("parallel_no_plan", model_type=text.model_type, tp=tp)
    options: dict[str, Any] = {
        "dtype": dtype,
        "distributed_config": DistributedConfig(tp_plan="auto", tp_size=tp),
        "output_loading_info": True,
    }
    heads = _heads_to_repeat(config, text.base_model_tp_plan, tp)
    if heads is None:
        files = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
        return AutoModelForCausalLM.from_pretrained(folder, **files, **options)
    text.num_key_value_heads = tp
    weights = {name: _repeated(name, weight, heads, tp) for name, weight in _weights(folder)}
    model, found = model_class.from_pretrained(None, config=config, state_dict=weights, **options)
    if (folder / "generation_config.json").is_file():
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, found


def check_shard(model: Any, spec: CacheSpec) -> None:
    """Run one token through ``model`` and compare the heads that each layer caches on this rank with ``spec``.

    Every rank has to call. Some of transformers' plans leave attention whole on every rank (Phi-3, OLMo 2): those
    ranks would cache all KV heads. Raises ``ConfigError``, which names the layer.
    """
    from transformers import DynamicCache

    zero = torch.zeros(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(input_ids=zero, position_ids=zero, use_cache=True, **cache_argument(model, cache))
    for number, (layer, held) in enumerate(zip(spec.layers, cache.layers, strict=False)):
        keys = getattr(held, "keys", None)
        if layer.token_bytes and keys is not None and keys.numel() and keys.shape[1] != layer.kv_heads:
            raise ConfigError(
                "parallel_heads", name=spec.name, layer=number, found=keys.shape[1], planned=layer.kv_heads
            )


def _heads_to_repeat(config: Any, plan: dict[str, str], tp: int) -> int | None:
    """Return the KV heads of every layer if they are fewer than the ranks, and the plan shards their projections.

    Raises ``ConfigError`` if that is so for some layers only: the config has one number for all.
    """
    spec = CacheSpec.from_config(config)
    heads = {layer.kv_heads for layer in spec.layers if layer.token_bytes and layer.kind != "latent"}
    own = any(name.endswith("k_proj") and style == "colwise" for name, style in plan.items())
    if not own or not heads or min(heads) >= tp:
        return None
    if len(heads) > 1:
        raise ConfigError("parallel_uneven", name=spec.name, least=min(heads), most=max(heads), tp=tp)
    return heads.pop()


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the folder's files, mapped, not read."""
    from safetensors.torch import load_file

    for file in sorted(folder.glob("*.safetensors")):
        yield from load_file(file).items()


def _repeated(name: str, weight: torch.Tensor, heads: int, tp: int) -> torch.Tensor:
    """Return K's or V's projections [heads * dim, ...] (or biases) with each head tp / heads times, one a rank."""
    if not any(part in name for part in _REPEATED):
        return weight
    return weight.unflatten(0, (heads, -1)).repeat_interleave(tp // heads, dim=0).flatten(0, 1)
