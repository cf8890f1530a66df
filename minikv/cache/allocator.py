"""allocate_kv_cache: warms up, measures, and makes the largest KV cache that is safe. Lesson 08.

    available = int(total * utilization) - used - peak + current        num_blocks = available // block_bytes

An engine cannot know from a config what a CUDA context, a library's workspace and another process take. It runs its
largest step once without a cache, measures the memory of that step, and gives the rest to the cache, in one allocation.
"""

import inspect
from typing import Any

import torch
from torch import distributed, nn

from minikv.cache.allocation import AllocationReport
from minikv.cache.codec import find_codec
from minikv.cache.layout import paged_layout
from minikv.cache.paged import PagedKVCache
from minikv.cache.sharded import local
from minikv.errors import ArgumentError, DoesNotFitError, check_count
from minikv.keywords import own_keywords
from minikv.memory.peak import PeakReport, measure_peak
from minikv.memory.stats import MemoryStats
from minikv.plan import pool
from minikv.plan.budget import DEFAULT_CONTEXT
from minikv.plan.dtypes import AnyKVDtype, find_kv_dtype
from minikv.plan.measured import MeasuredTerms, PoolSize, check_utilization, size_for_blocks, size_for_bytes
from minikv.plan.spec.cache_spec import CacheSpec, model_dtype_of
from minikv.plan.spec.config import Config, read_config, with_dtype
from minikv.units import exact_bytes

DEFAULT_WARMUP = 8192  # tokens, the planner's chunk
NO_BLOCKS = PoolSize(0, (), 0, 0)


@own_keywords("allocate_kv_cache")
def allocate_kv_cache(
    model: nn.Module,
    *,
    block_size: int = 16,
    utilization: float = 0.9,
    tp: int = 1,
    num_blocks: int | None = None,
    kv_bytes: int | None = None,
    warmup_tokens: int | None = None,
    kv_dtype: AnyKVDtype | None = None,
    context: int | None = None,
    batch: int | None = None,
) -> tuple[PagedKVCache, AllocationReport]:
    """Return a ``PagedKVCache`` for ``model`` (a Hugging Face decoder, on one device), and the report of its size.

    On CUDA the size is measured: ``warmup(model, warmup_tokens)``, then the formula. ``warmup_tokens`` is the most
    tokens that one forward will ever prefill; None is 8,192, or all of the model's positions if it has fewer.
    ``utilization`` is the share of the GPU for everything on it, other processes included: ``used`` counts
    them. ``num_blocks`` (of the groups without a window) or ``kv_bytes`` give the size instead; one of them is required
    on a CPU, which has no memory set aside for a model. Then a warm-up runs only if ``warmup_tokens`` is given, and
    its peak is reported.

    The blocks get all of these bytes: states of recurrent layers, which are not in them, have to be there before
    (``StateSlots``), and are in ``used`` then.

    ``kv_dtype`` None is the dtype of the model's parameters. Windowed layers get blocks for ``batch`` sequences of
    ``context`` tokens (None: as many sequences as fit; 4,096 or all of the model's positions). ``tp`` is the number of
    ranks that share the model. If ``torch.distributed`` is initialized every rank must call, and all get the smallest
    count.

    Raises ``ArgumentError`` and ``ConfigError`` before anything runs; ``DoesNotFitError`` with each term if not one
    block fits, here or on another rank. Nothing is kept then.
    """
    device = _device_of(model)
    _check_arguments(block_size, utilization, num_blocks, kv_bytes, warmup_tokens, context, batch)
    measured = num_blocks is None and kv_bytes is None
    if measured and not _is_measurable(device):
        raise ArgumentError("allocator_size_needed", device=device)
    spec = CacheSpec.from_config(config_of(model), tp=tp, kv_dtype=kv_dtype or kv_dtype_of(model))
    # Raises before the warm-up for a spec that a paged cache cannot hold.
    paged_layout(spec, find_codec(spec.kv_dtype), block_size)
    _check_positions(spec, warmup_tokens, context)
    context = context or min(DEFAULT_CONTEXT, spec.max_positions or DEFAULT_CONTEXT)
    if measured and warmup_tokens is None:
        warmup_tokens = min(DEFAULT_WARMUP, spec.max_positions or DEFAULT_WARMUP)

    peak, out_of_memory = _warmup_peak(model, warmup_tokens, device) if warmup_tokens else (None, None)
    stats = MemoryStats.read(device)
    terms = None
    if measured and peak is not None:
        terms = MeasuredTerms(stats.total, utilization, stats.used, peak.peak, stats.allocated)
    if out_of_memory is not None:
        size = NO_BLOCKS
    elif num_blocks is not None:
        size = size_for_blocks(spec, num_blocks, block_size=block_size, context=context, batch=batch)
    else:
        room = kv_bytes or (terms.available if terms is not None else 0)
        size = size_for_bytes(spec, room, block_size=block_size, context=context, batch=batch)

    # Every rank comes here, also one that has no room: a rank that raised before would leave the others waiting.
    blocks, ranks = _least_of_ranks(size.blocks or (0,) * len(pool.kv_cache_groups(spec)), device)
    if out_of_memory is not None:
        raise DoesNotFitError(
            "allocator_warmup", tokens=warmup_tokens, device=device, free=exact_bytes(stats.free), tp=tp
        ) from out_of_memory
    if not size.num_blocks:
        raise _no_room(spec, terms, stats, kv_bytes, block_size, warmup_tokens)
    if not min(blocks):
        raise DoesNotFitError("allocator_other_rank", own=size.num_blocks, ranks=ranks)
    if not measured:
        _check_room(spec, blocks, block_size, stats)

    cache = PagedKVCache(spec, blocks, block_size, device=device)
    report = AllocationReport(
        spec=spec,
        device=str(cache.device),
        how="measured" if measured else "kv_bytes" if num_blocks is None else "num_blocks",
        block_size=block_size,
        block_bytes=pool.counted_block_bytes(spec, block_size),
        num_blocks=blocks[0],  # groups without a window come first, and all counted ones have the same number
        own_blocks=size.num_blocks,
        ranks=ranks,
        blocks=blocks,
        windows=tuple(group.layer.window for group in cache.kv_cache_groups),
        batch=size.batch,
        context=size.context,
        weight_bytes=sum(local(parameter).nbytes for parameter in model.parameters()),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        kv_bytes=cache.nbytes,
        padding_bytes=cache.arena.report().padding,
        warmup_tokens=warmup_tokens,
        peak=peak,
        stats=stats,
        terms=terms,
    )
    return cache, report


