"""How ``minikv plan`` looks on a terminal. Every number comes from the budget; GiB stand beside exact bytes."""

import json
import math
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from minikv.cli.terminal import can_print, make_console
from minikv.i18n import text
from minikv.plan import pool
from minikv.plan.budget import MemoryBudget
from minikv.plan.tables import context_rows, sharing_rows
from minikv.units import exact_bytes, format_bytes, gib

BAR_WIDTHS = (24, 16, 8, 0)  # characters of a bar for the whole GPU: the first that fits the terminal
LONGER_THAN_ANY_WINDOW = 2**40  # tokens


def show_budget(budget: MemoryBudget, lang: str) -> None:
    """The table of where every GiB goes, the figures below it, both forms of the sum, and what is assumed."""
    console = make_console()
    console.print(_title(budget, lang), style="bold")
    _print_parts(console, budget, lang)
    console.print()
    for line in figures(budget, lang):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_say("paper_form", lang, **_paper(budget)), style="dim", soft_wrap=True)
    console.print(_say("measured_form", lang, **_measured(budget)), style="dim", soft_wrap=True)
    for sentence in budget.assumptions(lang):
        console.print("- " + sentence, style="dim", soft_wrap=True)


def _print_parts(console: Console, budget: MemoryBudget, lang: str) -> None:
    """The parts with the widest bars that fit; on a narrow terminal without bars, then with broken labels."""
    letter = "█" if can_print("█", console) else "#"
    for bar_width in BAR_WIDTHS:
        table = _parts_table(budget, lang, bar_width, letter)
        if _size(console, table).maximum <= console.width:
            break
    _print_whole(console, table, _size(console, table).minimum)


def _parts_table(budget: MemoryBudget, lang: str, bar_width: int, letter: str) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False)
    table.add_column("")
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column(_say("column_bytes", lang), justify="right", style="dim", no_wrap=True)
    if bar_width:
        table.add_column("")
    for name, num_bytes in budget.parts().items():
        label = _say(f"part_{name}", lang, **_part_values(budget, lang))
        bar = letter * max(0, round(num_bytes / budget.total_bytes * bar_width))
        table.add_row(label, f"{gib(num_bytes):.2f}", f"{num_bytes:,}", *([bar] if bar_width else []))
    total = budget.total_bytes
    table.add_row(_say("part_total", lang), f"{gib(total):.2f}", f"{total:,}", style="bold")
    return table


def figures(budget: MemoryBudget, lang: str) -> list[str]:
    """The answers in sentences: a token's bytes, blocks, tokens, sequences, and whether the load fits."""
    spec = budget.spec
    most = budget.max_context()
    values = {
        "token": exact_bytes(spec.slope(0)),
        "state": exact_bytes(spec.constant_state_bytes),
        "later": exact_bytes(spec.slope(LONGER_THAN_ANY_WINDOW)),
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
    lines = [_say("figure_token" if spec.window is None else "figure_token_window", lang, **values)]
    if spec.constant_state_bytes:
        lines.append(_say("figure_state", lang, **values))
    # What slides or recurs is set aside before blocks are counted, so the count is for that many sequences.
    beside = spec.constant_state_bytes or len(pool.counted_kinds(spec)) < len(pool.block_kinds(spec))
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


def show_table(budget: MemoryBudget, lang: str, *, as_json: bool) -> None:
    """Context lengths against blocks, GiB, sequences and the decode floor; then the pool shared by 1, 8 and 32."""
    rows, shares = context_rows(budget), sharing_rows(budget)
    if as_json:
        print(json.dumps({"contexts": rows, "sharing": shares}, indent=2))
        return
    console = make_console()
    console.print(_title(budget, lang), style="bold")
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("context", "blocks", "gib", "sequences", "floor_one", "floor_all"):
        table.add_column(_say(f"table_{name}", lang), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['context']:,}" + (" *" if row["capped"] else ""),
            f"{row['blocks']:,}",
            f"{gib(row['sequence_bytes']):.3f}",
            f"{row['sequences']:,}",
            _milliseconds(row["floor_one_s"]),
            _milliseconds(row["floor_all_s"]),
        )
    _print_whole(console, table, _size(console, table).maximum)
    if any(row["capped"] for row in rows):
        console.print("* " + _say("table_capped", lang, most=budget.spec.max_positions), soft_wrap=True)
    console.print()
    for share in shares:
        unlimited = "_any" if share["memory_tokens"] is None else ""
        key = f"share{unlimited}" + ("_capped" if share["capped"] else "")
        console.print(_say(key, lang, most=budget.spec.max_positions, **share), soft_wrap=True)
    console.print(
        _say("table_floor" if rows[0]["floor_one_s"] else "table_no_floor", lang), style="dim", soft_wrap=True
    )


