"""A GGUFPlan as tables and sentences, for a terminal and a notebook."""

from typing import Any

from minikv.i18n import escape_controls, pick_language, text
from minikv.plan.gguf.memory import GGUFPlan
from minikv.plan.report import shown_spec
from minikv.plan.tables import context_lengths
from minikv.shown import Shown
from minikv.units import exact_bytes, format_bytes, gib


def shown_plan(plan: GGUFPlan, lang: str) -> Shown:
    """The parts of the GPU's memory, or without a GPU the kinds of layers; sentences below; the basis of it all."""
    lang = pick_language(lang)
    if plan.total_bytes is None:
        spec = shown_spec(plan.spec, lang)
        lines = [*spec.lines, *_lines(plan, lang)]
        return Shown(spec.title, spec.head, spec.rows, spec.right, lines, [*spec.notes, *_notes(plan, lang)])
    values = {"batch": plan.batch, "context": plan.context}
    rows, shares = [], []
    for name, num_bytes in plan.parts().items():
        rows.append((_say(f"part_{name}", lang, **values), f"{gib(num_bytes):.2f}", f"{num_bytes:,}"))
        shares.append(num_bytes / plan.total_bytes)
    rows.append((_say("part_total", lang), f"{gib(plan.total_bytes):.2f}", f"{plan.total_bytes:,}"))
    card = plan.gpu.name if plan.gpu else format_bytes(plan.total_bytes)
    title = _say("title", lang, name=plan.spec.name, gpu=card, kv_dtype=plan.spec.kv_dtype)
    head = ("", "GiB", text("plan.budget_bytes", lang))
    lines = [*_lines(plan, lang), *_fit_lines(plan, lang)]
    return Shown(title, head, rows, (1, 2), lines, _notes(plan, lang), (*shares, 0.0))


def type_rows(plan: GGUFPlan) -> list[dict[str, Any]]:
    """A row a context length, doubling: llama.cpp's cache in bytes by cache type, and the types that fit the GPU."""
    plans = plan.compared()
    rows = []
    for context in context_lengths(plan.spec.max_positions):
        each = {name: other.with_context(context) for name, other in plans.items()}
        fits = None if plan.total_bytes is None else [name for name, other in each.items() if other.fits]
        sizes = {name: other.cache_bytes for name, other in each.items()}
        rows.append({"context": context, "cache_bytes": sizes, "fits": fits})
    return rows


def _lines(plan: GGUFPlan, lang: str) -> list[str]:
    weights = plan.weights
    kinds = ", ".join(f"{name} {format_bytes(size)}" for name, size in weights.by_type.items())
    values = {"size": exact_bytes(weights.in_files), "parameters": weights.num_parameters, "kinds": kinds}
    lines = [_say("weights", lang, **values)]
    windows = sorted({layer.window for layer in plan.spec.layers if layer.window is not None})
    lines.append(_say("cells", lang, n_ctx=plan.n_ctx, cells=plan.cells))
    for layer in (next(each for each in plan.spec.layers if each.window == window) for window in windows):
        cells = plan.layer_cells(layer)
        lines.append(_say("cells_window", lang, window=layer.window, chunk=plan.chunk, cells=cells))
    values = {"batch": plan.batch, "context": plan.context, "kv_dtype": plan.spec.kv_dtype}
    lines.append(_say("cache", lang, size=exact_bytes(plan.cache_bytes), **values))
    others = {name: other for name, other in plan.compared().items() if other is not plan}
    sizes = ", ".join(f"{name} {format_bytes(other.cache_bytes)}" for name, other in others.items())
    return [*lines, _say("cache_others", lang, sizes=sizes)] if others else lines


def _fit_lines(plan: GGUFPlan, lang: str) -> list[str]:
    lines = []
    if plan.fits:
        longest = plan.max_context()
        capped = "_capped" if longest == plan.spec.max_positions else ""
        lines.append(_say(f"fits{capped}", lang, batch=plan.batch, longest=longest))
    else:
        longest, layers = plan.max_context(), len(plan.spec.layers)
        values = {
            "short": format_bytes(-plan.left_bytes),
            "fitting": plan.gpu_layers,
            "all": layers + plan.weights.num_predicting + 1,
        }
        lines.append(_say("short", lang, **values))
        lines.append(
            _say("short_longest" if longest else "short_weights", lang, batch=plan.batch, longest=longest)
        )
    return [*lines, escape_controls(plan.command())]


def _notes(plan: GGUFPlan, lang: str) -> list[str]:
    said = []
    weights = plan.weights
    if weights.host:
        said.append(_say("note_host", lang, size=format_bytes(weights.host)))
    if weights.not_loaded:
        said.append(_say("note_predicting", lang, size=format_bytes(weights.not_loaded)))
    if plan.batch > 1 and plan.unified:
        divided = plan.divided().cache_bytes
        said.append(_say("note_divided", lang, size=exact_bytes(divided)))
    said.append(_say("note_flash", lang))
    if plan.total_bytes is not None:
        values = {
            "context": format_bytes(plan.cuda_context_bytes),
            "workspace": format_bytes(plan.workspace_bytes),
        }
        said.append(_say("note_assumed", lang, **values))
    if plan.model.missing_bytes:
        said.append(_say("note_missing", lang, size=format_bytes(plan.model.missing_bytes)))
    return ["- " + sentence for sentence in said]


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"gguf.{key}", lang, **values)
