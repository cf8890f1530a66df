"""Run: nano with a learner's parts answers the loads; each token is compared with that of ``generate()``."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minikv.course import guard
from minikv.course.check import run_check
from minikv.course.lessons import find_exercise
from minikv.course.your_engine.assemble import assembled, part_in_nano
from minikv.course.your_engine.beside import ATTENTION, KERNEL, Beside, raised, unnested
from minikv.course.your_engine.finding import Finding
from minikv.course.your_engine.load import Gpu, Load, generate, gpus, load_model
from minikv.course.your_engine.parts import PART_OF

MOST_STEPS = 600  # of a load; nano takes 184 at most
ON_PAPER = ("02.1", "02.6", "08.2")  # parts that count bytes: no token depends on them


@dataclass(frozen=True)
class Effect:
    """The effect of one wrong part in an otherwise right nano.

    kind: "token" (request ``request`` of the load ``load`` gets ``got`` as token ``place`` of its answer, where ``due``
    is right; None: no token), "raised" (``got``), "endless" (more than ``place`` steps) or "none" (no token differs).
    """

    kind: str
    load: str = ""
    request: int = 0
    place: int = 0
    due: int | None = None
    got: int | str | None = None


@dataclass
class Seen:
    """The record of one load answered."""

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    hits: int = 0
    chunks: int = 0
    preemptions: int = 0

    def add(self, other: "Seen") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Examined:
    """The result of ``examine``. By exercise's id: the calls of each part, its finding, and the effect of that.
    ``seen``: of the first load. ``differs``: a token differs although no part was found wrong.
    """

    calls: dict[str, int]
    findings: dict[str, Finding]
    effects: dict[str, Effect]
    printed: dict[str, str]
    seen: Seen
    total: Seen
    differs: Effect | None = None


@dataclass
class Ready:
    """A load, its model, the answers of ``generate()``, and the imagined GPUs."""

    load: Load
    model: Any
    due: list[list[int]]
    gpus: list[Gpu]
    sizes: tuple[int, int, int, int, int] = field(default=(0, 0, 0, 0, 0))  # the arguments of token_bytes


def prepare(load: Load) -> Ready:
    """Make all that a run of ``load`` needs, without any part of a learner's."""
    from minikv.nano import kv_cache, llm

    model = load_model(load.model)
    spec = llm.check_model(model)
    layer = spec.layers[0]
    sizes = (len(spec.layers), layer.kv_heads, layer.k_dim, layer.v_dim, model.dtype.itemsize)
    block = kv_cache.block_bytes(kv_cache.token_bytes(*sizes), load.block_size)
    return Ready(load, model, generate(model, load.requests), list(gpus(load.num_blocks, block)), sizes)


def examine(
    ready: list[Ready],
    theirs: Mapping[str, Any],
    tell: Callable[[str, int], None] = lambda task, call: None,
    lang: str = "en",
    folder: str | None = None,
) -> Examined:
    """Answer every load with the parts of ``theirs``, each call beside nano's own; then run each wrong part alone."""
    beside = Beside(theirs, tell, lang, folder)
    total, first, differs = Seen(), None, None
    for each in ready:
        with beside.running():
            beside.load, beside.step = each.load.model, 0
            blocks = _num_blocks(each)
            assert blocks == each.load.num_blocks, "what a part got wrong was put right"
            seen, effect = _answer(each, blocks, lambda step: setattr(beside, "step", step))
        assert min(seen.hits, seen.chunks, seen.preemptions) > 0, f"{each.load.model}: {seen}"
        total.add(seen)
        first = first or seen
        differs = differs or effect
    for task, callable_ in theirs.items():
        if not beside.calls[task] and (task != KERNEL or beside.runs_kernel):
            beside.findings[task] = Finding(task, "never")
        # Cases that nano on a CPU never meets: blocks freed twice, K and V stored in another dtype than theirs.
        elif task not in beside.findings and task not in (ATTENTION, KERNEL):
            tell(task, beside.calls[task])
            if not run_check(find_exercise(task), callable_).passed:
                beside.findings[task] = Finding(task, "exercise")
            tell("", 0)
    wrong = [task for task, found in beside.findings.items() if found.kind not in ("never", "exercise")]
    suspects = wrong or (list(theirs) if differs else [])
    effects = {task: effect_alone(ready, task, theirs[task], tell, lang) for task in suspects}
    if not wrong:
        effects = {task: effect for task, effect in effects.items() if effect.kind != "none"}
    assert first is not None
    return Examined(
        dict(beside.calls), beside.findings, effects, beside.printed, first, total, None if wrong else differs
    )


