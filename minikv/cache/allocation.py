"""AllocationReport: the origin of the KV cache's size, term by term. Lesson 08."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from minikv.i18n import pick_language, text
from minikv.memory.peak import PeakReport
from minikv.memory.stats import MemoryStats
from minikv.plan.explain import countable
from minikv.plan.measured import MeasuredTerms
from minikv.plan.report import widths
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes

# Name; bytes, a figure without a unit, or None for no figure; meaning.
Row = tuple[str, int | str | None, str]


@dataclass(frozen=True)
class AllocationReport:
    """One rank's allocation of a cache for ``spec``. All sizes are bytes, all lengths tokens.

    ``how`` is the origin of the size: "measured" (the formula, with its ``terms``), "num_blocks" or "kv_bytes" (given).
    ``num_blocks`` counts blocks of ``block_bytes``, those of the groups without a window. ``blocks`` are the blocks of
    each group and ``windows`` their windows, in the order of ``minikv.plan.pool.kv_cache_groups``: a windowed group has
    the blocks that ``batch`` sequences of ``context`` tokens need. ``own_blocks`` is the ``num_blocks`` of this rank
    alone, before the minimum over ``ranks``. ``kv_bytes`` are the blocks of all groups, ``padding_bytes`` those of the
    alignment beside them. ``weight_bytes`` are the model's parameters, ``buffer_bytes`` its buffers. ``peak`` is the
    warm-up of ``warmup_tokens`` tokens (both None without one); ``stats`` is the device before the cache was made.
    Meanwhile the caller held ``held_bytes`` for the CUDA graphs that will be captured, and ``record_bytes`` for
    eviction's records of each cached token, and ``expanded_bytes`` for K and V that a prefill makes of MLA's latents.
    All count as ``used``, as ``current`` and in the ``peak``, so the cache is smaller by them.
    """

    spec: CacheSpec
    device: str
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
    expanded_bytes: int = 0

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    @property
    def tp(self) -> int:
        """The number of ranks that share the model."""
        return self.spec.tp

    @property
    def max_tokens(self) -> int:
        """The tokens that the counted blocks hold: num_blocks * block_size."""
        return self.num_blocks * self.block_size

    def parts(self) -> dict[str, int]:
        """The uses of the device's bytes, in order, for a bar; they add up to ``stats.total``.

        Measured: ``current`` (weights and other tensors of torch), ``not_torch`` (used - current: contexts, libraries,
        other processes, and torch's cached memory), ``activations`` (peak - current), ``kv``, ``left`` (of the
        available bytes; less than a block, or what another rank lacks; alignment takes its padding from it) and
        ``kept_free`` (the share that utilization leaves to others). Given: ``used``, ``kv`` and ``left``.
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

    def shown(self, lang: str = "en") -> Shown:
        """Return every variable of the allocation with its value, then sentences with notes.

        A row that could not be measured, on a CPU or for a given size, says so.
        """
        lang = pick_language(lang)
        rows, shares = [], []
        for name, value, meaning in (*self._model(lang), *self._memory(lang), *self._cache(lang)):
            if isinstance(value, int):
                rows.append((name, format_bytes(value), f"{value:,}", meaning))
                shares.append(value / self.stats.total)
            else:
                rows.append((name, "", value or "-", meaning))
                shares.append(0.0)
        head = ("", "", _say("column_value", lang), _say("column_meaning", lang))
        title = _say("title", lang, name=self.name, device=self.device, tp=self.tp)
        lines = [_say(f"how_{self.how}", lang), *self._sentences(lang)]
        # Beside a machine's whole memory the bars of a CPU's cache would be hairlines.
        return Shown(title, head, rows, (1, 2), lines, shares=shares if self.stats.kind == "cuda" else ())

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        blocks = f"{self.num_blocks:,} blocks of {self.block_size} tokens"
        size = f"{format_bytes(self.kv_bytes)} on {self.device}"
        return one_line("AllocationReport", self.name, blocks, size, self.how)

    def _model(self, lang: str) -> Iterator[Row]:
        """Yield the facts of the model's config about a block."""
        spec, kinds = self.spec, self._kinds()
        stored = sum(kinds.values())
        key = "row_layers" if stored == len(spec.layers) else "row_layers_some"
        yield "num_hidden_layers", f"{len(spec.layers):,}", _say(key, lang, stored=stored)
        key = "row_heads" if spec.tp == 1 else "row_heads_shared"
        yield "num_kv_heads", _each(f"{each.kv_heads:,}" for each in kinds), _say(key, lang, tp=spec.tp)
        alike = all(each.k_dim == each.v_dim for each in kinds)
        dims = _each(f"{each.k_dim:,}" if alike else f"{each.k_dim:,} + {each.v_dim:,}" for each in kinds)
        yield "head_dim", dims, _say("row_head_dim" if alike else "row_head_dims", lang)
        scale = max((each.scale_bytes for each in kinds), default=0)
        key = "row_itemsize_scaled" if scale else "row_itemsize"
        itemsize = _each(str(each.itemsize) for each in kinds)
        yield "itemsize", itemsize, _say(key, lang, kv_dtype=spec.kv_dtype, scale=scale)
        yield "block_size", f"{self.block_size:,}", _say("row_block_size", lang)

    def _memory(self, lang: str) -> Iterator[Row]:
        """Yield the formula's terms, each with its value or the reason why it has none."""
        stats, terms = self.stats, self.terms
        yield "total", stats.total, _say(f"row_total_{stats.kind}", lang)
        yield "weights", self.weight_bytes, _say("row_weights", lang, buffers=self.buffer_bytes)
        values: dict[str, int | None] = dict.fromkeys(("limit", "used", "peak", "current", "available"))
        if terms is not None:
            values |= terms.as_dict()
        elif stats.kind == "cuda":
            values |= {"used": stats.used, "peak": stats.peak, "current": stats.allocated}
        limits = None if terms is None else {"total": terms.total, "utilization": terms.utilization}
        for name, value in values.items():
            key = "row_no_limit" if limits is None and name == "limit" else f"row_{name}"
            meaning = _say(key, lang, **(limits or {}))
            if value is None:
                key = "not_measured_cpu" if stats.kind == "cpu" else "not_computed"
                # Without the sign that it has in the formula
                meaning = _say(key, lang, meaning=meaning.lstrip("+-= "))
            yield name, value, meaning
        if self.held_bytes:
            yield "graphs", self.held_bytes, _say("row_graphs", lang)
        if self.record_bytes:
            yield "records", self.record_bytes, _say("row_records", lang)
        if self.expanded_bytes:
            yield "expanded", self.expanded_bytes, _say("row_expanded", lang)
        if self.peak is not None:
            yield "activations", self.peak.extra, _say("row_activations", lang, tokens=self.warmup_tokens)
        else:
            yield "activations", None, _say("row_no_activations", lang)

    def _cache(self, lang: str) -> Iterator[Row]:
        yield "block", self.block_bytes, self._block(lang)
        yield "num_blocks", f"{self.num_blocks:,}", _say("row_num_blocks", lang)
        yield "max_tokens", f"{self.max_tokens:,}", _say("row_max_tokens", lang)
        yield "kv", self.kv_bytes, _say("row_kv", lang, blocks=self.num_blocks, tokens=self.max_tokens)

    def _block(self, lang: str) -> str:
        """Return a block's bytes as a product if every layer is alike; in words otherwise."""
        kinds = self._kinds()
        if len(kinds) == 1:
            (each, layers) = next(iter(kinds.items()))
            factors = (2, layers, self.block_size, each.kv_heads, each.k_dim, each.itemsize)
            if each.k_dim == each.v_dim and math.prod(factors) == self.block_bytes:
                product = " x ".join(map(str, factors))
                return _say("row_block_product", lang, block_size=self.block_size, product=product)
        return _say("row_block", lang, block_size=self.block_size)

    def _kinds(self) -> dict[LayerSpec, int]:
        """Return the kinds of layers that store K and V, each with its number of layers."""
        return {layer: count for layer, count in countable(self.spec) if layer.token_bytes}

    def _sentences(self, lang: str) -> list[str]:
        kinds = self._kinds()
        lines = widths(self.spec, lang)
        if len(kinds) > 1:
            named = [
                _say("kind", lang, kind=text(f"plan.kind_{layer.kind}", lang), count=count)
                for layer, count in kinds.items()
            ]
            lines.append(_say("kinds", lang, kinds=" / ".join(named)))
        for blocks, window in zip(self.blocks, self.windows, strict=True):
            if window is not None:
                # If every layer slides, the windows' blocks are the counted ones.
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


def _each(figures: Iterable[str]) -> str:
    """Return one figure if all kinds of layers have the same, else each kind's."""
    found = list(figures)
    return " / ".join(found if len(set(found)) > 1 else found[:1])


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"allocation.{key}", lang, **values)
