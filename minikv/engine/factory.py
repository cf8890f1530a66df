"""Builds the parts of an LLM from its configuration, one after the other; if one fails, all are freed again."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.blocks.prefix import LARGEST_TOKEN
from minikv.cache.allocation import AllocationReport
from minikv.cache.allocator import allocate_kv_cache, kv_dtype_of
from minikv.cache.layout import whole_entries
from minikv.cache.linear import LinearKVCache
from minikv.cache.linear_pages import LinearPages
from minikv.cache.paged import PagedKVCache
from minikv.cache.states import StatePages, StateSlots
from minikv.engine.core.extension import Extension
from minikv.engine.core.runner import Runner
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.ext.drafts import Drafts
from minikv.engine.ext.events import Emit, Events
from minikv.engine.ext.eviction import Eviction, EvictionConfig
from minikv.engine.ext.eviction_worker import check_reads, make_eviction, make_eviction_runner, reserve
from minikv.engine.ext.graph_memory import held
from minikv.engine.ext.graphs import DecodeGraphs, Eager, capture_decodes, expected_memory
from minikv.engine.ext.host import Host, OffloadConfig
from minikv.engine.ext.offload import Offload
from minikv.engine.ext.states import States
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, check_choice, check_count
from minikv.i18n import text
from minikv.memory.stats import MemoryStats, find_memory
from minikv.models import Adapter, Loaded, bind_model, load, own_attention, seen_window
from minikv.models.adapter import Reads, why_copied
from minikv.models.cpu_modules import FasterModules, use_faster_modules
from minikv.models.measured import check_described, measure, state_shapes
from minikv.models.sharding import ranks_of, ranks_wanted
from minikv.plan import CacheSpec
from minikv.plan.budget import DEFAULT_CONTEXT
from minikv.plan.dtypes import AnyKVDtype, find_kv_dtype
from minikv.plan.estimate import EXPANDED_BYTES, expanded_bytes
from minikv.plan.measured import PoolSize, size_for_bytes
from minikv.plan.pool import sequence_bytes
from minikv.units import GIB, exact_bytes

if TYPE_CHECKING:
    from minikv.engine.ext.tensor_parallel import TensorParallelGroup

CacheName = Literal["paged", "linear"]
Described = CacheSpec | Mapping[str, Any] | str | Path | None
MOST_ON_A_CPU = 4 * GIB  # other programs share the memory: an LLM takes no more unless a size is given


@dataclass(frozen=True)
class EngineConfig:
    """The configuration of an LLM; see ``LLM``. Raises ``ArgumentError`` for settings that no model allows."""

    kv_bytes: int | None
    num_blocks: int | None
    utilization: float
    block_size: int
    max_num_seqs: int
    max_batched_tokens: int
    max_model_len: int | None
    cache: CacheName
    kv_dtype: AnyKVDtype | None
    enforce_eager: bool = False
    reads: Reads = "auto"
    prompt_lookup: int = 0
    spec: Described = None
    saved_states: int | None = None

    def __post_init__(self) -> None:
        check_choice("cache", self.cache, CacheName)
        if self.kv_dtype is not None:
            find_kv_dtype(self.kv_dtype)
        for what in ("block_size", "max_num_seqs", "max_batched_tokens"):
            check_count(what, getattr(self, what))
        check_count("prompt_lookup", self.prompt_lookup, least=0)
        if self.saved_states is not None:
            check_count("saved_states", self.saved_states, least=0)
        for what in ("kv_bytes", "num_blocks", "max_model_len"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        if self.kv_bytes is not None and self.num_blocks is not None:
            sizes = {"num_blocks": self.num_blocks, "kv_bytes": self.kv_bytes}
            raise ArgumentError("allocator_two_sizes", **sizes)


def init_tensor_parallel(tp: int | str) -> "TensorParallelGroup | None":
    """Return the group of ranks, or None for a single process (then torch.distributed is not imported)."""
    if ranks_wanted(tp) == 1:
        return None
    from minikv.engine.ext.tensor_parallel import TensorParallelGroup

    return TensorParallelGroup.join(tp)


def starting(group: "TensorParallelGroup | None") -> AbstractContextManager[None]:
    """Return a context around the work before the first step; it names a rank that is lost meanwhile."""
    return nullcontext() if group is None else group.starting()


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of an LLM. ``allocation`` is None for a linear cache; a feature that was not asked for is None too.

    ``states`` are None for a model without recurrent layers.

    ``graphs`` are the captured decode steps, or the reason why there are none.
    """

    cache: PagedKVCache | LinearPages | StatePages
    allocation: AllocationReport | None
    manager: BlockManager
    scheduler: Scheduler
    adapter: Adapter
    runner: Runner
    graphs: DecodeGraphs | Eager
    offload: Offload | None
    host: Host | None
    eviction: Eviction | None
    overlaps: bool
    faster: FasterModules
    states: StateSlots | None


