"""From what a caller asks of an LLM to its parts: built one after the other, and all given back if one cannot be."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Literal

from minikv.blocks import BlockManager
from minikv.cache.allocation import AllocationReport
from minikv.cache.allocator import kv_dtype_of
from minikv.cache.linear_pages import LinearPages
from minikv.cache.paged import PagedKVCache
from minikv.engine.building import Wanted, build_cache, build_manager, longest_sequence
from minikv.engine.events import Emit
from minikv.engine.evict_step import check_reads, make_evicting, make_evictor, reserve
from minikv.engine.evicting import EvictionParams
from minikv.engine.graphs import capture_decodes
from minikv.engine.host import Host, HostWanted
from minikv.engine.runner import Runner
from minikv.engine.scheduler import Scheduler
from minikv.errors import ArgumentError
from minikv.models import Adapter, Loaded, bind_model, load
from minikv.models.sharding import ranks_of, ranks_wanted
from minikv.plan import CacheSpec

if TYPE_CHECKING:
    from minikv.engine.parallel import Team


@dataclass(frozen=True, eq=False)
class Parts:
    """What an LLM is made of; ``allocation`` is None for a linear cache, ``host`` without host memory."""

    cache: PagedKVCache | LinearPages
    allocation: AllocationReport | None
    manager: BlockManager
    scheduler: Scheduler
    host: Host | None
    adapter: Adapter
    runner: Runner


def open_model(
    model: Any, tokenizer: Any, *, dtype: Any, device: Any, tp: int | Literal["auto"]
) -> tuple[Any, Any]:
    """(model, tokenizer) of what ``LLM`` was given. Raises as ``load`` does; ``ArgumentError`` for what is no decoder.

    Warns where a GPU has forced another dtype than the weights were made in.
    """
    if isinstance(model, str | Path):
        model = load(model, dtype=dtype, device=device, tp=tp)
        if model.model.device.type != "cpu" and model.note() is not None:
            warnings.warn(model.note(), stacklevel=4)
    elif (dtype, device) != ("auto", "auto"):
        raise ArgumentError("llm_is_loaded", dtype=dtype, device=device)
    if isinstance(model, Loaded):
        model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
    if tokenizer is not None and not callable(tokenizer):
        raise ArgumentError("llm_tokenizer", kind=type(tokenizer).__name__)
    if not callable(getattr(model, "can_generate", None)):
        raise ArgumentError("models_not_a_decoder", kind=type(model).__name__)
    if ranks_of(model) != ranks_wanted(tp):
        raise ArgumentError("parallel_model", tp=tp, ranks=ranks_of(model))
    return model, tokenizer


def assemble(
    model: Any,
    wanted: Wanted,
    offload: HostWanted,
    team: "Team | None",
    *,
    clock: Callable[[], float],
    emit: Emit | None,
    eviction: EvictionParams | None = None,
) -> Parts:
    """Everything that ``wanted`` and ``offload`` ask for around ``model``, which is bound to its cache.

    Raises ``ArgumentError``, ``ConfigError``, ``DoesNotFitError``; then all memory is back, which matters in a
    notebook, where the traceback is kept. The model is as it was.
    """
    ranks = ranks_of(model)
    spec = CacheSpec.from_config(model.config, tp=ranks, kv_dtype=wanted.kv_dtype or kv_dtype_of(model))
    host_blocks, longest = offload.num_blocks(spec), longest_sequence(spec, wanted)
    room, asked = None, wanted.enforce_eager
    if eviction is not None:
        keeps = offload.prefix_dir is not None
        room = reserve(spec, eviction, wanted, ranks, longest, keeps_prefixes=keeps)
        wanted = replace(wanted, enforce_eager=True)  # no graph does what an eviction does: none needs room
    if team is not None:
        team.wait()  # what each rank does alone is done
    with ExitStack() as undo:
        cache, allocation = build_cache(model, spec, wanted, 0 if room is None else room.num_bytes)
        undo.callback(cache.close)
        manager, evictor, evicting = build_manager(cache, host_blocks), None, None
        if eviction is not None and room is not None:
            on_device = make_evictor(cache, manager, eviction, room)
            evicting, evictor = make_evicting(manager, eviction, wanted, on_device)
        scheduler = Scheduler(
            manager,
            max_num_seqs=wanted.max_num_seqs,
            max_batched_tokens=wanted.max_batched_tokens,
            max_model_len=longest,
            prompt_lookup=wanted.prompt_lookup,
            clock=clock,
            emit=emit,
            block_bytes=[kind.block_bytes(cache.block_size) for kind in cache.kinds],
            evicting=evicting,
        )
        host = offload.open(model, cache, scheduler)
        if host is not None:
            undo.callback(host.close)
        adapter = bind_model(model, cache, reads=wanted.reads)  # late, because it changes the model
        undo.callback(adapter.unbind)
        limits = [limit for limit in (longest, adapter.position_limit) if limit is not None]
        scheduler.max_model_len = min(limits, default=None)
        runner = Runner(adapter) if team is None else team.runner(adapter)
        if evictor is not None:
            check_reads(adapter)
            runner.evictor = evictor
        try:
            rows, most, evicts = wanted.max_num_seqs, scheduler.max_model_len, evictor is not None
            options: dict[str, Any] = {"enforce_eager": asked, "ranks": ranks, "evicts": evicts}
            runner.use(capture_decodes(adapter, rows, most, **options))
        except BaseException as error:
            clear_frames(error.__traceback__)  # which hold views of the cache
            raise
        undo.pop_all()
    return Parts(cache, allocation, manager, scheduler, host, adapter, runner)
