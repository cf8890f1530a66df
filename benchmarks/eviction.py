"""What eviction keeps and what it costs: recall over what stays, beside H2O and the full cache; steps; bytes.

    python -m benchmarks.eviction [--quick] [--json FILE] [--only SECTION ...]
    python -m benchmarks.eviction --model PATH --task niah --length 131072 [--kept 25 10] [--policies h2o keydiff ...]
    python -m benchmarks.eviction --model PATH --prompts FILE

Sections: "recall" and "tasks" evict once, after a prefill; "seen" after the question too; "decode" at every token;
"reset" forgets to forget; "steps" times a decode step and counts bytes; "throughput" fills the same bytes with more
sequences (``benchmarks.eviction_throughput`` alone); "published" shows others' figures. The best
policy of a row was chosen on other documents than those that the row is measured on. ``kept`` counts sinks and recent
window, and is the mean over the layers. Every score is a row of the JSON's details, with its 95 % interval (Wilson).

The second form asks any model that reads English, a path or a hub id, texts of the same kinds of task, the third one
prompts of your own: JSON lines of "prompt", or "context" and "question", with "answers" where they are known.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.engine_cases import MEDIUM, SMALL
from benchmarks.eviction_model import Read, read_prompts, text_rows
from benchmarks.eviction_published import published_details, published_lines
from benchmarks.eviction_reset import reset_rows
from benchmarks.eviction_steps import Sizes, step_rows
from benchmarks.eviction_throughput import size_for, throughput_rows
from benchmarks.kernels_timing import Detailed
from benchmarks.report import Row, publish
from minikv.eviction.policies.echo import Echo
from minikv.eviction.policies.literature import (
    H2O,
    POLICIES,
    TOVA,
    KeyDiff,
    Knorm,
    Random,
    SnapKV,
    StreamingLLM,
)
from minikv.eviction.study.curves import FULL, STREAM, Fitted, Point, Setting, best, curve, lines
from minikv.eviction.study.tasks import TASKS
from minikv.eviction.study.text_suite import CAN, make_texts
from minikv.eviction.study.text_tasks import TEXT_TASKS
from minikv.models import load
from minikv.plan import CacheSpec

GPU_PARTS = {"steps": ("--only", "steps")}  # of python -m tools.gpu: what runs on a GPU where there is one
TINY = {"tiny-gqa": ("head", "layer"), "tiny-mla": ("layer",)}
"""The tiny models, and the scopes that they allow: MLA keeps one row a token for all heads."""

H2O_SUM, APART, ECHO_APART = "H2O sum", "KeyDiff, layers apart", "Echo, layers apart"
CHOSEN_BY: dict[str, Any] = {
    "random": Random(),
    "StreamingLLM": StreamingLLM(),
    H2O_SUM: H2O(),
    "H2O mean": H2O("mean"),
    "H2O max": H2O("max"),
    "H2O decay": H2O("decay"),
    "SnapKV": SnapKV(queries=4, kernel=3),
    "TOVA": TOVA(),
    "Knorm": Knorm(),
    "KeyDiff": KeyDiff(),
    APART: Fitted(KeyDiff(), by=Echo()),
    "Echo": Echo(),
    ECHO_APART: Fitted(Echo(), by=Echo()),
}
GOALS = {0.25: 0.95, 0.10: 0.50}  # of the questions, at 193 tokens
DECODE_GOAL = 0.60  # at 10 %
OVERHEAD = 1.10  # of a decode step, with 8 layers of 1024 and 4,096 tokens
CHOOSING, MEASURING = 0, 1_000  # seeds
FEW = {"single": 4, "aggregation": 2}  # times as many cases where a case has few questions


@dataclass(frozen=True)
class Scale:
    """``cases`` of each kind, half as many to decode; the lengths of recall and of the other tasks; shares kept.

    ``policies``: those of ``CHOSEN_BY`` that are compared. ``decoded``: the tasks that are read token by token, and
    their lengths.
    """

    cases: int
    lengths: tuple[int, ...]
    task_lengths: tuple[int, ...]
    kept: tuple[float, ...]
    policies: tuple[str, ...]
    decoded: tuple[tuple[str, int], ...]
    steps: Sizes


FULL_SCALE = Scale(
    96,
    (97, 193, 257),
    (97, 193),
    (0.5, 0.25, 0.1),
    tuple(CHOSEN_BY),
    ((STREAM, 257), ("multikey", 193)),
    Sizes(MEDIUM, 4096, 4, OVERHEAD),
)
QUICK = Scale(
    8,
    (193,),
    (97,),
    (0.1,),
    ("random", H2O_SUM, "SnapKV", "KeyDiff", ECHO_APART),
    ((STREAM, 257),),
    Sizes(SMALL, 512, 2),
)


@dataclass(frozen=True)
class Curve:
    """What is asked of a model: see ``minikv.eviction.study.curves.curve``.

    ``goals``: the least recall at a share kept.
    """

    name: str
    model: Any
    settings: tuple[Setting, ...]
    scope: str
    cases: int
    policies: tuple[str, ...]
    goals: Mapping[float, float] = field(default_factory=dict)

    def points(self, seed: int) -> list[Point]:
        """The points on the documents of ``seed``."""
        policies = {name: CHOSEN_BY[name] for name in self.policies}
        return list(curve(self.model, policies, self.settings, count=self.cases, seed=seed, scope=self.scope))


def recall_rows(scale: Scale) -> Iterator[Row]:
    """Many facts, the question unseen, one eviction after the prefill."""
    for name, scopes in TINY.items():
        model = load(name).model
        for scope in scopes:
            for length in scale.lengths:
                settings = tuple(Setting("multikey", length, kept) for kept in scale.kept)
                what = f"{name}, {scope}, {length}"
                goals = GOALS if length == 193 else {}
                yield from curve_rows(Curve(what, model, settings, scope, scale.cases, scale.policies, goals))


def task_rows(scale: Scale) -> Iterator[Row]:
    """Every kind of task: the full cache first, which says what the model can do at all."""
    for name, scopes in TINY.items():
        model = load(name).model
        for length, task in product(scale.task_lengths, TASKS):
            settings = tuple(Setting(task, length, kept) for kept in scale.kept)
            what = f"{name}, {task}, {length}"
            cases = scale.cases // 2 * FEW.get(task, 1)
            yield from curve_rows(Curve(what, model, settings, scopes[0], cases, scale.policies))


def seen_rows(scale: Scale) -> Iterator[Row]:
    """The question stands at the end of the context, and once more behind the eviction."""
    for name, scopes in TINY.items():
        model, settings = load(name).model, tuple(Setting(kept=kept, seen=True) for kept in scale.kept)
        what = f"{name}, question seen"
        yield from curve_rows(Curve(what, model, settings, scopes[0], 2 * scale.cases, scale.policies))


def decode_rows(scale: Scale) -> Iterator[Row]:
    """Texts that are read token by token with an eviction after each; "stream" comes back to its facts all the time."""
    for (name, scopes), (task, length) in product(TINY.items(), scale.decoded):
        settings = tuple(Setting(task, length, kept, decode=True) for kept in scale.kept)
        what, goals = f"{name}, decoding {task}, {length}", {0.10: DECODE_GOAL} if task == STREAM else {}
        cases = scale.cases // 2
        yield from curve_rows(
            Curve(what, load(name).model, settings, scopes[0], cases, scale.policies, goals)
        )


def curve_rows(asked: Curve) -> Iterator[Row]:
    """The curve as a table; then the full cache beside what can be done, and the best policy beside summed H2O."""
    chosen, points = asked.points(CHOOSING), asked.points(MEASURING)
    print(f"\n{asked.name}", *lines(points), sep="\n", flush=True)
    full = points[0]
    claim, goal = f"{asked.name}: full cache", f"at least {100 * CAN:g}: the task can be done"
    able = full.score.share >= CAN
    yield Detailed(claim, _percent(full), 100, "all", "%", goal, able, _details([full]))
    for setting in asked.settings:
        policy = best(point for point in chosen if point.setting == setting and point.policy != FULL).policy
        at = {point.policy: point for point in points if point.setting == setting}
        ours, least = at[policy], asked.goals.get(setting.kept)
        if least is None:
            goal, holds = "more than random", ours.score.interval[0] > at["random"].score.interval[1]
        else:
            goal, holds = f"at least {100 * least:g}", ours.score.share >= least
        claim = f"{asked.name}, {100 * setting.kept:g} % kept: {policy}"
        details = _details(list(at.values()))
        yield Detailed(claim, _percent(ours), _percent(at[H2O_SUM]), H2O_SUM, "%", goal, holds, details)


def _percent(point: Point) -> float:
    return 100 * point.score.share


def _details(points: list[Point]) -> dict[str, Any]:
    """Every policy's recall in % with its interval, questions and perplexity."""
    return {
        point.policy: {
            "recall": round(_percent(point), 2),
            "95 %": [round(100 * bound, 2) for bound in point.score.interval],
            "questions": point.score.asked,
            "perplexity": round(point.score.perplexity, 3),
        }
        for point in points
    }


