"""The tables of ``minikv plan``. Every number comes from the budget; GiB stand beside exact bytes."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from minikv.cli.terminal import can_print, make_console
from minikv.i18n import text
from minikv.plan.budget import MemoryBudget
from minikv.plan.report import budget_title
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.tables import context_rows, sharing_rows
from minikv.shown import Shown
from minikv.units import exact_bytes, gib

BAR_WIDTHS = (24, 16, 8, 0)  # characters of a bar for the whole GPU: the first that fits the terminal


def show_budget(budget: MemoryBudget, lang: str) -> None:
    """Print ``budget.text(lang)``, with bars as wide as the terminal allows."""
    show_report(budget.shown(lang))


def show_report(shown: Shown) -> None:
    """Print a report with shares as bars as wide as the terminal allows; any other as its text."""
    console = make_console()
    if not shown.shares:
        title, *rest = shown.text().splitlines()
        console.print(title, style="bold", soft_wrap=True)
        print("\n".join(rest))
        return
    console.print(shown.title, style="bold")
    _print_parts(console, shown)
    for lines, style in ((shown.lines, None), (shown.notes, "dim")):
        console.print()
        for line in lines:
            console.print(line, style=style, soft_wrap=True)


def _print_parts(console: Console, shown: Shown) -> None:
    """Print the parts with the widest bars that fit; on a narrow terminal without bars, then with broken labels."""
    letter = "█" if can_print("█", console) else "#"
    for bar_width in BAR_WIDTHS:
        table = _parts_table(shown, bar_width, letter)
        if _size(console, table).maximum <= console.width:
            break
    print_whole(console, table, _size(console, table).minimum)


def _parts_table(shown: Shown, bar_width: int, letter: str) -> Table:
    name, size, exact = shown.head
    table = Table(box=None, padding=(0, 1), show_edge=False)
    table.add_column(name)
    table.add_column(size, justify="right", no_wrap=True)
    table.add_column(exact, justify="right", style="dim", no_wrap=True)
    if bar_width:
        table.add_column("")
    for row, share in zip(shown.rows, shown.shares, strict=True):
        bar = letter * max(0, round(share * bar_width))
        whole = row is shown.rows[-1]
        table.add_row(*row, *([bar] if bar_width else []), style="bold" if whole else None)
    return table


def show_spec(spec: CacheSpec, load: Mapping[str, int], lang: str) -> None:
    """Print ``spec.text(lang)``, then the bytes of the ``load``: "context", "batch" and "cache_bytes"; {}: none."""
    show_report(spec.shown(lang))
    console = make_console()
    if load:
        values = {**load, "size": exact_bytes(load["cache_bytes"])}
        console.print(_say("plan_load", lang, **values), style="bold", soft_wrap=True)
    console.print(_say("plan_no_gpu", lang), style="dim", soft_wrap=True)


def show_table(budget: MemoryBudget, lang: str, *, as_json: bool) -> None:
    """Context lengths against blocks, GiB, sequences and the decode floor; then the pool shared by 1, 8 and 32."""
    rows, shares = context_rows(budget), sharing_rows(budget)
    if as_json:
        print(json.dumps({"contexts": rows, "sharing": shares}, indent=2))
        return
    console = make_console()
    console.print(budget_title(budget, lang), style="bold")
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
    print_whole(console, table)
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
    """The models and GPUs that can be given by name, and which of transformers' decoders run."""
    from minikv.plan import CacheSpec, find_gpu, find_model, gpu_names, model_names
    from minikv.plan.decoders import decoder_outcomes

    gpus = [find_gpu(name) for name in gpu_names()]
    models = [find_model(name) for name in model_names()]
    specs = {
        model.name: CacheSpec.from_config(model.name, encoder_tokens=None, layout="hf") for model in models
    }
    if as_json:
        listed = {
            "models": [
                {
                    "name": m.name,
                    "model_type": specs[m.name].model_type,
                    "token_bytes": specs[m.name].slope(0),
                    "complete": m.complete,
                }
                for m in models
            ],
            "decoders": [asdict(each) | {"reason": each.reason(lang)} for each in decoder_outcomes()],
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
    table.add_column("model_type", no_wrap=True)
    table.add_column(_say("list_token", lang), justify="right", no_wrap=True)
    table.add_column(_say("list_positions", lang), justify="right", no_wrap=True)
    for model in models:
        spec = specs[model.name]
        positions = f"{spec.max_positions:,}" if spec.max_positions else "-"
        table.add_row(model.name, spec.model_type, f"{spec.slope(0):,}", positions)
    print_whole(console, table)
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
    print_whole(console, table)
    _show_decoders(console, lang)


def _show_decoders(console: Console, lang: str) -> None:
    """A paragraph for each outcome: what it means, and the decoders by name, of refused ones behind their reasons."""
    from minikv.plan.decoders import OUTCOMES, decoder_outcomes

    for outcome in OUTCOMES:
        mine = [each for each in decoder_outcomes() if each.outcome == outcome]
        key = f"plan.models_{outcome.replace(' ', '_')}"
        console.print(f"\n{text(key, lang)} ({len(mine)}): {text(f'{key}_means', lang)}", style="bold")
        by_reason: dict[str, list[str]] = {}
        for each in mine:
            by_reason.setdefault(each.reason(lang), []).append(each.model_type)
        for reason, names in by_reason.items():
            listed = ", ".join(names)
            console.print(f"  {reason}: {listed}" if reason else f"  {listed}", markup=False, highlight=False)


def _size(console: Console, table: Table) -> Measurement:
    """The width of a table: its least, with lines broken between words, and its most, without a broken line."""
    return Measurement.get(console, console.options.update(width=10_000), table)


def print_whole(console: Console, table: Table, least: int | None = None) -> None:
    """Print a table that must not become narrower than ``least`` (None: than its longest lines), and lose digits."""
    console.width = max(console.width, least or _size(console, table).maximum)
    console.print(table)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cli.{key}", lang, **values)
