"""A CacheSpec and a MemoryBudget as tables, for a terminal and a notebook."""

import math
from typing import TYPE_CHECKING, Any

from minikv.i18n import pick_language, text
from minikv.plan import pool
from minikv.plan.explain import countable
from minikv.plan.spec.cache_spec import LLAMA_CPP
from minikv.shown import Shown
from minikv.units import exact_bytes, format_bytes, gib

if TYPE_CHECKING:
    from minikv.plan.budget import MemoryBudget
    from minikv.plan.spec.cache_spec import CacheSpec

BLOCK_SIZE = 16  # tokens of the block and of the sequence that a spec's table counts; a budget has its own
SEQUENCE = 4096
LONGER_THAN_ANY_WINDOW = 2**40  # tokens


def shown_spec(spec: "CacheSpec", lang: str) -> Shown:
    """A row for each kind of layer, then the bytes of a token, a block and a sequence, and the assumptions."""
    lang = pick_language(lang)
    names = [_say(f"column_{name}", lang) for name in ("kind", "layers", "kv_heads")]
    names += ["k_dim", "v_dim", "itemsize"]
    names += [_say(f"column_{name}", lang) for name in ("window", "token", "all")]
    states = bool(spec.constant_state_bytes)
    rows = []
    for layer, count in countable(spec):
        elements = layer.kv_heads * (layer.k_dim + layer.v_dim)
        # A packed format has no itemsize: its scales are divided among the elements, and half a byte is one element's.
        itemsize = layer.packed_bytes / elements if layer.packed_bytes else layer.itemsize
        sizes = (layer.kv_heads, layer.k_dim, layer.v_dim, itemsize)
        row = [_say(f"kind_{layer.kind}", lang), f"{count}"]
        row += [f"{size:,.10g}" for size in sizes] if layer.kv_heads else ["-"] * len(sizes)
        kept = f"{layer.window:,}" if layer.window is not None else _say("keeps_all", lang)
        kept = f"1/{layer.rate:,}" if layer.rate > 1 else kept
        row += [
            kept if layer.token_bytes else "-",
            f"{layer.mean_token_bytes:,}",
            f"{count * layer.mean_token_bytes:,}",
        ]
        rows.append(row + ([f"{count * layer.state_bytes:,}"] if states else []))
    total = [_say("spec_total", lang), f"{len(spec.layers)}", *[""] * 6, f"{spec.slope(0):,}"]
    rows.append(total + ([f"{spec.constant_state_bytes:,}"] if states else []))
    head = [*names, *([_say("column_state", lang)] if states else [])]
    values = {"name": spec.name, "model_type": spec.model_type, "tp": spec.tp}
    title = _say("spec_head", lang, kv_dtype=spec.kv_dtype, layout=spec.layout, **values)
    assumed = [_say("spec_assumed", lang, sentence=_say(key, lang, **said)) for key, said in spec.assumptions]
    return Shown(title, head, rows, range(1, len(head)), _spec_lines(spec, lang), notes=assumed)


def _spec_lines(spec: "CacheSpec", lang: str) -> list[str]:
    lines = _token_lines(spec, lang)
    lines += widths(spec, lang)
    if spec.layout != LLAMA_CPP:  # it has no blocks
        block = exact_bytes(spec.block_bytes(BLOCK_SIZE))
        lines.append(_say("spec_block", lang, block_size=BLOCK_SIZE, block=block))
    most = spec.max_positions
    if most is None or most >= SEQUENCE:
        lines.append(_say("spec_sequence", lang, tokens=SEQUENCE, size=exact_bytes(spec.bytes_for(SEQUENCE))))
    if most is not None:
        lines.append(_say("spec_longest", lang, tokens=most, size=exact_bytes(spec.bytes_for(most))))
    return lines


def widths(spec: "CacheSpec", lang: str) -> list[str]:
    """A sentence for layers with another meaning of k_dim and v_dim."""
    latent = any(layer.kind == "latent" for layer in spec.layers)
    return [_say("spec_widths_latent", lang)] if latent else []