def effect_alone(
    ready: list[Ready], task: str, callable_: Any, tell: Callable[[str, int], None], lang: str
) -> Effect:
    """The effect of the one part in an otherwise unchanged nano, with nothing corrected."""
    if task in (*ON_PAPER, KERNEL):  # no token depends on them here: nano on a CPU does not use the kernel
        return Effect("none")
    for each in ready:
        with assembled({task: unnested(callable_, part_in_nano(PART_OF[task]))}):
            answer = functools.partial(
                _answer, each, each.load.num_blocks, lambda step: tell(task, step), first=True
            )
            outcome = guard.outcome(answer)
            tell("", 0)
        if isinstance(outcome, guard.Raised):
            if issubclass(outcome.kind, _EndlessError):
                return Effect("endless", each.load.model, place=MOST_STEPS)
            return Effect("raised", each.load.model, got=str(raised(outcome, lang)["got"]))
        effect = outcome.value[1]  # type: ignore[union-attr, index]
        if effect is not None:
            return effect
    return Effect("none")


class _EndlessError(Exception):
    """The engine has taken more steps than it can need."""


def _num_blocks(ready: Ready) -> int:
    """Blocks of the last imagined GPU, computed as nano does for a real one; the others are computed, too."""
    from minikv.nano import llm

    block = llm.block_bytes(llm.token_bytes(*ready.sizes), ready.load.block_size)
    fits = [
        llm.num_blocks_that_fit(gpu.total, gpu.utilization, gpu.used, gpu.peak, gpu.current, block)
        for gpu in ready.gpus
    ]
    return fits[-1]


def _answer(
    ready: Ready,
    num_blocks: int,
    on_step: Callable[[int], None] = lambda step: None,
    *,
    first: bool = False,
) -> tuple[Seen, Effect | None]:
    """Answer the load: its record, and the first token that differs, which with ``first`` ends the run."""
    from minikv.nano import LLM

    load, seen = ready.load, Seen(len(ready.load.requests))
    engine = LLM(
        ready.model,
        num_blocks=num_blocks,
        block_size=load.block_size,
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.max_num_batched_tokens,
    )
    seqs = [engine.add_request(request.prompt, request.params) for request in load.requests]
    wrong: Effect | None = None
    while engine.scheduler.waiting or engine.scheduler.running:
        seen.steps += 1
        if seen.steps > MOST_STEPS:
            raise _EndlessError
        on_step(seen.steps)
        step = engine.step()
        seen.chunks += sum(end < seq.num_prompt for seq, _, end in step)
        if wrong is None:
            wrong = next(_wrong_tokens(ready, [seq for seq, _, _ in step]), None)
            if wrong and first:
                break
    seen.tokens = sum(len(seq.answer) for seq in seqs)
    seen.hits = sum(seq.num_cached > 0 for seq in seqs)
    seen.preemptions = engine.scheduler.num_preemptions
    return seen, wrong


def _wrong_tokens(ready: Ready, seqs: list[Any]) -> Iterator[Effect]:
    for seq in seqs:
        due, got = ready.due[seq.id], seq.answer
        place = next((i for i, pair in enumerate(zip(due, got, strict=False)) if pair[0] != pair[1]), None)
        if place is None and (len(got) > len(due) or (seq.finish_reason and len(got) < len(due))):
            place = min(len(got), len(due))
        if place is not None:
            pair = [tokens[place] if place < len(tokens) else None for tokens in (due, got)]
            yield Effect("token", ready.load.model, seq.id, place, *pair)