def show_catalogue(lang: str, *, as_json: bool) -> None:
    """The models and GPUs that can be given by name."""
    from minikv.plan import CacheSpec, find_gpu, find_model, gpu_names, model_names

    gpus = [find_gpu(name) for name in gpu_names()]
    models = [find_model(name) for name in model_names()]
    specs = {
        model.name: CacheSpec.from_config(model.name, encoder_tokens=None, layout="hf") for model in models
    }
    if as_json:
        listed = {
            "models": [
                {"name": m.name, "token_bytes": specs[m.name].slope(0), "complete": m.complete}
                for m in models
            ],
            "gpus": [
                {"name": g.name, "total_bytes": g.total_bytes, "bandwidth_gb_s": g.bandwidth_gb_s}
                for g in gpus
            ],
        }
        print(json.dumps(listed, indent=2))
        return
    console = make_console()
    table = Table(box=None, padding=(0, 1), show_edge=False)
    table.add_column(_say("list_model", lang), no_wrap=True)
    table.add_column(_say("list_token", lang), justify="right", no_wrap=True)
    table.add_column(_say("list_positions", lang), justify="right", no_wrap=True)
    for model in models:
        spec = specs[model.name]
        positions = f"{spec.max_positions:,}" if spec.max_positions else "-"
        table.add_row(model.name, f"{spec.slope(0):,}", positions)
    _print_whole(console, table, _size(console, table).maximum)
    console.print()
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("gpu", "total", "bandwidth", "tflops"):
        table.add_column(
            _say(f"list_{name}", lang), justify="left" if name == "gpu" else "right", no_wrap=True
        )
    for gpu in gpus:
        total = f"{gib(gpu.total_bytes):.2f}" if gpu.total_bytes else _say("list_unknown", lang)
        flops = f"{gpu.bf16_tflops:,g}" if gpu.bf16_tflops else "-"
        table.add_row(gpu.name, total, f"{gpu.bandwidth_gb_s:,g}" if gpu.bandwidth_gb_s else "-", flops)
    _print_whole(console, table, _size(console, table).maximum)


def _size(console: Console, table: Table) -> Measurement:
    """The columns that a table takes: as few as its longest words allow, and without breaking a line."""
    return Measurement.get(console, console.options.update(width=10_000), table)


def _print_whole(console: Console, table: Table, least: int) -> None:
    """Print a table that must not become narrower than ``least``: a line that runs over loses no digit."""
    console.width = max(console.width, least)
    console.print(table)


def _title(budget: MemoryBudget, lang: str) -> str:
    card = budget.gpu.name if budget.gpu else format_bytes(budget.total_bytes)
    return _say(
        "title", lang, model=budget.spec.name, gpu=card, tp=budget.spec.tp, kv_dtype=budget.spec.kv_dtype
    )


def _part_values(budget: MemoryBudget, lang: str) -> dict[str, Any]:
    return {
        "source": _say(f"source_{budget.weight_source}", lang),
        "chunk": budget.chunk,
        "batch": budget.batch,
        "context": budget.context,
        "percent": round(100 * (1 - budget.utilization), 3),
    }


def _paper(budget: MemoryBudget) -> dict[str, Any]:
    return {
        "total": gib(budget.total_bytes),
        "utilization": budget.utilization,
        "weights": gib(budget.weight_bytes),
        "activations": gib(budget.activation_bytes),
        "workspace": gib(budget.workspace_bytes),
        "context": gib(budget.cuda_context_bytes),
        "pool": gib(budget.kv_bytes),
    }


def _measured(budget: MemoryBudget) -> dict[str, Any]:
    form = {name: gib(value) for name, value in budget.measured_form().items()}
    return form | {"total": gib(budget.total_bytes), "utilization": budget.utilization}


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cli.{key}", lang, **values)
