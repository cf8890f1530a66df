"""AllocationReport: where the KV cache's size came from, term by term. Lesson 08."""

from dataclasses import dataclass
from typing import Any

from minikv.i18n import pick_language, text
from minikv.memory.peak import PeakReport
from minikv.memory.stats import MemoryStats
from minikv.plan.measured import MeasuredTerms
from minikv.shown import columns
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class AllocationReport:
    """One rank's allocation. All sizes are bytes, all lengths tokens.

    ``how`` is what set the size: "measured" (the formula, with its ``terms``), "num_blocks" or "kv_bytes" (given).
    ``num_blocks`` counts blocks of ``block_bytes``, those of the kinds without a window; ``blocks`` are the blocks of
    each kind and ``windows`` their windows, in the order of ``minikv.plan.pool.block_kinds``: a windowed kind has
    what ``batch`` sequences of ``context`` tokens need. ``own_blocks`` is ``num_blocks`` as this rank alone would
    have it, before the minimum over ``ranks``. ``kv_bytes`` are the blocks of all kinds, ``padding_bytes`` what
    alignment took beside them. ``weight_bytes`` are the model's parameters, ``buffer_bytes`` its buffers.
    ``peak`` is the warm-up of ``warmup_tokens`` tokens (both None without one); ``stats`` is the device before the
    cache was made. Whoever asked for the cache held ``held_bytes`` meanwhile, for the CUDA graphs that will be captured
    on it, and ``record_bytes`` for what eviction will remember of each cached token: they count as ``used``, as
    ``current`` and in the ``peak``, so the cache is smaller by them.
    """

    name: str
    device: str
    tp: int
    how: str
    block_size: int
    block_bytes: int
    num_blocks: int
    own_blocks: int
    ranks: int
    blocks: tuple[int, ...]
    windows: tuple[int | None, ...]
    batch: int
    context: int
    weight_bytes: int
    buffer_bytes: int
    kv_bytes: int
    padding_bytes: int
    warmup_tokens: int | None
    peak: PeakReport | None
    stats: MemoryStats
    terms: MeasuredTerms | None
    held_bytes: int = 0
    record_bytes: int = 0

    @property
    def max_tokens(self) -> int:
        """Tokens that the counted blocks hold: num_blocks * block_size."""
        return self.num_blocks * self.block_size

    def parts(self) -> dict[str, int]:
        """What the device's bytes are for, in order, for a bar; they add up to ``stats.total``.

        Measured: ``current`` (weights and whatever torch holds), ``not_torch`` (used - current: contexts, libraries,
        other processes, and what torch caches), ``activations`` (peak - current), ``kv``, ``left`` (of the available
        bytes; less than a block, or what another rank lacks; alignment takes its padding from it) and ``kept_free``
        (what utilization leaves to others). Given: ``used``, ``kv`` and ``left``.
        """
        stats, terms = self.stats, self.terms
        if terms is None:
            return {"used": stats.used, "kv": self.kv_bytes, "left": stats.free - self.kv_bytes}
        return {
            "current": terms.current,
            "not_torch": terms.used - terms.current,
            "activations": terms.peak - terms.current,
            "kv": self.kv_bytes,
            "left": terms.available - self.kv_bytes,
            "kept_free": terms.total - terms.limit,
        }

    def text(self, lang: str = "en") -> str:
        """Every term as a table, then in sentences what they do not say."""
        lang = pick_language(lang)
        rows = [("", "", _say("column_bytes", lang), _say("column_meaning", lang))]
        for name, value, values in self._rows():
            rows.append((name, format_bytes(value), f"{value:,}", _say(f"row_{name}", lang, **values)))
        lines = [_say("title", lang, name=self.name, device=self.device, tp=self.tp)]
        lines += [columns(rows, right=(1, 2)), _say(f"how_{self.how}", lang)]
        return "\n".join([*lines, *self._sentences(lang)])

    def _rows(self) -> list[tuple[str, int, dict[str, Any]]]:
        """(name, bytes, values of its meaning) of every line of the table."""
        rows: list[tuple[str, int, dict[str, Any]]] = [
            ("weights", self.weight_bytes, {"buffers": self.buffer_bytes})
        ]
        if self.terms is not None:
            values = {"total": self.terms.total, "utilization": self.terms.utilization}
            rows += [(name, value, values) for name, value in self.terms.as_dict().items()]
        if self.held_bytes:
            rows.append(("graphs", self.held_bytes, {}))
        if self.record_bytes:
            rows.append(("records", self.record_bytes, {}))
        if self.peak is not None:
            rows.append(("activations", self.peak.extra, {"tokens": self.warmup_tokens}))
        rows.append(("block", self.block_bytes, {"block_size": self.block_size}))
        rows.append(("kv", self.kv_bytes, {"blocks": self.num_blocks, "tokens": self.max_tokens}))
        return rows

    def _sentences(self, lang: str) -> list[str]:
        lines = []
        for blocks, window in zip(self.blocks, self.windows, strict=True):
            if window is not None:
                # Where every layer slides, the windows' blocks are the ones that are counted.
                key = "window" if None in self.windows else "window_counted"
                values = {"window": window, "batch": self.batch, "context": self.context}
                lines.append(_say(key, lang, blocks=blocks, **values))
        if self.ranks > 1:
            lines.append(_say("ranks", lang, ranks=self.ranks, own=self.own_blocks, blocks=self.num_blocks))
        if self.stats.others is not None:
            lines.append(_say("others", lang, others=exact_bytes(self.stats.others)))
        elif self.stats.nvml is not None:
            lines.append(_say("others_unknown", lang, reason=self.stats.nvml))
        return lines


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"allocation.{key}", lang, **values)
