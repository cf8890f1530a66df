"""``minikv bench``: throughput, latencies and blocks of an LLM under a load of random tokens."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from minikv.cli import engine_options as options
from minikv.cli.answers import INTERRUPTED
from minikv.cli.options import Json, Lang, size
from minikv.i18n import pick_language, text
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.cli.bench_run import Result


def bench(
    model: str = "tiny-gqa",
    num_requests: int = 64,
    input_len: str = "32:128",
    output_len: str = "32:128",
    prefix_len: int = 0,
    rate: float = float("inf"),
    cache: str = "paged",
    block_size: int = 16,
    num_blocks: int | None = None,
    kv_bytes: str | None = None,
    kv_dtype: str | None = None,
    cpu_kv: str | None = None,
    prefix_dir: str | None = None,
    prompt_lookup: int = 0,
    saved_states: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_num_seqs: int = 64,
    max_batched_tokens: int = 2048,
    seed: int = 0,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Measure an LLM under a load of random tokens."""
    from minikv.cli.bench_load import Shape, span

    lang = pick_language(lang)
    shape = Shape(
        num_requests=num_requests,
        input_len=span("--input-len", input_len),
        output_len=span("--output-len", output_len),
        prefix_len=prefix_len,
        rate=rate,
        seed=seed,
    )
    engine = options.Engine(
        model=model,
        dtype=dtype,
        device=device,
        cache=cache,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_bytes=size("--kv-bytes", kv_bytes),
        kv_dtype=kv_dtype,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        seed=seed,
        cpu_kv_bytes=size("--cpu-kv", cpu_kv),
        prefix_dir=prefix_dir,
        prompt_lookup=prompt_lookup,
        saved_states=saved_states,
    )
    from minikv.cli.bench_run import run

    try:
        result = run(engine, shape)
    except KeyboardInterrupt:
        print(_say("stopped", lang), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        print(_text(result, lang))
        note = result.model.note(lang)
        if note is not None:
            print(note, file=sys.stderr)


def _text(result: "Result", lang: str) -> str:
    """The metrics as a table: name, figure, and what it means."""
    from minikv.shown import Shown

    found = result.metrics
    sizes = {"peak_kv": format_bytes(result.peak_kv_bytes), "kv": format_bytes(result.kv_bytes)}
    rows = [*found.shown(lang).rows]
    rows += [(_say(name, lang), value, _say(f"{name}_means", lang)) for name, value in sizes.items()]
    title = _say(
        "title",
        lang,
        model=result.model.name,
        device=result.device,
        requests=found.finished,
        prompt=result.prompt_tokens,
        generated=found.generated_tokens,
        seconds=found.seconds,
    )
    return Shown(title, rows=rows, right=(1,)).text()


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cli.bench_{key}", lang, **values)
