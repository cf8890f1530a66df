"""``minikv plan FILE.gguf``: what llama.cpp allocates for the file, read from its header."""

import json
from dataclasses import asdict
from typing import Any

from rich.table import Table

from minikv.cli import plan_view
from minikv.cli.plan import spec_dict
from minikv.cli.terminal import make_console
from minikv.i18n import escape_controls, text
from minikv.plan.gguf.memory import GGUFPlan
from minikv.plan.gguf.report import type_rows
from minikv.units import gib


def show_gguf(plan: GGUFPlan, lang: str, *, explain: bool, table: bool, as_json: bool) -> None:
    """Print the layers in words (``explain``), cache types against contexts (``table``), or the plan."""
    if explain:
        print(plan.spec.explain(lang))
    elif table:
        _show_types(plan, lang, as_json=as_json)
    elif as_json:
        print(json.dumps(as_dict(plan, lang), indent=2))
    else:
        plan_view.show_report(plan.shown(lang))
        if plan.total_bytes is None:
            make_console().print(text("cli.plan_no_gpu", lang), style="dim", soft_wrap=True)


def as_dict(plan: GGUFPlan, lang: str = "en") -> dict[str, Any]:
    """The plan as plain JSON values; sizes are integers of bytes."""
    weights = {name: value for name, value in asdict(plan.weights).items() if name != "blocks"}
    told = spec_dict(plan.spec, lang) | {
        "weights": weights | {"on_gpu": plan.weights.on_gpu, "in_files": plan.weights.in_files},
        "context": plan.context,
        "batch": plan.batch,
        "chunk": plan.chunk,
        "n_ctx": plan.n_ctx,
        "unified": plan.unified,
        "cache_bytes": plan.cache_bytes,
        "cache_bytes_by_type": {name: other.cache_bytes for name, other in plan.compared().items()},
        "missing_bytes": plan.model.missing_bytes,
        "command": plan.command(),
    }
    if plan.total_bytes is None:
        return told
    return told | {
        "gpu": plan.gpu.name if plan.gpu else None,
        "total_bytes": plan.total_bytes,
        "parts": plan.parts(),
        "fits": plan.fits,
        "max_context": plan.max_context(),
        "gpu_layers": plan.gpu_layers,
    }


def _show_types(plan: GGUFPlan, lang: str, *, as_json: bool) -> None:
    rows = type_rows(plan)
    if as_json:
        print(json.dumps({"contexts": rows}, indent=2))
        return

    def say(key: str, **values: Any) -> str:
        return text(f"gguf.table_{key}", lang, **values)

    console = make_console()
    console.print(escape_controls(plan.spec.name), style="bold", soft_wrap=True)
    table = Table(box=None, padding=(0, 1), show_edge=False)
    heads = [say("type", kv_dtype=name) for name in rows[0]["cache_bytes"]]
    for head in (say("context"), *heads):
        table.add_column(head, justify="right", no_wrap=True)
    if plan.total_bytes is not None:
        table.add_column(say("fits"))
    for row in rows:
        cells = [f"{row['context']:,}", *(f"{gib(size):.3f}" for size in row["cache_bytes"].values())]
        if row["fits"] is not None:
            cells.append(", ".join(row["fits"]) or say("none"))
        table.add_row(*cells)
    plan_view.print_whole(console, table)
    console.print(say("note", batch=plan.batch), style="dim", soft_wrap=True)