def shown_budget(budget: "MemoryBudget", lang: str) -> Shown:
    """The parts of the GPU's memory, the contents of the pool, both forms of the sum, and the assumptions."""
    lang = pick_language(lang)
    total = budget.total_bytes
    rows, shares = [], []
    for name, num_bytes in budget.parts().items():
        label = _say(f"part_{name}", lang, **_part_values(budget, lang))
        rows.append((label, f"{gib(num_bytes):.2f}", f"{num_bytes:,}"))
        shares.append(num_bytes / total)
    rows.append((_say("part_total", lang), f"{gib(total):.2f}", f"{total:,}"))
    notes = [_say("paper_form", lang, **_paper(budget)), _say("measured_form", lang, **_measured(budget))]
    notes += ["- " + sentence for sentence in budget.assumptions(lang)]
    head = ("", "GiB", _say("budget_bytes", lang))
    lines = _budget_lines(budget, lang)
    return Shown(budget_title(budget, lang), head, rows, (1, 2), lines, notes, (*shares, 0.0))


def budget_title(budget: "MemoryBudget", lang: str) -> str:
    spec = budget.spec
    values = {"model": spec.name, "gpu": card(budget), "tp": spec.tp, "kv_dtype": spec.kv_dtype}
    return _say("budget_title", lang, **values)


def card(budget: "MemoryBudget") -> str:
    """The GPU's name, or its memory where it has none."""
    return budget.gpu.name if budget.gpu else format_bytes(budget.total_bytes)


def _token_lines(spec: "CacheSpec", lang: str) -> list[str]:
    values = {
        "token": exact_bytes(spec.slope(0)),
        "later": exact_bytes(spec.slope(LONGER_THAN_ANY_WINDOW)),
    }
    lines = [_say("figure_token" if spec.window is None else "figure_token_window", lang, **values)]
    if spec.constant_state_bytes:
        lines.append(_say("figure_state", lang, state=exact_bytes(spec.constant_state_bytes)))
    return lines


def _budget_lines(budget: "MemoryBudget", lang: str) -> list[str]:
    """Sentences about a token's bytes, blocks, tokens, sequences, and whether the load fits."""
    spec = budget.spec
    most = budget.max_context()
    values = {
        "block": exact_bytes(budget.block_bytes),
        "aside": min(budget.batch, budget.max_batch()),
        "block_size": budget.block_size,
        "blocks": budget.num_blocks,
        "tokens": budget.max_tokens,
        "context": budget.context,
        "batch": budget.batch,
        "sequences": budget.max_batch(),
        "longest": most,
        "needed": format_bytes(budget.needed_bytes),
        "pool": format_bytes(budget.kv_bytes),
    }
    lines = _token_lines(spec, lang)
    # Sliding and recurrent layers are subtracted before blocks are counted, so the count is for that many sequences.
    beside = spec.constant_state_bytes or len(pool.counted_groups(spec)) < len(pool.kv_cache_groups(spec))
    lines.append(_say("figure_blocks_beside" if beside else "figure_blocks", lang, **values))
    lines.append(_say("figure_sequences", lang, **values))
    if most == math.inf:
        lines.append(_say("figure_longest_any", lang, **values))
    elif most == spec.max_positions:
        lines.append(_say("figure_longest_capped", lang, **values))
    else:
        lines.append(_say("figure_longest", lang, **values))
    lines.append(_say("figure_fits" if budget.fits else "figure_short", lang, **values))
    return lines


def _part_values(budget: "MemoryBudget", lang: str) -> dict[str, Any]:
    return {
        "source": _say(f"source_{budget.weight_source}", lang),
        "chunk": budget.chunk,
        "batch": budget.batch,
        "context": budget.context,
        "percent": round(100 * (1 - budget.utilization), 3),
    }


def _paper(budget: "MemoryBudget") -> dict[str, Any]:
    return {
        "total": gib(budget.total_bytes),
        "utilization": budget.utilization,
        "weights": gib(budget.weight_bytes),
        "activations": gib(budget.activation_bytes),
        "workspace": gib(budget.workspace_bytes),
        "context": gib(budget.cuda_context_bytes),
        "pool": gib(budget.kv_bytes),
    }


def _measured(budget: "MemoryBudget") -> dict[str, Any]:
    form = {name: gib(value) for name, value in budget.measured_form().items()}
    return form | {"total": gib(budget.total_bytes), "utilization": budget.utilization}


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"plan.{key}", lang, **values)
