"""The verdict on a vLLM log: one block count that explains all printed figures, or the reason why there is none.

The log's GiB are an interval, since two decimals are printed, and the pool arithmetic turns it into an
interval of block counts. The printed tokens, blocks and concurrency are further intervals. They agree if one
block count lies in all of them. If none does, other setups are tried one change at a time, and the one
that fits is named. Otherwise a rank has less memory than the printed one, or the figures contradict each other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from minikv.errors import MiniKVError
from minikv.i18n import pick_language
from minikv.i18n import text as sentence
from minikv.plan.logs.fit import LEAST_RANK_SHARE, Interval, Reason, contradiction, fitting_blocks
from minikv.plan.logs.lines import LogFacts
from minikv.plan.logs.setup import Setup, alternatives, readings, setup_pool
from minikv.plan.logs.vllm_pool import VllmPool
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import gib


@dataclass(frozen=True)
class LogVerdict:
    """Whether the log's figures agree with each other.

    ``status`` is "agrees", "explained" (they differ from the plain rule, and ``reasons`` say why) or
    "contradicts". ``predicted_tokens`` are the fewest and most tokens that the printed GiB allow, None where
    the log has no GiB. ``needed_bytes`` are those of the printed tokens on one rank. ``reasons`` are keys of
    ``messages/vllm.toml`` with their values.
    """

    status: str
    model: str
    setup: Setup
    facts: LogFacts
    pool: VllmPool
    printed_tokens: int | None
    predicted_tokens: Interval | None
    needed_bytes: int | None
    reasons: tuple[Reason, ...] = field(default=(), hash=False)

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """The verdict as plain JSON values: sizes are integers of bytes, the sentences are in ``lang``."""
        setup, facts = self.setup, self.facts
        return {
            "status": self.status,
            "model": self.model,
            "tp": setup.tp,
            "pp": setup.pp,
            "kv_dtype": setup.kv_dtype,
            "block_size": setup.block_size,
            "block_bytes": self.pool.block_bytes,
            "printed": {
                "gib": facts.poorest_gib,
                "tokens": min(facts.tokens, default=None),
                "blocks": min(facts.blocks, default=None),
                "concurrency": facts.concurrency,
                "max_model_len": facts.max_model_len,
                "refusal": asdict(facts.refusal) if facts.refusal else None,
            },
            "predicted_tokens": self.predicted_tokens,
            "needed_bytes": self.needed_bytes,
            "reasons": [
                {"code": key, "values": values, "text": sentence(f"vllm.{key}", lang, **values)}
                for key, values in self.reasons
            ],
        }

    def shown(self, lang: str = "en") -> Shown:
        """The verdict as plain sentences in ``lang``, one a line."""
        lang, setup = pick_language(lang), self.setup
        subject = {"model": self.model, "tp": setup.tp, "pp": setup.pp, "block_bytes": self.pool.block_bytes}
        lines: list[Reason] = [("subject", subject)]
        if self.predicted_tokens and self.printed_tokens is not None:
            first, last = self.predicted_tokens
            values = {"gib": self.facts.poorest_gib, "first": first, "last": last}
            lines.append(("prediction", values | {"printed": self.printed_tokens}))
        told = [sentence(f"vllm.{key}", lang, **values) for key, values in (*lines, *self.reasons)]
        return Shown(sentence(f"vllm.status_{self.status}", lang), lines=told)

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        printed = "no tokens" if self.printed_tokens is None else f"{self.printed_tokens:,} tokens printed"
        ends = self.predicted_tokens
        allowed = [] if ends is None else [f"{ends[0]:,} to {ends[1]:,} predicted"]
        return one_line("LogVerdict", self.model, self.status, printed, *allowed, f"tp={self.setup.tp}")


def judge(facts: LogFacts, model: Any, setup: Setup) -> LogVerdict:
    """The verdict on ``facts`` for ``model`` in ``setup``. Raises what ``setup_pool`` and ``readings`` raise."""
    spec, pool = setup_pool(model, setup)
    ways = readings(facts, pool, setup)
    notes = _notes(facts, model, setup)
    for way in ways:
        way_pool = setup_pool(model, way)[1]
        if fitting_blocks(way_pool, way, facts):
            plain = len(pool.groups) == 1 and not pool.has_windows
            reasons = [] if plain else _rule(way_pool, way)
            status = "agrees" if plain or len(ways) == 1 else "explained"
            return _verdict(status, spec, way_pool, way, facts, (*reasons, *notes))
    first = ways[0]
    for key, other in alternatives(facts, first, spec, pool):
        reason = _other(key, other, facts, model, pool)
        if reason:
            return _verdict("explained", spec, pool, first, facts, (reason, *notes))
    for way in ways:
        reason = _override(facts, pool, way) or _poorer_rank(facts, pool, way)
        if reason:
            return _verdict("explained", spec, pool, way, facts, (reason, *notes))
    if facts.refusal:
        ways = [*ways, *(other for _, other in alternatives(facts, first, spec, pool))]
    way, pool, missing = contradiction(facts, list(_pools(model, ways)))
    return _verdict("contradicts", spec, pool, way, facts, (*missing, *notes))


def _verdict(
    status: str, spec: CacheSpec, pool: VllmPool, setup: Setup, facts: LogFacts, reasons: tuple[Reason, ...]
) -> LogVerdict:
    """The verdict with its numbers: printed and predicted tokens, and the bytes of the printed ones."""
    printed = needed = predicted = None
    if facts.tokens:
        printed = min(facts.tokens)
        needed = pool.blocks_that_print(printed, **setup.printing)[0] * pool.block_bytes
    elif facts.blocks:
        printed = pool.tokens_printed(min(facts.blocks), **setup.printing)
        needed = min(facts.blocks) * pool.block_bytes
    if facts.available_bytes:
        fewest, most = (
            pool.tokens_printed(pool.num_blocks(end), **setup.printing) for end in facts.available_bytes
        )
        predicted = fewest, most
    return LogVerdict(status, spec.name, setup, facts, pool, printed, predicted, needed, reasons)


def _pools(model: Any, ways: Iterable[Setup]) -> Iterator[tuple[Setup, VllmPool]]:
    """Each setup with its pool, without those that are impossible for this model."""
    for way in ways:
        try:
            yield way, setup_pool(model, way)[1]
        except MiniKVError:
            continue


def _other(key: str, other: Setup, facts: LogFacts, model: Any, pool: VllmPool) -> Reason | None:
    """The reason that names ``other``, if its pool differs from ``pool`` and fits."""
    try:
        spec, other_pool = setup_pool(model, other)
    except MiniKVError:
        return None  # no such setup for this model
    if other_pool == pool:
        return None
    for way in readings(facts, other_pool, other):
        if fitting_blocks(setup_pool(model, way)[1], way, facts):
            values = {"tp": other.tp, "kv_dtype": spec.kv_dtype, "block_size": other.block_size}
            return key, values | {"layers": other.draft_layers}
    return None


def _override(facts: LogFacts, pool: VllmPool, setup: Setup) -> Reason | None:
    if facts.override_blocks is None:
        return None
    first, last = fitting_blocks(pool, setup, facts, without="gib") or (1, 0)
    return ("override", {"blocks": facts.override_blocks}) if first <= facts.override_blocks <= last else None


def _poorer_rank(facts: LogFacts, pool: VllmPool, setup: Setup) -> Reason | None:
    """The reason for a pool smaller than the printed GiB allow: a rank that the log does not show has less."""
    ranks = setup.tp * setup.pp
    blocks = None if facts.refusal else fitting_blocks(pool, setup, facts, without="gib")
    if blocks is None or facts.available_bytes is None or len(facts.available_gib) >= ranks:
        return None
    needed, low = blocks[0] * pool.block_bytes, facts.available_bytes[0]
    if not LEAST_RANK_SHARE * low <= needed < low:
        return None
    tokens = pool.tokens_printed(blocks[0], **setup.printing)
    return "poorer_rank", {"ranks": ranks, "tokens": tokens, "needed": gib(needed), "gib": facts.poorest_gib}


def _rule(pool: VllmPool, setup: Setup) -> list[Reason]:
    """The rule by which a hybrid model's tokens were printed, and the facts that it needed."""
    sizes = sorted({group.block_size for group in pool.groups if group.block_size})
    values = {"groups": len(pool.groups), "pages": pool.group_size, "sizes": ", ".join(map(str, sizes))}
    reasons: list[Reason] = [(f"rule_{setup.rule}", values)]
    if pool.has_windows and setup.rule == "new":
        reasons.append(("batched", {"batched": setup.batched_tokens}))
    if pool.has_states:
        reasons.append(("mamba", {"mode": setup.mamba_mode, "blocks": pool.state_blocks}))
    return reasons


def _notes(facts: LogFacts, model: Any, setup: Setup) -> tuple[Reason, ...]:
    """Return notes on this log for its reader, with any verdict."""
    notes: list[Reason] = []
    if len(facts.available_gib) > 1:
        notes.append(("several_ranks", {"count": len(facts.available_gib), "gib": facts.poorest_gib}))
    if not facts.available_gib and not facts.refusal:
        notes.append(("no_gib", {}))
    whole = CacheSpec.from_config(model, layout="vllm")
    heads = max(layer.kv_heads for layer in whole.layers)
    if setup.tp > 1 and any(layer.kind == "latent" for layer in whole.layers):
        notes.append(("latent", {"tp": setup.tp}))
    elif setup.tp > heads > 0:
        notes.append(("replicated", {"tp": setup.tp, "heads": heads, "copies": setup.tp // heads}))
    return tuple(notes)