def published_rows() -> Iterator[Row]:
    """Others' figures as a table and in the details of one row, which claims no more than that they are not ours."""
    print("", *published_lines(), sep="\n", flush=True)
    yield Detailed(
        "figures of others, see details",
        1,
        1,
        "as published",
        "table",
        "told, no goal",
        True,
        published_details(),
    )


def model_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Any model: texts of a task, or the prompts of a file."""
    model, tokenizer = load(options.model)
    kept = tuple(share / 100 for share in options.kept)
    scope = "layer" if is_latent(model) else "head"
    policies = {name: POLICIES[name]() for name in options.policies}
    read = Read(kept, policies, scope, options.new, options.seen)
    if options.prompts is not None:
        texts, what = read_prompts(options.prompts), options.prompts.name
    else:
        texts = make_texts(options.task, options.length, options.texts, tokenizer)
        what = f"{options.task} at {options.length}"
    yield from text_rows(str(options.model), what, model, tokenizer, texts, read)


def is_latent(model: Any) -> bool:
    """Whether the model caches one row a token for all heads (MLA)."""
    return any(layer.kind == "latent" for layer in CacheSpec.from_config(model.config).layers)


SECTIONS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "recall": recall_rows,
    "tasks": task_rows,
    "seen": seen_rows,
    "decode": decode_rows,
    "reset": lambda scale: reset_rows(TINY, scale.cases),
    "steps": lambda scale: step_rows(scale.steps),
    "throughput": lambda scale: throughput_rows(size_for(scale is QUICK)),
    "published": lambda scale: published_rows(),
}


def sections(options: argparse.Namespace) -> Iterator[Row]:
    scale = QUICK if options.quick else FULL_SCALE
    for name in options.only or SECTIONS:
        yield from SECTIONS[name](scale)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    real = parser.add_argument_group("any model that reads English")
    real.add_argument("--model", help="a folder or a hub id")
    real.add_argument("--task", choices=TEXT_TASKS, default="niah")
    real.add_argument("--length", type=int, default=4096, help="tokens of a text, question included")
    real.add_argument("--texts", type=int, default=10, help="how many")
    real.add_argument("--prompts", type=Path, help="JSON lines of your own instead of a task")
    real.add_argument(
        "--kept", type=float, nargs="+", default=[50, 25, 10], help="%% of the tokens that stay"
    )
    real.add_argument(
        "--policies", nargs="+", choices=POLICIES, default=["streaming", "h2o", "snapkv", "keydiff"]
    )
    real.add_argument("--new", type=int, default=48, help="tokens of an answer at most")
    what = "evict behind the question; a prompt without one is read to its last token but one"
    real.add_argument("--seen", action="store_true", help=what)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.model is None:
        publish(sections(options), options.json, on="cuda")
    else:
        publish(model_rows(options), options.json, on="cuda")


if __name__ == "__main__":
    main()
