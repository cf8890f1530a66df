"""``minikv simulate``: the figures of a fleet of GPUs under a trace, and the smallest fleet that is fast enough."""

import json
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minikv.cli.answers import INTERRUPTED
from minikv.cli.options import Json, Lang
from minikv.cli.simulate_options import ASK, CLOCK, FLEET, LOAD, option
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text

if TYPE_CHECKING:
    from minikv.cli.simulate_run import Setup
    from minikv.simulate import SweepRow, Target, Trace


def simulate(
    trace: Annotated[str | None, typer.Argument()] = None,
    limit: int | None = None,
    hash_block: int = 512,
    write: str | None = None,
    as_json: Json = False,
    lang: Lang = "en",
    hit_rate: Annotated[bool, option("ask", "--hit-rate")] = False,
    num_blocks: Annotated[int | None, ASK] = None,
    sweep: Annotated[list[str] | None, ASK] = None,
    jobs: Annotated[int, ASK] = 1,
    backend: Annotated[str, ASK] = "processes",
    scheduler: Annotated[str | None, ASK] = None,
    plot: Annotated[str | None, ASK] = None,
    fewest: Annotated[bool, option("ask", "--fewest")] = False,
    p99_ttft: Annotated[float, ASK] = 2.0,
    p99_tpot: Annotated[float | None, ASK] = None,
    model: Annotated[str | None, FLEET] = None,
    gpu: Annotated[str | None, FLEET] = None,
    tp: Annotated[int, FLEET] = 1,
    replicas: Annotated[int, FLEET] = 1,
    router: Annotated[str, FLEET] = "least-loaded",
    kv_dtype: Annotated[str | None, FLEET] = None,
    utilization: Annotated[float, FLEET] = 0.9,
    block_size: Annotated[int | None, FLEET] = None,
    host_kv: Annotated[str | None, FLEET] = None,
    max_num_seqs: Annotated[int, FLEET] = 256,
    max_batched_tokens: Annotated[int, FLEET] = 8192,
    weight_bytes: Annotated[str | None, FLEET] = None,
    compute_efficiency: Annotated[float | None, CLOCK] = None,
    bandwidth_efficiency: Annotated[float | None, CLOCK] = None,
    overhead_seconds: Annotated[float | None, CLOCK] = None,
    link_gb_s: Annotated[float | None, CLOCK] = None,
    host_gb_s: Annotated[float | None, CLOCK] = None,
    synthetic: Annotated[int | None, LOAD] = None,
    rate: Annotated[float, LOAD] = 1.0,
    burst: Annotated[float, LOAD] = 1.0,
    input_len: Annotated[float, LOAD] = 1000.0,
    output_len: Annotated[float, LOAD] = 200.0,
    spread: Annotated[float, LOAD] = 1.0,
    turns: Annotated[float, LOAD] = 1.0,
    think_seconds: Annotated[float, LOAD] = 60.0,
    system_len: Annotated[int, LOAD] = 0,
    system_prompts: Annotated[int, LOAD] = 1,
    seed: Annotated[int, LOAD] = 0,
) -> None:
    """Simulate a fleet under a trace: latencies, hit rates, and how many GPUs it takes. No GPU is needed."""
    from minikv.cli import simulate_run as run
    from minikv.cli.plot_file import check_place

    given = run.options_given(simulate, locals())
    lang = pick_language(lang)
    questions = {"--hit-rate": hit_rate, "--fewest": fewest, "--model": model, "--gpu": gpu}
    one = [name for name, asked in questions.items() if asked]
    if hit_rate and len(one) > 1:
        raise ArgumentError("simulate_questions", asked=", ".join(one))
    if num_blocks is not None and not hit_rate:
        raise ArgumentError("simulate_num_blocks")
    if plot is not None:
        if fewest or not sweep:
            raise ArgumentError("simulate_plot")
        check_place(plot)
    fleet = {
        "model": model, "gpu": gpu, "tp": tp, "replicas": replicas, "router": router, "kv_dtype": kv_dtype,
        "utilization": utilization, "block_size": 16 if block_size is None else block_size, "host_kv": host_kv,
        "max_num_seqs": max_num_seqs, "max_batched_tokens": max_batched_tokens, "weight_bytes": weight_bytes,
        "compute_efficiency": compute_efficiency, "bandwidth_efficiency": bandwidth_efficiency,
        "overhead_seconds": overhead_seconds, "link_gb_s": link_gb_s, "host_gb_s": host_gb_s,
    }  # fmt: skip
    values = run.parse_sweep(sweep or [], hit_rate=hit_rate, fewest=fewest)
    setup = None
    if fewest or model is not None or gpu is not None or (values and not hit_rate):
        setup = run.Setup(fleet, values)
    run.refuse_unused(given, values, has_fleet=setup is not None)
    where = {"jobs": jobs, "backend": backend, "scheduler": scheduler}
    if setup is not None:
        setup.check(where)
    load = {
        "rate": rate, "burst": burst, "prompt_tokens": input_len, "output_tokens": output_len, "spread": spread,
        "turns": turns, "think_seconds": think_seconds, "system_tokens": system_len,
        "system_prompts": system_prompts, "hash_block": hash_block, "seed": seed,
    }  # fmt: skip
    requests = run.find_trace(trace, hash_block if "hash_block" in given else None, synthetic, load, limit)
    try:
        if write is not None:
            _write(requests, write, lang)
        if hit_rate:
            _answer_hit_rate(requests, num_blocks, block_size, values.get("num_blocks"), plot, as_json, lang)
        elif setup is None:
            _describe(requests, as_json, lang)
        elif values:
            target = run.Target(p99_ttft, p99_tpot) if fewest else None
            _answer_sweep(requests, setup, where, target, plot, as_json, lang)
        elif fewest:
            _answer_fewest(requests, setup, p99_ttft, p99_tpot, as_json, lang)
        else:
            _answer_fleet(requests, setup, as_json, lang)
    except KeyboardInterrupt:
        print(text("cli.bench_stopped", lang), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _write(trace: "Trace", path: str, lang: str) -> None:
    from minikv.simulate import write_mooncake

    write_mooncake(trace, path)
    print(text("simulate.trace_written", lang, path=path, requests=len(trace)), file=sys.stderr)


def _describe(trace: "Trace", as_json: bool, lang: str) -> None:
    from minikv.cli import simulate_json, simulate_view
    from minikv.simulate import hit_rates

    known = any(request.hash_ids for request in trace.requests)
    shared = hit_rates(trace, [None])[0] if known else None
    if as_json:
        print(json.dumps(simulate_json.trace_dict(trace, shared), indent=2))
    else:
        simulate_view.show_trace(trace, shared, lang)


def _answer_hit_rate(
    trace: "Trace",
    num_blocks: int | None,
    block_size: int | None,
    swept: list[int] | None,
    plot: str | None,
    as_json: bool,
    lang: str,
) -> None:
    """Print hit rates, computed by the block pool for one size, and by stack distances for several."""
    from minikv.cli import simulate_plot, simulate_view
    from minikv.simulate import hit_rate, hit_rates

    if swept is None:
        rows = [(num_blocks, hit_rate(trace, num_blocks, block_size))]
    else:
        sizes = [*swept, None]
        rows = list(zip(sizes, hit_rates(trace, sizes, block_size), strict=True))
    if as_json and swept is None:
        print(json.dumps({"hit_rate": rows[0][1]}))
    elif as_json:
        print(json.dumps([{"num_blocks": blocks, "hit_rate": share} for blocks, share in rows], indent=2))
    else:
        simulate_view.show_hit_rates(rows, block_size or trace.hash_block, lang)
    if plot is not None:
        simulate_plot.write_hit_rates(rows, trace.name, plot, lang)


def _answer_fleet(trace: "Trace", setup: "Setup", as_json: bool, lang: str) -> None:
    from minikv.cli import simulate_json, simulate_run, simulate_view
    from minikv.simulate import simulate as simulate_fleet

    fleet = setup.make()
    with simulate_run.Watcher(len(trace), lang, quiet=as_json) as watcher:
        answers = simulate_fleet(trace, fleet, progress=watcher.update).answers()
    if as_json:
        assumed = simulate_view.assumption_lines(setup, fleet, lang)
        print(json.dumps(simulate_json.run_dict(trace, setup, fleet, answers, assumed), indent=2))
    else:
        simulate_view.show_fleet(trace, setup, fleet, answers, lang)


def _answer_sweep(
    trace: "Trace",
    setup: "Setup",
    where: "Mapping[str, Any]",
    target: "Target | None",
    plot: str | None,
    as_json: bool,
    lang: str,
) -> None:
    """Print a row a fleet; with a ``target`` the fewest replicas of each kind. After Ctrl+C the rows that are there."""
    from minikv.cli import simulate_json, simulate_plot, simulate_run, simulate_view

    def show(rows: "list[SweepRow]") -> None:
        if as_json:
            print(json.dumps([simulate_json.row_dict(row, lang) for row in rows], indent=2))
        else:
            simulate_view.show_sweep(trace, setup, rows, lang, target)

    done: list[SweepRow] = []
    try:
        rows = simulate_run.run_sweep(trace, setup, where, target, done.append, lang, quiet=as_json)
    except KeyboardInterrupt:
        if not done:
            raise
        show(done)
        count = math.prod(map(len, setup.values.values()))
        print(text("simulate.sweep_stopped", lang, done=len(done), count=count), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if target is None and all(row.refused is not None for row in rows):
        raise rows[0].refused  # type: ignore[misc]
    show(rows)
    if plot is not None:
        simulate_plot.write_sweep(rows, trace.name, plot, lang)


def _answer_fewest(
    trace: "Trace", setup: "Setup", p99_ttft: float, p99_tpot: float | None, as_json: bool, lang: str
) -> None:
    from minikv.cli import simulate_json, simulate_run, simulate_view
    from minikv.simulate import Target
    from minikv.simulate import fewest as find_fewest

    with simulate_run.Watcher(len(trace), lang, quiet=as_json) as watcher:
        target = Target(p99_ttft, p99_tpot)
        found = find_fewest(trace, setup.make, target, watch=watcher.begin, progress=watcher.update)
    if as_json:
        fleet = setup.make(replicas=found.replicas)
        assumed = simulate_view.assumption_lines(setup, fleet, lang)
        print(json.dumps(simulate_json.fewest_dict(setup, fleet, found, assumed), indent=2))
    else:
        simulate_view.show_fewest(trace, setup, found, lang)