def warmup(model: nn.Module, max_tokens: int) -> None:
    """Run one prefill of ``max_tokens`` tokens (one sequence of token 0) without a cache: the largest step of an
    engine.

    ``use_cache=False``, or the model's own cache would be in the peak; ``logits_to_keep=1`` if the model has it,
    since an engine samples from the last token alone. Equal tokens send a mixture of experts to the same few
    experts, which gives one expert the most rows that it can get.

    Raises ``ArgumentError`` for an object that is no model, and what the forward raises.
    """
    device = _device_of(model)
    check_count("max_tokens", max_tokens)
    values: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        values["logits_to_keep"] = 1
    # Not inference_mode: what a model caches in its first forward (RoPE tables) must stay usable outside of it.
    with torch.no_grad():
        model(input_ids=torch.zeros(1, max_tokens, dtype=torch.long, device=device), **values)


def _check_arguments(
    block_size: int,
    utilization: float,
    num_blocks: int | None,
    kv_bytes: int | None,
    warmup_tokens: int | None,
    context: int | None,
    batch: int | None,
) -> None:
    check_count("block_size", block_size)
    check_utilization(utilization)
    counts = {"num_blocks": num_blocks, "kv_bytes": kv_bytes, "warmup_tokens": warmup_tokens}
    for what, value in (counts | {"context": context, "batch": batch}).items():
        if value is not None:
            check_count(what, value)
    if num_blocks is not None and kv_bytes is not None:
        raise ArgumentError("allocator_two_sizes", num_blocks=num_blocks, kv_bytes=kv_bytes)


def _check_positions(spec: CacheSpec, warmup_tokens: int | None, context: int | None) -> None:
    most = spec.max_positions
    if most and context is not None and context > most:
        raise ArgumentError(
            "context_too_long", context=context, most=most, name=spec.name, field="max_position_embeddings"
        )
    if most and warmup_tokens is not None and warmup_tokens > most:
        raise ArgumentError("out_of_range", what="warmup_tokens", value=warmup_tokens, low=0, high=most)


