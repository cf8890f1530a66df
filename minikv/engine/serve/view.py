"""EngineView: the running and waiting sequences at one moment, and their blocks, for a live view."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.blocks.pool import PoolStats
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import Sequence, SequenceId, SequenceStatus
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.shown import Shown, one_line
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.engine.llm import LLM


@dataclass(frozen=True)
class SequenceView:
    """A sequence that has not ended. Counts are tokens.

    ``tables`` has its blocks for each KV cache group (-1: freed behind a window). It is empty while it waits.
    ``swapped``: it waits, and its computed tokens are in host memory. The layers without a window hold ``num_resident``
    of its ``num_computed`` tokens: fewer if eviction has taken some, or will in the running step.
    """

    id: SequenceId
    status: SequenceStatus
    num_prompt: int
    num_cached: int
    num_computed: int
    num_output: int
    num_preemptions: int
    tables: tuple[tuple[int, ...], ...]
    swapped: bool = False
    num_resident: int = 0


@dataclass(frozen=True)
class EngineView:
    """``running`` and ``waiting`` are in the order of arrival; ``pools`` count the blocks of each KV cache group.

    ``host_pools`` count those of the host, none without host memory: "used" are blocks of swapped sequences,
    "cached" those of prefixes that no sequence holds. ``steps`` have been computed, ``generated`` tokens made and
    ``finished`` requests ended since the engine was built.
    """

    steps: int
    generated: int
    finished: int
    running: tuple[SequenceView, ...]
    waiting: tuple[SequenceView, ...]
    pools: tuple[PoolStats, ...]
    block_size: int
    host_pools: tuple[PoolStats, ...] = ()


def view_of(scheduler: Scheduler, steps: int, generated: int, finished: int) -> EngineView:
    """Return a copy of the scheduler's state."""
    manager = scheduler.manager
    groups = range(len(manager.pools))
    whole = next((number for number, group in enumerate(manager.kv_cache_groups) if group.window is None), 0)

    def see(seq: Sequence) -> SequenceView:
        held = seq.status is SequenceStatus.RUNNING
        swapped = seq.id in manager.host_blocks
        lost = manager.num_evicted(seq.id, whole) if held or swapped else 0
        return SequenceView(
            seq.id,
            seq.status,
            seq.num_prompt,
            seq.num_cached or 0,
            seq.num_computed,
            seq.num_output,
            seq.num_preemptions,
            tuple(tuple(manager.block_table(seq.id, group)) for group in groups) if held else (),
            swapped,
            seq.num_computed - lost,
        )

    return EngineView(
        steps,
        generated,
        finished,
        tuple(see(seq) for seq in _not_ended(scheduler, scheduler.running)),
        tuple(see(seq) for seq in _not_ended(scheduler, scheduler.waiting)),
        tuple(pool.stats() for pool in manager.pools),
        manager.block_size,
        tuple(pool.stats() for pool in manager.host_pools),
    )


def _not_ended(scheduler: Scheduler, seq_ids: Iterable[SequenceId]) -> Iterator[Sequence]:
    """Yield the sequences without those aborted in the running step, which hold their blocks until it has ended."""
    for seq_id in seq_ids:
        with suppress(ArgumentError):
            yield scheduler.sequence(seq_id)


def shown_llm(llm: "LLM", lang: str) -> Shown:
    """Return the cache, the used part of it, and the limits of a step, without waiting for another thread's step."""
    lang, cache, scheduler = pick_language(lang), llm.cache, llm.scheduler
    name, blocks = cache.spec.name, cache.num_blocks
    if llm.closed:
        return Shown(_say("closed", lang, name=name))
    pools = [pool.stats() for pool in llm.manager.pools]
    tokens = blocks[0] * cache.block_size
    rows = [
        ("cache", "linear" if llm.allocation is None else "paged", _say("cache", lang)),
        ("kv_bytes", format_bytes(cache.nbytes), _say("kv", lang, kv_dtype=cache.codec.name)),
        ("num_blocks", _sum(blocks), _say("blocks", lang, block_size=cache.block_size, tokens=tokens)),
        ("used", _sum(pool.used for pool in pools), _say("used", lang)),
        ("cached", _sum(pool.cached for pool in pools), _say("cached", lang)),
    ]
    figures = {
        "running": scheduler.num_running,
        "waiting": scheduler.num_waiting,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_batched_tokens": scheduler.max_batched_tokens,
        "max_model_len": scheduler.max_model_len,
        **llm.totals,
    }
    rows += [(key, f"{value:,}", _say(key, lang)) for key, value in figures.items() if value is not None]
    title = _say("title", lang, name=name, device=str(cache.device), tp=cache.spec.tp)
    return Shown(title, rows=rows, right=(1,))


def llm_line(llm: "LLM") -> str:
    """Return ``<LLM tiny-gqa on cpu: 64 blocks of 16 tokens, 1.00 MiB, 2 running, 0 waiting>``."""
    cache, scheduler = llm.cache, llm.scheduler
    if llm.closed:
        return one_line("LLM", cache.spec.name, "closed")
    blocks = f"{_sum(cache.num_blocks)} blocks of {cache.block_size:,} tokens"
    counts = f"{scheduler.num_running:,} running", f"{scheduler.num_waiting:,} waiting"
    return one_line(
        "LLM", f"{cache.spec.name} on {cache.device}", blocks, format_bytes(cache.nbytes), *counts
    )


def _sum(counts: Iterable[int]) -> str:
    """Return each group's count: "64", or "64 + 12"."""
    return " + ".join(f"{count:,}" for count in counts)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"engine.llm_{key}", lang, **values)