def open_model(
    model: Any, tokenizer: Any, *, dtype: Any, device: Any, tp: int | Literal["auto"]
) -> tuple[Any, Any]:
    """Return (model, tokenizer) for the arguments of ``LLM``. Raises as ``load`` does; ``ArgumentError`` for no
    decoder and for a device without readable memory (mps).

    Warns where a GPU requires another dtype than that of the weights.
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
    if model.device.type != "meta":
        find_memory(model.device)
    if ranks_of(model) != ranks_wanted(tp):
        raise ArgumentError("parallel_model", tp=tp, ranks=ranks_of(model))
    return model, tokenizer


def build_engine(
    model: Any,
    config: EngineConfig,
    host_config: OffloadConfig,
    group: "TensorParallelGroup | None",
    *,
    clock: Callable[[], float],
    emit: Emit | None,
    eviction: EvictionConfig | None = None,
) -> Parts:
    """Build everything that ``config`` and ``host_config`` ask for around ``model``, and bind it to its cache.

    Raises ``ArgumentError``, ``ConfigError``, ``DoesNotFitError``. Then all memory has been freed, also in a notebook,
    which keeps the traceback, and the model is unchanged.
    """
    ranks = ranks_of(model)
    config = as_described(model, config, ranks)
    spec = measure(model, tp=ranks, kv_dtype=config.kv_dtype or kv_dtype_of(model))
    host_blocks, longest = host_config.num_blocks(spec), longest_sequence(spec, config)
    device = model.get_input_embeddings().weight.device
    shapes = state_shapes(model) if spec.constant_state_bytes and ranks == 1 else ()
    if spec.constant_state_bytes:
        refuse_beside_states(spec, config, host_blocks, eviction)
        config = seats_for_states(spec, config, device)
        config = replace(config, block_size=whole_entries(spec, config.block_size))
    elif config.saved_states:
        raise ArgumentError("llm_no_states", name=spec.name, saved=config.saved_states)
    room, asked = None, config.enforce_eager
    if eviction is not None:
        keeps = host_config.prefix_dir is not None
        room = reserve(model, spec, eviction, config, ranks, longest, keeps_prefixes=keeps)
        config = replace(config, enforce_eager=True)  # no graph contains an eviction, so none needs memory
    if group is not None:
        group.wait()  # every rank has done its own part
    with ExitStack() as undo:
        # Before there is a cache: meanwhile a weight is in memory twice, and no more than this adds to it.
        faster = use_faster_modules(model)
        undo.callback(faster.close)
        states = (
            StateSlots(shapes, config.max_num_seqs, device, num_saved=num_saved(config)) if shapes else None
        )  # before what is left is measured
        if states is not None:
            undo.callback(states.close)
        cache, allocation = build_cache(model, spec, config, 0 if room is None else room.num_bytes)
        undo.callback(cache.close)
        manager, evicts = build_manager(cache, host_blocks), None
        if eviction is not None and room is not None:
            evicts = make_eviction(eviction, config, make_eviction_runner(cache, manager, eviction, room))
        block_bytes = [each.block_bytes(cache.block_size) for each in cache.kv_cache_groups]
        told_bytes = (
            block_bytes if all(block_bytes) else None
        )  # the blocks of a model without K and V are only seats
        may_move = evicts.may_move if evicts is not None else None
        offload = Offload(block_bytes, may_move=may_move) if host_blocks else None
        # The last extension, so that it reports what the others did
        extensions: list[Extension | None] = [
            Drafts(config.prompt_lookup) if config.prompt_lookup else None,
            evicts,
            offload,
            None if states is None else States(states),
            None if emit is None else Events(emit, told_bytes),
        ]
        asked_for = [each for each in extensions if each is not None]
        scheduler = Scheduler(
            manager,
            max_num_seqs=config.max_num_seqs,
            max_batched_tokens=config.max_batched_tokens,
            max_model_len=longest,
            extensions=asked_for,
            clock=clock,
        )
        host = None if offload is None else host_config.open(model, cache, offload)
        if host is not None:
            undo.callback(host.close)
        adapter = bind_model(
            model, cache, reads=config.reads, states=states
        )  # late, because it changes the model
        undo.callback(adapter.unbind)
        limits = [limit for limit in (longest, adapter.position_limit) if limit is not None]
        scheduler.max_model_len = min(limits, default=None)
        runner = Runner(adapter, asked_for)
        if evicts is not None:
            check_reads(adapter)
        try:
            rows, most = config.max_num_seqs, scheduler.max_model_len
            options: dict[str, Any] = {"enforce_eager": asked, "ranks": ranks, "evicts": evicts is not None}
            graphs = capture_decodes(adapter, rows, most, **options)
        except BaseException as error:
            clear_frames(error.__traceback__)  # the frames hold views of the cache
            raise
        if isinstance(graphs, DecodeGraphs):
            runner.compute = graphs.around(runner.compute)
        if group is not None:
            group.lead(runner)
        undo.pop_all()
    overlaps = group is None and states is None and can_overlap(adapter)
    return Parts(
        cache,
        allocation,
        manager,
        scheduler,
        adapter,
        runner,
        graphs,
        offload,
        host,
        evicts,
        overlaps,
        faster,
        states,
    )


def as_described(model: Any, config: EngineConfig, ranks: int) -> EngineConfig:
    """Return ``config`` with what a description of the layers says besides; the layers have to be the model's own.

    Its dtype and its positions count where ``config`` has none. Raises ``ConfigError`` for other layers.
    """
    if config.spec is None:
        return config
    spec = config.spec if isinstance(config.spec, CacheSpec) else CacheSpec.from_layers(config.spec)
    if max(ranks, spec.tp) > 1:
        raise ArgumentError("spec_one_process", tp=max(ranks, spec.tp))
    check_described(model, spec)
    kv_dtype = spec.kv_dtype if config.kv_dtype is None else config.kv_dtype
    longest = spec.max_positions if config.max_model_len is None else config.max_model_len
    return replace(config, kv_dtype=kv_dtype, max_model_len=longest)


def can_overlap(adapter: Adapter) -> bool:
    """Return whether a step may be launched before the last one's tokens are read: the tokens stay on a GPU."""
    return adapter.cache.device.type == "cuda"


