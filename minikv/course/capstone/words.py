"""A task, a run and a floor in words, with their numbers. Lesson 18."""

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from minikv.course.capstone.bound import Floor, new_prompt_tokens
from minikv.course.capstone.plan import MOST_DRAFTS
from minikv.i18n import pick_language, text
from minikv.shown import Shown
from minikv.units import exact_bytes

if TYPE_CHECKING:
    from minikv.course.capstone.run import Run
    from minikv.course.capstone.task import Task


def explain_task(task: "Task", lang: str) -> str:
    """The requests, the budget, the bar and the clock: a line each."""
    lang = pick_language(lang)
    return "\n".join([*_task_lines(task, lang), *_assumptions(task, lang)])


def show_task(task: "Task", lang: str) -> Shown:
    """The same lines, what stands before the colon of each as the name of a row."""
    lang = pick_language(lang)
    parts = (line.partition(text("diagrams.colon", lang)) for line in _task_lines(task, lang))
    (title, _, load), *rest = parts
    rows = [(_say("task_rows_load", lang), load), *((name, said) for name, _, said in rest)]
    return Shown(title, rows=rows, notes=_assumptions(task, lang))


def _task_lines(task: "Task", lang: str) -> list[str]:
    requests, spec = task.requests, task.spec()
    prompts = [len(request.tokens) for request in requests]
    outputs = [request.max_tokens for request in requests]
    groups = Counter(request.group for request in requests)
    # Given prompts have no groups: each is a group of its own.
    shared = sum(count > 1 for count in groups.values())
    arrivals = [request.arrival_s for request in requests]
    return [
        _say(
            "task_load" if shared else "task_load_apart",
            lang,
            name=task.title,
            requests=len(requests),
            groups=len(groups),
            shared=shared,
            arrivals=len(set(arrivals)),
            first=arrivals[0],
            last=arrivals[-1],
        ),
        _say(
            "task_prompts",
            lang,
            least=min(prompts),
            most=max(prompts),
            total=sum(prompts),
            new=new_prompt_tokens(requests),
        ),
        _say(
            "task_outputs",
            lang,
            least=min(outputs),
            most=max(outputs),
            total=sum(outputs),
            single=outputs.count(1),
        ),
        _say(
            "task_budget",
            lang,
            budget=exact_bytes(task.kv_bytes),
            tokens=spec.max_tokens(task.kv_bytes),
            dtype=spec.kv_dtype,
            token_bytes=spec.bytes_for(1),
            longest=task.max_model_len,
        ),
        _say("task_bar", lang, bar=task.quality, asked=task.asked)
        if task.asked
        else _say("task_nothing_asked", lang),
        _say("task_clock", lang),
        _machine(task, lang),
    ]


def explain_run(run: "Run", lang: str) -> str:
    """The score first, then quality, memory, work and time: a line each."""
    lang = pick_language(lang)
    metrics = run.metrics
    quality = {"right": run.right, "asked": run.asked, "quality": run.quality, "bar": run.bar}
    if run.passed:
        lines = [_say("run_score", lang, score=run.score, floor=run.floor_seconds, seconds=run.seconds)]
        lines += [_say("run_quality", lang, **quality)] if run.asked else []
    else:
        lines = [_say("run_missed", lang, seconds=run.seconds, **quality)]
    memory = {"held": exact_bytes(run.held_bytes), "budget": exact_bytes(run.kv_bytes)}
    lines.append(
        _say("run_memory", lang, blocks=run.num_blocks, block_size=run.plan.block_size, **memory),
    )
    lines.append(
        _say(
            "run_work",
            lang,
            steps=run.steps,
            tokens=run.computed_tokens,
            hit_rate=run.hit_rate,
            preemptions=run.preemptions,
            lost=metrics.lost_tokens,
            evicted=run.evicted_tokens,
        )
    )
    if run.plan.prompt_lookup:
        counts = {"drafted": metrics.drafted_tokens, "accepted": metrics.accepted_tokens}
        lines.append(_say("run_lookup", lang, **counts))
    if run.plan.cpu_kv_bytes is not None:
        lines.append(_say("run_swaps", lang, swaps=metrics.swaps))
    lines.append(_say("run_where", lang, **run.where))
    lines.append(_say("run_waits", lang, mean=sum(run.ttft) / len(run.ttft), worst=max(run.ttft)))
    return "\n".join(lines)


def explain_floor(floor: Floor, lang: str) -> str:
    """The bound, then its terms: a line each."""
    lang = pick_language(lang)
    rest = floor.seconds - floor.since
    return "\n".join(
        [
            _say(
                "floor_sum",
                lang,
                seconds=floor.seconds,
                since=floor.since,
                requests=floor.requests,
                rest=rest,
            ),
            _say(
                "floor_tokens",
                lang,
                tokens=floor.tokens,
                prompt=floor.prompt_tokens,
                decoded=floor.tokens - floor.prompt_tokens,
                rows=floor.rows,
                compute=floor.compute,
            ),
            _say(
                "floor_steps",
                lang,
                steps=floor.steps,
                drafts=MOST_DRAFTS,
                bandwidth=floor.bandwidth,
                overhead=floor.overhead,
            ),
            _say("floor_rule", lang),
        ]
    )


def _machine(task: "Task", lang: str) -> str:
    key, values = task.machine
    roof = {
        "roof": task.roof.name,
        "bandwidth": task.roof.bandwidth_gb_s,
        "tflops": task.roof.tflops,
        "name": task.name,
    }
    return _say(key, lang, **roof, **values)


def _assumptions(task: "Task", lang: str) -> list[str]:
    """A sentence for each assumption, without that of a link between GPUs: there is one GPU."""
    said = zip(fields(task.assumptions), task.assumptions.explain(lang), strict=True)
    return [sentence for field, sentence in said if field.name != "link_gb_s"]


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"capstone.{key}", lang, **values)
