"""The tables of ``minikv simulate``: the answers, their limits, and their assumptions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from minikv.cli.simulate_run import ASSUMED, Setup, spelled
from minikv.cli.terminal import make_console
from minikv.i18n import text
from minikv.plan import CacheSpec
from minikv.simulate import Answers, Fewest, Fleet, SweepRow, Target, Trace
from minikv.simulate.figures import limit_lines, long, run_table, short, spell_target
from minikv.simulate.floor import ttft_floor


def show_trace(trace: Trace, shared: float | None, lang: str) -> None:
    """Print the trace's figures and the next step; ``shared``: the hit rate without limit, None if unknown."""
    console = make_console()
    for line in (*trace_lines(trace, shared, lang), _say("trace_next", lang)):
        console.print(line, soft_wrap=True)


def trace_lines(trace: Trace, shared: float | None, lang: str) -> list[str]:
    count = len(trace)
    if trace.duration:
        rate = (count - 1) / trace.duration
        title = _say(
            "trace_title",
            lang,
            name=trace.name,
            requests=count,
            duration=long(trace.duration, lang),
            rate=rate,
        )
    else:
        title = _say("trace_at_once", lang, name=trace.name, requests=count)
    lengths = _say(
        "trace_lengths",
        lang,
        prompt=trace.prompt_tokens / count,
        longest=max(request.prompt_tokens for request in trace.requests),
        output=trace.output_tokens / count,
    )
    sharing = (
        _say("trace_unknown_sharing", lang) if shared is None else _say("trace_shared", lang, share=shared)
    )
    return [title, lengths, sharing]


def show_hit_rates(rows: Sequence[tuple[int | None, float]], block_size: int, lang: str) -> None:
    """Print a sentence for each number of blocks."""
    console = make_console()
    for blocks, share in rows:
        if blocks is None:
            line = _say("hit_rate_unlimited", lang, share=share, block_size=block_size)
        else:
            tokens = blocks * block_size
            line = _say("hit_rate", lang, share=share, blocks=blocks, block_size=block_size, tokens=tokens)
        console.print(line, soft_wrap=True)


def show_fleet(trace: Trace, setup: Setup, fleet: Fleet, answers: Answers, lang: str) -> None:
    """Print one run: a row a figure, then its limit and its assumptions."""
    console = make_console()
    console.print(_title(trace, setup, fleet, lang), style="bold", soft_wrap=True)
    table = Table(box=None, padding=(0, 1), show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for row in answers.shown(lang).rows:
        table.add_row(*row)
    _print_whole(console, table)
    console.print()
    floor = float(np.percentile(ttft_floor(trace, fleet), 99))
    for line in (*limit_lines(answers, lang), _say("limits_floor", lang, floor=short(floor))):
        console.print(line, soft_wrap=True)
    _print_assumptions(console, setup, fleet, lang)


def show_fewest(trace: Trace, setup: Setup, found: Fewest, lang: str) -> None:
    """Print the answer, the fleets tried, why one replica less does not suffice, and the assumptions."""
    fleet, console = setup.make(replicas=found.replicas), make_console()
    console.print(_title(trace, setup, fleet, lang), style="bold", soft_wrap=True)
    shown = found.shown(lang)
    for line in (shown.title, *shown.lines):
        console.print(line, soft_wrap=True)
    console.print()
    _print_rows(console, shown.head, shown.rows)
    console.print()
    before = found.one_less
    why = found.answers if before is None else before
    console.print(_say("fewest_why", lang, gpus=why.gpus), soft_wrap=True)
    floor = float(np.percentile(ttft_floor(trace, fleet), 99))
    for line in (*limit_lines(why, lang), _say("limits_floor", lang, floor=short(floor))):
        console.print(line, soft_wrap=True)
    _print_assumptions(console, setup, fleet, lang)


def show_sweep(
    trace: Trace, setup: Setup, rows: Sequence[SweepRow], lang: str, target: Target | None = None
) -> None:
    """Print a row a fleet, then the impossible ones with the reason. ``target``: each is the smallest that meets it."""
    console = make_console()
    for line in trace_lines(trace, None, lang)[:2]:
        console.print(line, soft_wrap=True)
    told = {
        name: value for name, value in setup.options.items() if value is not None and name not in setup.values
    }
    console.print(
        spelled({name: value for name, value in told.items() if name not in ASSUMED}), soft_wrap=True
    )
    if target is not None:
        console.print(_say("fewest_each", lang, target=spell_target(target, lang)), soft_wrap=True)
    runs = [(row.settings, row.answers) for row in rows if row.answers is not None]
    if runs:
        _print_rows(console, *run_table(runs, lang), settings=len(runs[0][0]))
    for row in rows:
        if row.refused is not None:
            reason = row.refused.text(lang)
            console.print(
                _say("refused", lang, settings=spelled(row.settings), reason=reason), soft_wrap=True
            )
    possible = next((row for row in rows if row.answers is not None), None)
    if possible is not None:
        fleet = setup.make(**possible.settings)
        _print_assumptions(console, setup, fleet, lang, swept=tuple(setup.values))


def _print_rows(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], settings: int = 1
) -> None:
    """Print a line a run; the first columns are its ``settings``."""
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for number, name in enumerate(head):
        style = "bold" if number < settings else None
        table.add_column(name, justify="right", no_wrap=True, style=style)
    for row in rows:
        table.add_row(*row)
    _print_whole(console, table)