def longest_sequence(spec: CacheSpec, config: EngineConfig) -> int | None:
    """Return the most tokens of a sequence: ``max_model_len``, else the model's positions; None without an end.

    Raises ``ArgumentError`` if ``max_model_len`` is above the model's positions.
    """
    asked, most = config.max_model_len, spec.max_positions
    if asked is not None and most is not None and asked > most:
        raise ArgumentError("llm_positions", name=spec.name, asked=asked, most=most)
    return most if asked is None else asked


def build_cache(
    model: Any, spec: CacheSpec, config: EngineConfig, record_bytes: int = 0
) -> tuple[PagedKVCache | LinearPages | StatePages, AllocationReport | None]:
    """Return the cache, and for a paged one the report of its size.

    A paged cache on a GPU is measured unless a size is given; the memory of CUDA graphs and of eviction's records
    (``record_bytes``) is held meanwhile. On a CPU it has room for ``max_num_seqs`` sequences of the longest length, but
    at most 4 GiB and half of the free memory, the records included. A linear cache has as many rows as fit into
    ``kv_bytes``, or ``num_blocks`` rows, at most and by default one for each of ``max_num_seqs``.
    """
    longest = longest_sequence(spec, config)
    if config.cache == "linear":
        return LinearPages(_linear(model, spec, config, longest)), None
    num_bytes, device = config.kv_bytes, model.get_input_embeddings().weight.device
    if not any(layer.token_bytes for layer in spec.layers):
        return StatePages(spec, config.max_num_seqs, longest, device, config.block_size), None
    measured = num_bytes is None and config.num_blocks is None
    if measured and device.type == "cpu":
        full = config.max_num_seqs * sequence_bytes(spec, longest or 4096, config.block_size)
        full += num_saved(config) * spec.constant_state_bytes
        most = min(MOST_ON_A_CPU, MemoryStats.read(device).free // (2 * spec.tp))
        if record_bytes >= most:
            sizes = {"need": exact_bytes(record_bytes), "room": exact_bytes(most)}
            raise DoesNotFitError("eviction_records_room", seqs=config.max_num_seqs, **sizes)
        num_bytes = min(full, most - record_bytes)
    num_blocks, wanted = config.num_blocks, windows_wanted(spec, config, longest)
    if num_bytes is not None and spec.constant_state_bytes:
        size = size_beside_states(spec, config, num_bytes, longest, wanted)
        num_blocks, num_bytes, wanted = size.num_blocks, None, wanted | {"batch": size.batch}
    largest_step = config.max_batched_tokens if longest is None else min(longest, config.max_batched_tokens)
    measured = measured and device.type != "cpu"
    with own_attention(model):  # another LLM may be bound to the model, but the measured forward has no batch
        graph_bytes = _graph_bytes(model, spec, config, longest) if measured else 0
    # Where attention is observed, as eviction does, latents are absorbed.
    expanded = _expanded_bytes(model, spec, config, longest) if measured and not record_bytes else 0
    # An LLM that evicts captures no graphs.
    what = "CUDA graphs" if graph_bytes else "eviction's records" if record_bytes else "K and V of latents"
    with own_attention(model), held(graph_bytes + record_bytes + expanded, device, what):
        cache, report = allocate_kv_cache(
            model,
            block_size=config.block_size,
            utilization=config.utilization,
            num_blocks=num_blocks,
            kv_bytes=num_bytes,
            warmup_tokens=largest_step if measured else None,
            kv_dtype=config.kv_dtype,
            tp=spec.tp,
            **wanted,
        )
    return cache, replace(report, held_bytes=graph_bytes, record_bytes=record_bytes, expanded_bytes=expanded)


def _graph_bytes(model: Any, spec: CacheSpec, config: EngineConfig, longest: int | None) -> int:
    """Return the expected bytes of the CUDA graphs of decode steps; 0 where there will be none."""
    eager = config.enforce_eager or spec.tp > 1 or spec.constant_state_bytes
    if eager or longest is None or _copies(spec, config):
        return 0
    width = -(-longest // config.block_size)
    try:
        return expected_memory(model, spec, config.max_num_seqs, width, config.block_size).num_bytes
    except torch.OutOfMemoryError:
        return 0  # not even single tokens fit: allocate_kv_cache raises, with the numbers


def _expanded_bytes(model: Any, spec: CacheSpec, config: EngineConfig, longest: int | None) -> int:
    """Return the most bytes of K and V that a step makes of latents. The warm-up, which has no batch, makes none."""
    if _copies(spec, config) or all(layer.kind != "latent" for layer in spec.layers):
        return 0
    if longest is None:
        return EXPANDED_BYTES
    blocks = -(-longest // config.block_size)  # which are expanded whole
    return expanded_bytes(model.config, blocks * config.block_size, tp=spec.tp)


def _copies(spec: CacheSpec, config: EngineConfig) -> bool:
    """Return whether the model reads copies, as far as that is known before it is bound."""
    return config.reads == "gather" or why_copied(spec) is not None


def windows_wanted(spec: CacheSpec, config: EngineConfig, longest: int | None) -> dict[str, int]:
    """Return for how many sequences (``batch``) of which length (``context``) windowed layers get blocks.

    There are enough that windowed layers never limit the others: a full window for each of ``max_num_seqs``, and the
    tokens of one step. If that does not fit, they get as many as leave the other layers the same number of blocks,
    since no sequence needs more.
    """
    size, widest = config.block_size, max((layer.window or 0 for layer in spec.layers), default=0)
    if not widest:
        return {}
    # Longer sequences do not need more blocks in windowed layers.
    context = min(bound for bound in (widest + 1 + size, longest, spec.max_positions) if bound is not None)
    blocks = -(-context // size)
    batch = config.max_num_seqs + -(-config.max_batched_tokens // (blocks * size))
    if config.num_blocks is not None:
        batch = max(1, min(batch, config.num_blocks // blocks))
    return {"context": context, "batch": batch}


def refuse_beside_states(
    spec: CacheSpec, config: EngineConfig, host_blocks: int, eviction: EvictionConfig | None
) -> None:
    """Raise ``ArgumentError`` for what would take tokens back, or move them, where a state cannot follow."""
    asked = {
        "prompt_lookup": config.prompt_lookup,
        "eviction": eviction,
        "cpu_kv_bytes": host_blocks,
        'cache="linear"': config.cache == "linear",
        "tp": spec.tp > 1,
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ArgumentError("llm_states", name=spec.name, what=what)


def num_saved(config: EngineConfig) -> int:
    """Return how many states are saved at most: half as many as there are seats, unless ``config`` says."""
    return config.max_num_seqs // 2 if config.saved_states is None else config.saved_states


def seats_for_states(spec: CacheSpec, config: EngineConfig, device: torch.device) -> EngineConfig:
    """Return ``config`` with as many seats and saved states as have a slot.

    States take at most half of a size that is given, and saved ones at most a third of that. On a CPU the size is the
    one that an LLM takes there by itself. Raises ``DoesNotFitError`` if no slot fits.
    """
    wanted = num_saved(config)
    config = replace(config, saved_states=wanted)
    room = config.kv_bytes
    if room is None and config.num_blocks is None and device.type == "cpu":
        room = min(MOST_ON_A_CPU, MemoryStats.read(device).free // 2)
    if room is None:
        return config
    tokens = any(layer.token_bytes for layer in spec.layers)
    slots = room // (spec.constant_state_bytes * (2 if tokens else 1))
    seats = min(config.max_num_seqs, slots - min(wanted, slots // 3))
    if not seats:
        sizes = {"slot": exact_bytes(spec.constant_state_bytes), "room": exact_bytes(room)}
        raise DoesNotFitError("llm_states_room", name=spec.name, **sizes)
    return replace(config, max_num_seqs=seats, saved_states=min(wanted, slots - seats))


def size_beside_states(
    spec: CacheSpec, config: EngineConfig, num_bytes: int, longest: int | None, wanted: dict[str, int]
) -> PoolSize:
    """Return the blocks that fit into ``num_bytes`` beside the slots of ``max_num_seqs`` sequences and saved ones."""
    room = num_bytes - (config.max_num_seqs + num_saved(config)) * spec.constant_state_bytes
    asked = {"context": min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)} | wanted
    size = size_for_bytes(spec, room, block_size=config.block_size, **asked)
    if not size.num_blocks:
        sizes = {"slot": exact_bytes(spec.constant_state_bytes), "room": exact_bytes(num_bytes)}
        raise DoesNotFitError("llm_states_room", name=spec.name, **sizes)
    return size


def build_manager(cache: PagedKVCache | LinearPages | StatePages, host_blocks: int = 0) -> BlockManager:
    """Return a manager of the cache's blocks, with a pool and ``host_blocks`` host blocks for each KV cache group."""
    windows = [seen_window(cache, group) for group in range(len(cache.kv_cache_groups))]
    groups = [KVCacheGroup(*pair) for pair in zip(cache.num_blocks, windows, strict=True)]
    host = HostBlocks(host_blocks, cache.block_size, len(groups))
    return BlockManager(groups, cache.block_size, host_blocks=host)


def eos_ids(model: Any) -> frozenset[int]:
    """Return the ids that end a text, as ``generate()`` takes them from the generation config.

    Raises ``ConfigError`` for an invalid token id, and warns of an id that the model cannot sample.
    """
    found = getattr(model.generation_config, "eos_token_id", None)
    ids = () if found is None else found if isinstance(found, list | tuple) else (found,)
    last = model.get_input_embeddings().num_embeddings - 1
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= LARGEST_TOKEN:
            raise ConfigError("eos_token_id", value=shorten(repr(token), 60), last=last)
        if token > last:
            warnings.warn(text("engine.eos_never", "en", token=token, last=last), stacklevel=4)
    return frozenset(ids)


def request_seed(engine_seed: int, number: int) -> int:
    """Return a seed for the ``number``-th request of an engine; the seeds of two engines are unrelated."""
    state = np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)
    return int(state[0]) >> 2  # the largest range that check_count takes


def _linear(model: Any, spec: CacheSpec, config: EngineConfig, longest: int | None) -> LinearKVCache:
    if longest is None:
        raise ArgumentError("llm_linear_length", name=spec.name)
    device = model.get_input_embeddings().weight.device
    row = sum(layer.token_bytes for layer in spec.layers) * longest
    rows = config.max_num_seqs if config.num_blocks is None else min(config.num_blocks, config.max_num_seqs)
    if config.kv_bytes is not None:
        rows = min(rows, config.kv_bytes // row)
    room = MemoryStats.read(device).free
    if not rows:  # not even one row fits into kv_bytes
        rows, room = 1, min(room, config.kv_bytes or 0)
    if rows * row > room:
        sizes = {"row": exact_bytes(row), "need": exact_bytes(rows * row), "room": exact_bytes(room)}
        raise DoesNotFitError("llm_linear_room", name=spec.name, tokens=longest, rows=rows, **sizes)
    return LinearKVCache(spec, rows, longest, device=device)
