"""The race's process: five ways answer the same requests in turn, and vLLM where asked. ``race.py`` starts it.

``python -m minikv.course.your_engine.measure FOLDER``: reads ``job.json`` there, writes ``answer.json``.
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from minikv.course.your_engine.assemble import assembled
from minikv.course.your_engine.driven import VLLM_BLOCK, Driven, vllm_command, vllm_variables
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.load_parts import load_parts
from minikv.course.your_engine.ways import (
    Answers,
    ContinuousBatching,
    Elsewhere,
    Nano,
    Ours,
    RaceLoad,
    RaceRequest,
    Run,
    StaticBatches,
    agree,
)
from minikv.errors import MiniKVError, first_line
from minikv.models import load
from minikv.models.sources import find_folder
from minikv.plan import CacheSpec

MODEL = "tiny-gqa"
SEATS, STEP_TOKENS, BLOCK = 16, 128, 16  # sequences at once, tokens a step, tokens a block
ROUNDS, BUDGET_S = 5, 20.0  # no round begins after so many seconds of rounds
MAY_BE_ABSENT = ("generate_batch", "yours", "vllm")


@dataclass(frozen=True)
class Yours:
    """nano with a learner's ``parts``: exercise's id -> the fields of a ``KeptPart``. The first run loads them."""

    nano: Nano
    parts: Mapping[str, Mapping[str, str]]

    @cached_property
    def theirs(self) -> dict[str, Any]:
        return load_parts({task: KeptPart(**part) for task, part in self.parts.items()})

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        with assembled(self.theirs):
            return self.nano.run(model, load, watch)


def requests(count: int, vocabulary: int, least: int = 8, most: int = 96) -> RaceLoad:
    """Random prompts and answers of ``least`` to ``most`` tokens, most of them short and a few long."""
    random = Random(0)

    def size() -> int:
        return round(least * (most / least) ** min(1.0, random.expovariate(3)))

    def one() -> RaceRequest:
        return RaceRequest(tuple(random.randrange(1, vocabulary) for _ in range(size())), size())

    return RaceLoad("race", tuple(one() for _ in range(count)))


def ways(asked: RaceLoad, parts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """All five ways, with room for ``SEATS`` sequences of the longest length."""
    blocks = SEATS * -(-asked.longest // BLOCK)
    nano = Nano(SEATS, blocks, STEP_TOKENS)
    return {
        "static": StaticBatches(SEATS),
        "generate_batch": ContinuousBatching(STEP_TOKENS, BLOCK, blocks * BLOCK),
        "nano": nano,
        "yours": Yours(nano, parts),
        "minikv": Ours(SEATS, blocks, STEP_TOKENS),
    }


def vllm(python: str, model: Any, asked: RaceLoad, folder: Path) -> Driven:
    """vLLM's process, with the limits of the others. ``folder`` takes the files that it leaves."""
    token = CacheSpec.from_config(model.config, kv_dtype="fp32").bytes_for(1)
    setup = {
        "folder": str(find_folder(MODEL)),
        "eager": True,
        "seats": SEATS,
        "step_tokens": STEP_TOKENS,
        "longest": asked.longest,
        # In whole blocks, of which a sequence may leave one empty but for a token; one block is never used.
        "kv_bytes": (SEATS * (asked.longest + VLLM_BLOCK) + VLLM_BLOCK) * token,
    }
    return Driven("vLLM", vllm_command(python), setup, vllm_variables(1, folder / "vllm"))


def measure(model: Any, asked: RaceLoad, running: dict[str, Any], rounds: int = ROUNDS) -> dict[str, Any]:
    """The figures of every way: median seconds, bytes of K and V at the fullest moment; or the reason for none.

    First each way answers once, watched, and its answers are compared with those of the first way. Then all answer in
    turn, another one first in each round. Raises ``MiniKVError`` where nano or ``minikv.LLM`` answers otherwise.
    """
    lanes: dict[str, dict[str, Any]] = {}
    answers: Answers | None = None
    ties = 0
    for name, way in running.items():
        try:
            run = way.run(model, asked, watch=True)
            ties += 0 if answers is None else agree(model, asked, answers, run.answers, f"generate(), {name}")
        except Exception as error:
            if name not in MAY_BE_ABSENT:
                raise
            lanes[name] = {"absent": reason(error)}
            continue
        answers = answers or run.answers
        lanes[name] = {"peak_kv_bytes": run.peak_kv_bytes, "times": []}
    there = [name for name in running if "times" in lanes[name]]
    done, began = 0, time.perf_counter()
    while done < rounds and (not done or time.perf_counter() - began < BUDGET_S):
        turn = done % len(there)
        for name in there[turn:] + there[:turn]:
            run = running[name].run(model, asked)
            assert answers is not None
            agree(model, asked, answers, run.answers, f"generate(), {name}")
            lanes[name]["times"].append(run.seconds)
        done += 1
    for name in there:
        lanes[name]["seconds"] = statistics.median(lanes[name].pop("times"))
    return {"lanes": lanes, "rounds": done, "ties": ties}


def reason(error: Exception) -> dict[str, Any]:
    """An error as plain data: a code of ``messages/errors.toml`` and its values."""
    if isinstance(error, MiniKVError) and all(
        isinstance(v, int | float | str) for v in error.values.values()
    ):
        return {"code": error.code, "values": error.values}
    return {"code": "race_raised", "values": {"kind": type(error).__name__, "message": first_line(error)}}


def main(folder: Path) -> None:
    """Read ``job.json`` of ``folder``; write ``answer.json``, after an error with its code and values."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    model: Any = load(MODEL).model
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    asked = requests(job["requests"], model.config.vocab_size)
    running = ways(asked, job["parts"])
    try:
        with ExitStack() as ends:
            if job["vllm"] is not None:
                running["vllm"] = Elsewhere(ends.enter_context(vllm(job["vllm"], model, asked, folder)))
            answer = measure(model, asked, running, job["rounds"])
    except MiniKVError as error:
        answer = reason(error)
    else:
        answer |= {"requests": len(asked.requests), "new_tokens": asked.new_tokens}
        answer |= {"yours": sorted(job["parts"]), "device": model.device.type}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
