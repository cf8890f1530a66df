"""minikv's eviction beside kvpress: recall on the same documents at the same budgets, and what a prefill takes more.

    make bench-kvpress [ARGS=...]          builds .venv-kvpress first (2 GB)
    python -m benchmarks.kvpress_peer [--quick] [--json FILE] [--kvpress PYTHON]

The same folder of weights (tiny-gqa) in float32, the same documents, which no policy was chosen on: a context is read
and compressed, the question not yet seen; then the rest is given in one forward, right answers included, and every
answer is judged by the token that is likeliest before it. As many tokens stay on both sides, chosen a head. kvpress
protects no token that its press does not name, so ours keeps the sinks of that press and one recent token.

Where a formula reads keys and values alone, both also get the same: those of the press, and the places that the two
keep of them are compared, no token protected but the sinks of the press.

A press of our formula is compared with it: what differs is the recent token, LagKV's newest partitions, and Leverage's
keys, which kvpress takes before their rotation. A press without one is compared with ours by name: "echo", and
"echo-layers", which gives layers budgets of their own. The presses with Ada in their name and KVzip give heads budgets
of their own; kvpress masks tokens there, its cache does not shrink. The seconds are CPU time of one thread, in
prefills: with the policy over without, each side with its own transformers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.engine_cases import SMALL, random_model
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, publish
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.echo import Echo, EchoLayers
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.from_keys import CUR, LagKV, Leverage
from minikv.eviction.policies.literature import TOVA, KeyDiff, Knorm, Random, SnapKV, StreamingLLM
from minikv.eviction.policies.policy import Needs, Policy, View
from minikv.eviction.policies.select import rank
from minikv.eviction.study.curves import Setting, evicting_with
from minikv.eviction.study.suite import Score, answer, scored
from minikv.models import load
from tools.environments import Environment
from tools.kvpress import FOLDER

TIE = 1e-5  # of a score: the two sides add up products in another order
LOWER = 5.0  # points that recall may lie below a press of the same formula
MORE = 1.2  # prefills that one with a policy may take
SEED = 1_000
THREADS = 1


@dataclass(frozen=True)
class Press:
    """A press of kvpress, and the policy of the same formula, where there is one, with the ``sinks`` of the press.

    ``differs``: its formula is ours but for what the module says.
    """

    name: str
    press: dict[str, Any]
    policy: Policy | None = None
    sinks: int = 0
    differs: bool = False

    @property
    def chooses(self) -> bool:
        """Whether both choose by keys, values and places alone."""
        policy = self.policy
        return policy is not None and not policy.needs & Needs.ATTENTION and not isinstance(policy, Random)


def around(press: str, inner: str = "KeyDiffPress") -> dict[str, Any]:
    return {"press": press, "around": {"press": inner}}


PRESSES = (
    Press("Knorm", {"press": "KnormPress"}, Knorm()),
    Press("KeyDiff", {"press": "KeyDiffPress"}, KeyDiff()),
    Press("random", {"press": "RandomPress"}, Random()),
    Press("StreamingLLM", {"press": "StreamingLLMPress"}, StreamingLLM(), 4),
    Press(
        "SnapKV",
        {"press": "SnapKVPress", "options": {"window_size": 4, "kernel_size": 3}},
        SnapKV(queries=4, kernel=3),
    ),
    Press("TOVA", {"press": "TOVAPress"}, TOVA()),
    Press("Leverage", {"press": "LeverageScorePress"}, Leverage(), differs=True),
    Press("LagKV", {"press": "LagKVPress", "options": {"lag_size": 16}}, LagKV(16), 4, True),
    Press("CUR", {"press": "CURPress", "options": {"use_local_approximation": False}}, CUR(), 4),
    Press("ExpectedAttention", {"press": "ExpectedAttentionPress"}, ExpectedAttention(), 4),
    Press("CriticalKV(KeyDiff)", around("CriticalKVPress")),
    Press("AdaKV(KeyDiff)", around("AdaKVPress")),
    Press("CriticalAdaKV(KeyDiff)", around("CriticalAdaKVPress")),
    Press("Compactor", {"press": "CompactorPress"}),
    Press("KVzip", {"press": "KVzipPress"}),
)
OURS = {"echo": Echo(), "echo-layers": EchoLayers()}


@dataclass(frozen=True)
class Scale:
    """``documents`` of the setting, the shares of them that stay; ``tokens`` and ``rounds`` of a timed prefill."""

    documents: int = 48
    kept: tuple[float, ...] = (0.25, 0.10)
    tokens: int = 2048
    rounds: int = 3
    presses: tuple[Press, ...] = PRESSES


QUICK = Scale(4, (0.10,), 512, 1)


def rows(python: Path, scale: Scale) -> Iterator[Row]:
    """The recall at each share kept, then the prefills."""
    model, tokenizer = load("tiny-gqa", device="cpu", dtype=torch.float32)
    timed = random_model(SMALL, torch.device("cpu"), torch.float32, scale.tokens)
    for kept in scale.kept:
        setting = Setting(kept=kept)
        with tempfile.TemporaryDirectory(prefix="minikv-kvpress.") as scratch:
            cases = setting.cases(scale.documents, SEED)
            tokenizer.save_pretrained(Path(scratch) / "tiny")  # KVzip asks for its own sentence
            job = answer_job(model, cases, setting, scale.presses, Path(scratch))
            last = kept == scale.kept[-1]
            job["prefills"] = prefill_job(timed, scale if last else replace(scale, rounds=0), Path(scratch))
            found = ask(python, job, Path(scratch))
            theirs = scores(found["answers"], job["answers"]["presses"], cases)
            equal = [*choice_rows(setting, found["answers"], job["answers"]["presses"], scale.presses)]
        yield from equal
        yield from recall_rows(model, setting, cases, theirs, found, scale.presses)
    yield from prefill_rows(timed, found["prefills"], scale)


def answer_job(
    model: Any, cases: Sequence[Any], setting: Setting, presses: Sequence[Press], scratch: Path
) -> dict[str, Any]:
    folder = scratch / "tiny"
    model.save_pretrained(folder)
    asked = [
        press.press
        | {"kept": setting.capacity, "file": str(scratch / f"{number}.npy")}
        | ({"choices": str(scratch / f"{number}.npz")} if press.chooses else {})
        for number, press in enumerate(presses)
    ]
    tokens = [case.tokens.tolist() for case in cases]
    answers = {"folder": str(folder), "context": cases[0].context, "tokens": tokens, "presses": asked}
    return {"threads": THREADS, "answers": answers}


def prefill_job(model: Any, scale: Scale, scratch: Path) -> dict[str, Any]:
    folder = scratch / "timed"
    model.save_pretrained(folder)
    tokens = prompt(scale)[0].tolist()
    presses = [press.press for press in scale.presses]
    kept = scale.tokens // 10
    return {"folder": str(folder), "tokens": tokens, "kept": kept, "presses": presses, "rounds": scale.rounds}


def prompt(scale: Scale) -> torch.Tensor:
    """[1, tokens] int64."""
    return torch.randint(SMALL.vocabulary, (1, scale.tokens), generator=torch.Generator().manual_seed(SEED))


def ask(python: Path, job: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """What the driver says. Raises ``CalledProcessError`` where it ends too early."""
    path = scratch / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    variables = Environment.variables() | {
        "PYTHONPATH": str(Path(__file__).parent),
        "OMP_NUM_THREADS": str(job["threads"]),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [str(python), "-c", "from kvpress_driver import main; main()", str(path)]
    told = subprocess.run(command, cwd=scratch, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def scores(
    found: list[dict[str, Any]], asked: list[dict[str, Any]], cases: Sequence[Any]
) -> list[Score | None]:
    """The score of each press; None where it cannot be used."""
    return [
        None if "why" in told else sum(scored(torch.from_numpy(np.load(press["file"])), cases), Score(0, 0))
        for told, press in zip(found, asked, strict=True)
    ]


def choice_rows(
    setting: Setting, found: list[dict[str, Any]], asked: list[dict[str, Any]], presses: Sequence[Press]
) -> Iterator[Row]:
    """The share of the places that the press keeps, and that our formula keeps of the same keys and values.

    Where scores are equal but for rounding, as the lengths of a word's keys are, either place is as good.
    """
    for told, job, press in zip(found, asked, presses, strict=True):
        if "why" in told or press.policy is None or not press.chooses:
            continue
        with np.load(job["choices"]) as kept:
            keys, values, theirs = (torch.from_numpy(kept[name]) for name in ("keys", "values", "kept"))
        valid = torch.ones(len(keys), keys.shape[2], dtype=torch.bool)
        places = torch.arange(keys.shape[2]).expand(keys.shape[:3])
        score = press.policy.score(View(keys, values, torch.zeros(keys.shape[:3]), None, places, valid))
        ranked = rank(score, places, n_sink=press.sinks, n_recent=0, scope="head")
        least = ranked.topk(theirs.shape[2]).values[..., -1:]
        same = (ranked.gather(-1, theirs) >= least - TIE * least.abs()).float().mean().item()
        claim = f"tiny-gqa, {100 * setting.kept:g} % kept: {press.name}, places kept of the same K and V"
        goal = "told: other formulas" if press.differs else "all"
        yield Row(claim, 100 * same, 100.0, f"kvpress, {press.name}", "%", goal, press.differs or same == 1)


def recall_rows(
    model: Any,
    setting: Setting,
    cases: Sequence[Any],
    theirs: Sequence[Score | None],
    found: dict[str, Any],
    presses: Sequence[Press],
) -> Iterator[Row]:
    """Formula beside formula; then ours by name, on no sink and one recent token, beside each press without one."""

    @cache
    def recall(policy: Policy, sinks: int) -> Score:
        sizes = Budget(sinks, setting.capacity - sinks - 1, 1)
        return answer(model, cases, evicting=evicting_with(policy, sizes, scope="head"))

    def row(name: str, policy: Policy, sinks: int, press: Press, peer: Score, told: dict[str, Any]) -> Row:
        mine = recall(policy, sinks)
        said = {
            "our perplexity": mine.perplexity,
            "its perplexity": peer.perplexity,
            "its 95 % interval": [round(100 * bound, 1) for bound in peer.interval],
            "entries in its cache": told["entries"],
        }
        tell(said)
        goal, holds = "more", mine.share > peer.share
        if press.policy is not None:
            goal, holds = f"at most {LOWER:g} points lower", mine.share >= peer.share - LOWER / 100
        claim = f"tiny-gqa, {100 * setting.kept:g} % kept: {name}"
        beside = f"kvpress, {press.name}"
        return Detailed(claim, 100 * mine.share, 100 * peer.share, beside, "%", goal, holds, said)

    for press, peer, told in zip(presses, theirs, found["answers"], strict=True):
        if peer is None:
            print(f"{press.name}: cannot be used ({told['why']})", flush=True)
        elif press.policy is not None:
            yield row(press.name, press.policy, press.sinks, press, peer, told)
        else:
            for name, policy in OURS.items():
                yield row(f"{name} beside {press.name}", policy, 0, press, peer, told)


@torch.no_grad()
def prefill_rows(model: Any, theirs: Sequence[float | None], scale: Scale) -> Iterator[Row]:
    """What a prefill takes with a policy, in prefills without one."""
    policies: dict[str, Policy | None] = {"": None}
    policies |= {press.name: press.policy for press in scale.presses if press.policy is not None} | {
        "echo": Echo()
    }
    tokens, best = prompt(scale), dict.fromkeys(policies, float("inf"))
    sizes = Budget(0, scale.tokens // 10 - 1, 1)
    for _ in range(scale.rounds):
        for name, policy in policies.items():
            evicting = nullcontext() if policy is None else evicting_with(policy, sizes, scope="head")(model)
            with evicting:
                start = time.thread_time()
                model.model(input_ids=tokens, use_cache=True)
                best[name] = min(best[name], time.thread_time() - start)
    plain, *others = theirs
    assert plain is not None
    taken = {press.name: seconds for press, seconds in zip(scale.presses, others, strict=True) if seconds}
    for name in [*taken, "echo"]:
        if name not in policies:
            continue
        ours, peer = best[name] / best[""], taken.get(name, taken.get("KVzip", plain)) / plain
        said = {"our seconds": best[name], "our plain seconds": best[""], "its plain seconds": plain}
        tell(said)
        claim = f"{SMALL.name}, a prefill of {scale.tokens:,}: {name}"
        beside = "kvpress" if name in taken else "kvpress, KVzip"
        yield Detailed(claim, ours, peer, beside, "prefills", f"at most {MORE:g}x", ours <= MORE, said)


def refusal(python: Path) -> str | None:
    """Why kvpress cannot be measured here; None where it can."""
    if not python.is_file():
        return f"kvpress is not there: `make bench-kvpress` builds {FOLDER.name} first."
    command = [str(python), "-c", "import kvpress"]
    told = subprocess.run(command, env=Environment.variables(), capture_output=True, text=True, check=False)
    last = told.stderr.strip().splitlines()[-1:]
    return f"{python} has no kvpress: {' '.join(last)}" if told.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 documents, a short prefill: a minute")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--kvpress", type=Path, help="the Python of another environment that has kvpress")
    options = parser.parse_args()
    python = options.kvpress or Environment(FOLDER).python
    if (why := refusal(python)) is not None:
        sys.exit(why)
    torch.set_num_threads(THREADS)
    disable_progress_bar()
    environment = Environment(python.parent.parent)
    version = environment.versions()["kvpress"]
    publish(rows(python, QUICK if options.quick else Scale()), options.json, versions={"kvpress": version})


if __name__ == "__main__":
    main()
