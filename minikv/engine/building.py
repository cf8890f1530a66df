"""From what a caller asks of an LLM to a cache of the right size, and the block manager that shares it out."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from minikv.blocks import BlockManager, HostBlocks, PoolKind
from minikv.blocks.prefix import LARGEST_TOKEN
from minikv.cache.allocation import AllocationReport
from minikv.cache.allocator import allocate_kv_cache
from minikv.cache.linear import LinearKVCache
from minikv.cache.linear_pages import LinearPages
from minikv.cache.paged import PagedKVCache
from minikv.engine.graph_memory import held
from minikv.engine.graphs import expected_memory
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError, check_choice, check_count
from minikv.i18n import text
from minikv.memory.stats import MemoryStats
from minikv.models import own_attention, seen_window
from minikv.models.adapter import Reads
from minikv.models.sharding import ranks_wanted
from minikv.plan import CacheSpec
from minikv.plan.dtypes import AnyKVDtype, find_kv_dtype
from minikv.plan.pool import block_kinds, sequence_bytes
from minikv.units import GIB, exact_bytes

if TYPE_CHECKING:
    from minikv.engine.parallel import Team

CacheName = Literal["paged", "linear"]
MOST_ON_A_CPU = 4 * GIB  # a CPU's memory is everybody's: what an LLM takes of it unless it is told how much


@dataclass(frozen=True)
class Wanted:
    """What an LLM was asked for; see ``LLM``. Raises ``ArgumentError`` for what no model could grant."""

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

    def __post_init__(self) -> None:
        check_choice("cache", self.cache, CacheName)
        if self.kv_dtype is not None:
            find_kv_dtype(self.kv_dtype)
        for what in ("block_size", "max_num_seqs", "max_batched_tokens"):
            check_count(what, getattr(self, what))
        check_count("prompt_lookup", self.prompt_lookup, least=0)
        for what in ("kv_bytes", "num_blocks", "max_model_len"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        if self.kv_bytes is not None and self.num_blocks is not None:
            sizes = {"num_blocks": self.num_blocks, "kv_bytes": self.kv_bytes}
            raise ArgumentError("allocator_two_sizes", **sizes)


def meet(tp: int | str) -> "Team | None":
    """The other ranks, if there are to be any; one process alone imports nothing for it."""
    if ranks_wanted(tp) == 1:
        return None
    from minikv.engine.parallel import Team

    return Team.join(tp)


def starting(team: "Team | None") -> AbstractContextManager[None]:
    """Around what is done before the first step: a rank that is lost meanwhile is named."""
    return nullcontext() if team is None else team.starting()


def longest_sequence(spec: CacheSpec, wanted: Wanted) -> int | None:
    """The tokens that a sequence may have: what was asked for, else the model's positions, None where it has no end.

    Raises ``ArgumentError`` where more is asked for than the model has positions.
    """
    asked, most = wanted.max_model_len, spec.max_positions
    if asked is not None and most is not None and asked > most:
        raise ArgumentError("llm_positions", name=spec.name, asked=asked, most=most)
    return most if asked is None else asked


def build_cache(
    model: Any, spec: CacheSpec, wanted: Wanted, record_bytes: int = 0
) -> tuple[PagedKVCache | LinearPages, AllocationReport | None]:
    """The cache, and for a paged one how its size came about.

    A paged cache on a GPU is measured, unless a size is given, and what CUDA graphs and eviction's ``record_bytes``
    will take is held meanwhile. On a CPU it has room for ``max_num_seqs`` sequences of the longest length, but takes at
    most 4 GiB and half of the free memory, the records included. A linear cache has as many rows as fit into
    ``kv_bytes``, or ``num_blocks`` rows, at most and by default one for each of ``max_num_seqs``.
    """
    longest = longest_sequence(spec, wanted)
    if wanted.cache == "linear":
        return LinearPages(_linear(model, spec, wanted, longest)), None
    num_bytes, device = wanted.kv_bytes, model.get_input_embeddings().weight.device
    measured = num_bytes is None and wanted.num_blocks is None
    if measured and device.type == "cpu":
        full = wanted.max_num_seqs * sequence_bytes(spec, longest or 4096, wanted.block_size)
        most = min(MOST_ON_A_CPU, MemoryStats.read(device).free // (2 * spec.tp))
        if record_bytes >= most:
            sizes = {"need": exact_bytes(record_bytes), "room": exact_bytes(most)}
            raise DoesNotFitError("eviction_records_room", seqs=wanted.max_num_seqs, **sizes)
        num_bytes = min(full, most - record_bytes)
    largest_step = wanted.max_batched_tokens if longest is None else min(longest, wanted.max_batched_tokens)
    measured = measured and device.type != "cpu"
    with own_attention(model):  # another LLM may be bound to it: what is measured has no batch
        graph_bytes = _graph_bytes(model, spec, wanted, longest) if measured else 0
    what = "CUDA graphs" if graph_bytes else "eviction's records"  # an LLM that evicts captures none
    with own_attention(model), held(graph_bytes + record_bytes, device, what):
        cache, report = allocate_kv_cache(
            model,
            block_size=wanted.block_size,
            utilization=wanted.utilization,
            num_blocks=wanted.num_blocks,
            kv_bytes=num_bytes,
            warmup_tokens=largest_step if measured else None,
            kv_dtype=wanted.kv_dtype,
            tp=spec.tp,
            **windows_wanted(spec, wanted, longest),
        )
    return cache, replace(report, held_bytes=graph_bytes, record_bytes=record_bytes)


def _graph_bytes(model: Any, spec: CacheSpec, wanted: Wanted, longest: int | None) -> int:
    """What the CUDA graphs of decode steps will take; 0 where there will be none."""
    if wanted.enforce_eager or wanted.reads == "gather" or spec.tp > 1 or longest is None:
        return 0
    width = -(-longest // wanted.block_size)
    try:
        return expected_memory(model, len(block_kinds(spec)), wanted.max_num_seqs, width).num_bytes
    except torch.OutOfMemoryError:
        return 0  # not even single tokens can be computed: allocate_kv_cache says so, with the numbers


def windows_wanted(spec: CacheSpec, wanted: Wanted, longest: int | None) -> dict[str, int]:
    """For how many sequences (``batch``) of which length (``context``) windowed layers get blocks.

    Enough that they never bind first: a full window for each of ``max_num_seqs``, and the tokens of one step. Where
    that does not fit, as many as leave the other layers the same number of blocks, since no sequence needs more.
    """
    size, widest = wanted.block_size, max((layer.window or 0 for layer in spec.layers), default=0)
    if not widest:
        return {}
    # Past that length no windowed layer needs another block.
    context = min(bound for bound in (widest + 1 + size, longest, spec.max_positions) if bound is not None)
    blocks = -(-context // size)
    batch = wanted.max_num_seqs + -(-wanted.max_batched_tokens // (blocks * size))
    if wanted.num_blocks is not None:
        batch = max(1, min(batch, wanted.num_blocks // blocks))
    return {"context": context, "batch": batch}


def build_manager(cache: PagedKVCache | LinearPages, host_blocks: int = 0) -> BlockManager:
    """A manager of the cache's blocks, a pool for each kind of layer, and of as many host blocks for each."""
    windows = [seen_window(cache, kind) for kind in range(len(cache.kinds))]
    kinds = [PoolKind(*pair) for pair in zip(cache.num_blocks, windows, strict=True)]
    host = HostBlocks(host_blocks, cache.block_size, len(kinds))
    return BlockManager(kinds, cache.block_size, host_blocks=host)


