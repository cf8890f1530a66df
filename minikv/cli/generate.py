"""``minikv generate``: answer prompts on a KV cache of your choice, and report the time and the bytes."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minikv.cli import engine_options as options
from minikv.cli.answers import INTERRUPTED, as_dict, check_answers, figures, print_answers, shown
from minikv.cli.files import EventFile, ReportFile
from minikv.cli.options import Json, Lang, size
from minikv.cli.prompts import all_prompts
from minikv.errors import ArgumentError
from minikv.i18n import escape_controls, pick_language, text

if TYPE_CHECKING:
    from minikv.engine import LLM, RequestOutput, SamplingParams
    from minikv.engine.profile import Profiler
    from minikv.models import Loaded


def generate(
    prompts: Annotated[list[str] | None, typer.Argument()] = None,
    prompts_file: str | None = None,
    model: str = "tiny-gqa",
    max_tokens: int = 32,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    min_tokens: int = 0,
    seed: int | None = None,
    stop: list[str] | None = None,
    n: Annotated[int, typer.Option("--n")] = 1,
    cache: str = "paged",
    block_size: int = 16,
    num_blocks: int | None = None,
    kv_bytes: str | None = None,
    kv_dtype: str | None = None,
    cpu_kv: str | None = None,
    prefix_dir: str | None = None,
    prompt_lookup: int = 0,
    saved_states: int | None = None,
    layers: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_num_seqs: int = 64,
    max_batched_tokens: int = 2048,
    events: str | None = None,
    profile: str | None = None,
    memory: Annotated[bool, typer.Option("--memory")] = False,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Let a model answer prompts, and see where time and bytes go. A single answer is printed while it is made.

    torchrun --nproc-per-node N -m minikv generate shards the model over N processes.
    """
    from minikv.engine import SamplingParams

    lang = pick_language(lang)
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
        tp=options.started()[1],
        cpu_kv_bytes=size("--cpu-kv", cpu_kv),
        prefix_dir=prefix_dir,
        prompt_lookup=prompt_lookup,
        saved_states=saved_states,
        layers=layers,
    )
    if profile is not None and engine.tp > 1:
        raise ArgumentError("parallel_profile", size=engine.tp)
    if engine.follows:
        engine.start(engine.load(), None)  # runs the steps of rank 0, then ends this process
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        n=n,
    )
    texts = all_prompts(prompts or [], prompts_file)
    live = len(texts) == n == 1 and not as_json
    with ExitStack() as stack:
        event_file = stack.enter_context(EventFile(events)) if events is not None else None
        profile_file = stack.enter_context(ReportFile(profile)) if profile is not None else None
        profiler = _profiler(device) if profile_file is not None else None
        loaded, llm = _start(engine, texts, event_file, profiler)
        stack.enter_context(llm)
        done, seconds, stopped = _answer(llm, texts, params, _show if live else None)
        reports: dict[str, Any] = {}
        if profiler is not None and not stopped:
            reports["profile"] = profiler.profile()
        if memory and not stopped:
            reports["memory"] = llm.memory_report()
        run = figures(done.values(), seconds)
        # The answers are printed before anything below can fail.
        if as_json:
            told = {"model": loaded.name, "outputs": [as_dict(each) for each in done.values()], "run": run}
            told |= {name: report.as_dict() for name, report in reports.items()}
            as_json_text = json.dumps(told, indent=2, ensure_ascii=False)
            print(escape_controls(as_json_text, keep="\n", as_json=True), flush=True)
        elif not live:
            print_answers(done)
        if stopped:
            print(_say("generate_stopped", lang), file=sys.stderr)
            raise typer.Exit(INTERRUPTED)
        check_answers(done.values())
        if profile_file is not None:
            told = {"model": loaded.name} | reports["profile"].as_dict()
            profile_file.write(json.dumps(told, indent=2) + "\n")
        # On a CPU the dtype of the weights matters only to the bytes of a report; on a GPU it changes the results.
        note = loaded.note(lang) if reports or llm.cache.device.type != "cpu" else None
    if as_json:
        return
    for report in reports.values():
        print(report.text(lang) + "\n", file=sys.stderr)
    if note is not None:
        print(note, file=sys.stderr)
    print(_say("generate_done", lang, **run), file=sys.stderr)


def _profiler(device: str) -> "Profiler":
    import torch

    from minikv.engine.profile import Profiler

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Profiler(device)


def _start(
    engine: options.Engine,
    texts: list[str],
    event_file: EventFile | None,
    profiler: "Profiler | None",
) -> "tuple[Loaded, LLM]":
    """Load and build. With a profiler in phases, and a warm-up between them that is as large as the first step."""
    if profiler is None:
        loaded = engine.load()
        return loaded, engine.start(loaded, event_file)
    from minikv.cache import warmup

    with profiler.phase("import"):
        engine.prepare()
    with profiler.phase("load"):
        loaded = engine.load()
    tokens = _first_step(loaded, texts, engine.max_batched_tokens)
    with profiler.phase("warmup", tokens=tokens):
        warmup(loaded.model, tokens)

    def emit(event: Any) -> None:
        profiler(event)
        if event_file is not None:
            event_file(event)

    with profiler.phase("allocate"):
        llm = engine.start(loaded, emit)
    return loaded, llm


def _first_step(loaded: "Loaded", texts: list[str], most: int) -> int:
    """The tokens of the first step, as far as they fit the model: adding longer prompts raises later."""
    from minikv.plan import CacheSpec

    if loaded.tokenizer is None:
        return 1
    tokens = sum(len(loaded.tokenizer(prompt)["input_ids"]) for prompt in texts)
    positions = CacheSpec.from_config(loaded.model.config).max_positions
    return max(1, min(tokens, most, positions or tokens))


def _answer(
    llm: "LLM", texts: list[str], params: "SamplingParams", show: Callable[[str], None] | None
) -> "tuple[dict[int, RequestOutput], float, bool]":
    """The finished outputs by the numbers of their prompts; their seconds; whether Ctrl+C ended the run.

    ``show`` gets each piece of text, and a line end at last.
    """
    from minikv.engine.serve.progress import Progress

    began = perf_counter()
    names = [llm.add_request(prompt, params, pieces=show is not None) for prompt in texts]
    done: dict[str | int, RequestOutput] = {}
    stopped = False
    try:
        with Progress(len(names), False if show is not None else None) as bar:
            while llm.has_work:
                out = llm.step()
                done |= {each.request: each for each in out.finished}
                for token in out.tokens:
                    if show is not None and token.text:
                        show(token.text)
                bar.update(len(done), len(out.tokens))
    except KeyboardInterrupt:
        stopped = True
    finally:
        if show is not None:
            show("\n")
    outputs = {number: done[name] for number, name in enumerate(names, 1) if name in done}
    return outputs, perf_counter() - began, stopped


def _show(piece: str) -> None:
    print(shown(piece), end="", flush=True)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cli.{key}", lang, **values)