def _check_room(spec: CacheSpec, blocks: tuple[int, ...], block_size: int, stats: MemoryStats) -> None:
    """Compare a given size with the free memory: Linux promises more than it has, and then ends the process."""
    groups = pool.kv_cache_groups(spec)
    need = sum(group.block_bytes(block_size) * count for group, count in zip(groups, blocks, strict=True))
    # torch can also use the memory that it has cached on a GPU.
    cached = stats.reserved - stats.allocated if stats.kind == "cuda" else 0
    if need > stats.free + cached:
        raise DoesNotFitError(
            "allocator_given_too_large",
            need=exact_bytes(need),
            device=stats.device,
            free=exact_bytes(stats.free + cached),
        )


def _device_of(model: Any) -> torch.device:
    """Return the one device of a model with parameters and a config."""
    if not isinstance(model, nn.Module) or getattr(model, "config", None) is None:
        raise ArgumentError("allocator_not_a_model", kind=type(model).__name__)
    devices = {tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ArgumentError("allocator_devices", count=len(devices), devices=names or "-")
    return devices.pop()


def _is_measurable(device: torch.device) -> bool:
    """Return whether the device's memory belongs to the model: a CPU shares its memory with all programs."""
    return device.type == "cuda"


def kv_dtype_of(model: nn.Module) -> str | None:
    """Return the dtype of the first floating-point parameter, if K and V could have it; None leaves it to the config.

    The config may be silent or outdated: ``model.to(dtype)`` does not change it.
    """
    dtype = next(
        (p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype.itemsize > 1), None
    )
    if dtype in (torch.float32, torch.bfloat16, torch.float16):
        return find_kv_dtype(dtype).name
    return None


def stated_dtype(model: nn.Module) -> tuple[str, bool]:
    """Return the dtype of the weights by the config, as the planner reads it, and whether that is assumed."""
    assumed: list[Any] = []
    return find_kv_dtype(model_dtype_of(read_config(model.config), assumed)).name, bool(assumed)


def config_of(model: nn.Module) -> Config:
    """Return the config of ``model`` with the dtype that its parameters have: its own may be silent, or outdated.

    States and indexer keys have that dtype, whatever that of K and V is.
    """
    config, dtype = read_config(model.config), kv_dtype_of(model)
    return config if dtype is None or stated_dtype(model) == (dtype, False) else with_dtype(config, dtype)


def _warmup_peak(
    model: nn.Module, tokens: int, device: torch.device
) -> tuple[PeakReport | None, torch.OutOfMemoryError | None]:
    try:
        return measure_peak(lambda: warmup(model, tokens), device), None
    except torch.OutOfMemoryError as error:
        # Without the traceback: its frames hold the activations.
        return None, error.with_traceback(None)


def _least_of_ranks(blocks: tuple[int, ...], device: torch.device) -> tuple[tuple[int, ...], int]:
    """Return the smallest count of each group over all ranks, and the number of ranks."""
    if not distributed.is_available() or not distributed.is_initialized():
        return blocks, 1
    # NCCL takes tensors of the GPU only, gloo those of the CPU.
    where = device if "nccl" in distributed.get_backend() else torch.device("cpu")
    counts = torch.tensor(blocks, dtype=torch.int64, device=where)
    distributed.all_reduce(counts, op=distributed.ReduceOp.MIN)
    return tuple(counts.tolist()), distributed.get_world_size()


def _no_room(
    spec: CacheSpec,
    terms: MeasuredTerms | None,
    stats: MemoryStats,
    kv_bytes: int | None,
    block_size: int,
    tokens: int | None,
) -> DoesNotFitError:
    least = pool.sequence_bytes(spec, 1, block_size) - spec.constant_state_bytes
    if terms is None:
        return DoesNotFitError(
            "allocator_kv_bytes", name=spec.name, kv_bytes=kv_bytes, least=least, block_size=block_size
        )
    values = {name: exact_bytes(value) for name, value in terms.as_dict().items()}
    return DoesNotFitError(
        "allocator_no_room",
        name=spec.name,
        total=exact_bytes(terms.total),
        utilization=terms.utilization,
        least=exact_bytes(least),
        short=exact_bytes(least - terms.available),
        others="?" if stats.others is None else exact_bytes(stats.others),
        tokens=tokens,
        tp=spec.tp,
        **values,
    )