def eos_ids(model: Any) -> frozenset[int]:
    """The ids that end a text, as ``generate()`` takes them: the generation config's, whatever the config says.

    Raises ``ConfigError`` for what is no token id, and warns of an id that the model cannot draw.
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
    """A seed for the ``number``-th request of an engine: from one engine's to the next's nothing is shared."""
    state = np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)
    return int(state[0]) >> 2  # what check_count takes


def _linear(model: Any, spec: CacheSpec, wanted: Wanted, longest: int | None) -> LinearKVCache:
    if longest is None:
        raise ArgumentError("llm_linear_length", name=spec.name)
    device = model.get_input_embeddings().weight.device
    row = sum(layer.token_bytes for layer in spec.layers) * longest
    rows = wanted.max_num_seqs if wanted.num_blocks is None else min(wanted.num_blocks, wanted.max_num_seqs)
    if wanted.kv_bytes is not None:
        rows = min(rows, wanted.kv_bytes // row)
    room = MemoryStats.read(device).free
    if not rows:  # not even one fits into kv_bytes
        rows, room = 1, min(room, wanted.kv_bytes or 0)
    if rows * row > room:
        sizes = {"row": exact_bytes(row), "need": exact_bytes(rows * row), "room": exact_bytes(room)}
        raise DoesNotFitError("llm_linear_room", name=spec.name, tokens=longest, rows=rows, **sizes)
    return LinearKVCache(spec, rows, longest, device=device)
