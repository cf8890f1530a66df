"""The statistics of a block manager: blocks by state, prefix hits, internal fragmentation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minikv.blocks.pool import BlockPool, PoolStats
from minikv.blocks.tables import SequenceBlocks
from minikv.i18n import pick_language, text
from minikv.shown import Shown, html_of, one_line, text_of


@dataclass(frozen=True)
class ManagerStats:
    """``pools`` and ``wasted_slots`` have one entry for each KV cache group.

    ``wasted_slots`` is internal fragmentation: the slots of used blocks that hold no token (a shared block is
    counted once). ``asked_tokens`` were given to ``allocate``, and ``hit_tokens`` of them were cached.
    """

    sequences: int
    pools: tuple[PoolStats, ...]
    wasted_slots: tuple[int, ...]
    block_size: int
    asked_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Cached tokens per token asked for; 0 before the first request."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0

    def fragmentation(self, kv_cache_group: int = 0) -> float:
        """Return the share of the used slots that hold no token."""
        used = self.pools[kv_cache_group].used * self.block_size
        return self.wasted_slots[kv_cache_group] / used if used else 0.0

    def shown(self, lang: str = "en") -> Shown:
        """Return a row for each KV cache group: blocks by state, and slots without a token; then the hit rate."""
        lang = pick_language(lang)
        names = ("total", "used", "cached", "empty", "evictions", "wasted", "fragmentation")
        head = ("", *(_say(f"column_{name}", lang) for name in names))
        rows = []
        for group, pool in enumerate(self.pools):
            counts = (pool.total, pool.used, pool.cached, pool.free - pool.cached, pool.evictions)
            figures = [f"{count:,}" for count in (*counts, self.wasted_slots[group])]
            rows.append((_say("group", lang, number=group), *figures, f"{self.fragmentation(group):.1%}"))
        lines = [_say("meaning", lang)]
        if self.asked_tokens:
            lines.append(_say("hits", lang, hit=self.hit_tokens, asked=self.asked_tokens, rate=self.hit_rate))
        title = _say("title", lang, sequences=self.sequences, block_size=self.block_size)
        return Shown(title, head, rows, range(1, len(head)), lines)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        return one_line(type(self).__name__, "", *facts(self.pools, self.block_size, self.sequences))


def facts(pools: Sequence[PoolStats], block_size: int, sequences: int) -> list[str]:
    """Return the parts of a ``repr`` of pools: the blocks of one group, or of all groups together."""
    total, used, cached = (sum(getattr(pool, name) for pool in pools) for name in ("total", "used", "cached"))
    groups = [f"{len(pools)} KV cache groups"] if len(pools) > 1 else []
    blocks = [f"{total:,} blocks of {block_size:,} tokens", f"{used:,} used", f"{cached:,} cached"]
    return [*groups, *blocks, f"{sequences:,} sequences"]


def wasted_slots(pool: BlockPool, kv_cache_group: int, sequences: Iterable[SequenceBlocks]) -> int:
    """Count the slots of used blocks of ``kv_cache_group`` that hold no token of any sequence."""
    size = pool.block_size
    filled: dict[int, int] = {}
    for seq in sequences:
        table, length = seq.tables[kv_cache_group], seq.length(kv_cache_group)
        for place in range(table.num_passed, len(table.blocks)):
            block = table.blocks[place]
            filled[block] = max(filled.get(block, 0), min(size, length - place * size))
    return sum(size - held for held in filled.values())


def manager_stats(
    pools: Sequence[BlockPool], sequences: Sequence[SequenceBlocks], asked: int, hit: int
) -> ManagerStats:
    return ManagerStats(
        sequences=len(sequences),
        pools=tuple(pool.stats() for pool in pools),
        wasted_slots=tuple(wasted_slots(pool, group, sequences) for group, pool in enumerate(pools)),
        block_size=pools[0].block_size,
        asked_tokens=asked,
        hit_tokens=hit,
    )


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"blocks.{key}", lang, **values)