def _print_whole(console: Console, table: Table) -> None:
    """Print a table whole: a line may run over the edge of the terminal, but loses no digit."""
    console.width = max(
        console.width, console.measure(table, options=console.options.update(width=10_000)).maximum
    )
    console.print(table)


def assumption_lines(setup: Setup, fleet: Fleet, lang: str, swept: Sequence[str] = ()) -> list[str]:
    """All assumptions of the figures; the ``swept`` settings stand in the table instead."""
    lines = [
        line
        for line, name in zip(
            fleet.step_time.assumptions.explain(lang), vars_of(fleet.step_time.assumptions), strict=True
        )
        if name not in swept
    ]
    if "utilization" not in swept:
        lines.append(_say("assumed_memory", lang, utilization=setup.options["utilization"]))
    if not {"max_num_seqs", "max_batched_tokens"} & set(swept):
        lines.append(_say("assumed_seats", lang, seqs=fleet.max_num_seqs, tokens=fleet.max_batched_tokens))
    if fleet.tp > 1 and "link_gb_s" not in swept and setup.options["link_gb_s"] is None:
        lines.append(_say("assumed_link", lang))
    return [*lines, *(_say(f"assumed_{name}", lang) for name in ("bits", "outputs", "unsaid"))]


def vars_of(assumptions: Any) -> Mapping[str, float]:
    return {name: getattr(assumptions, name) for name in assumptions.__dataclass_fields__}


def _print_assumptions(
    console: Console, setup: Setup, fleet: Fleet, lang: str, swept: Sequence[str] = ()
) -> None:
    console.print()
    console.print(_say("assumed", lang), style="dim", soft_wrap=True)
    for line in assumption_lines(setup, fleet, lang, swept):
        console.print("- " + line, style="dim", soft_wrap=True)


def _title(trace: Trace, setup: Setup, fleet: Fleet, lang: str) -> str:
    given = setup.options
    spec = CacheSpec.from_config(given["model"], tp=fleet.tp, kv_dtype=given["kv_dtype"])
    return _say(
        "fleet_title",
        lang,
        trace=trace.name,
        replicas=fleet.replicas,
        model=spec.name,
        tp=fleet.tp,
        gpu=fleet.step_time.roof.name,
        gpus=fleet.gpus,
        router=given["router"],
        kv_dtype=spec.kv_dtype,
        block_size=fleet.block_size,
    )


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"simulate.{key}", lang, **values)
