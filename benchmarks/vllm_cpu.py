"""minikv beside vLLM on this CPU: tokens a second, memory, seconds to the first token, our share of the floor.

    make bench-vllm [ARGS=...]          builds .venv-vllm first (3.5 GB)
    python -m benchmarks.vllm_cpu [--quick] [--json FILE] [--only SECTION ...] [--rounds N] [--threads N]
                                  [--vllm PYTHON]

The same folder of weights in float32, the same token ids, greedily. In each round every engine has a process of its
own, one after the other: it answers a part of each load, untimed, then the load; another engine begins the next round.
A figure is the best of the rounds. vLLM runs in one process, eager and compiled, with as many tokens of K and V as
minikv; loading and compiling are not in its tokens a second.

"small": 4 layers x 512. "large": 8 layers x 1024. "ideas": in both ``minikv.nano`` and transformers'
``generate_batch`` instead of vLLM, so that one sees what each idea buys. With ``--only`` the file keeps the other
sections' rows if they come from this machine and these versions. The floor of a load: the products of the weights with
every token that no engine can leave out, at the rate of the fastest product of matrices that torch computes here.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.engine_cases import MEDIUM, SMALL, ModelShape, mixed, shared_prefix, skewed
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, Step, publish
from benchmarks.vllm_cpu_runs import OURS, Found, Limits, measure, product_rate, products_of, vllm_version
from minikv.course.your_engine.driven import VLLM_FOLDER, vllm_python
from minikv.course.your_engine.ways import RaceLoad

EAGER, COMPILED = "vLLM eager", "vLLM compiled"
NANO, BATCHED = "nano", "generate_batch"
SECTIONS = {"small": (EAGER, COMPILED), "large": (EAGER, COMPILED), "ideas": (NANO, BATCHED)}
FASTER = {EAGER: 1.0, COMPILED: 1.0, NANO: 1.0, BATCHED: 1.3}
START_SHARE = 1 / 3
# Section: the model, requests of the first two loads, and their least and most tokens in and out.
FULL = {"small": (SMALL, 256, 12, 128), "large": (MEDIUM, 64, 12, 128)}
QUICK = {"small": (SMALL, 24, 6, 48)}
LIMITS = Limits(seats=64, step_tokens=512)


def loads(shape: ModelShape, count: int, least: int, most: int) -> list[RaceLoad]:
    """The three loads of a model; as in ``benchmarks.engine`` but for the number of requests."""
    shared = 9 * most // 8 // 16 * 16
    return [
        mixed(count, least, most, shape.vocabulary),
        skewed(count, least, most, shape.vocabulary),
        shared_prefix(2 * count, shared, shared // 9, least, shape.vocabulary),
    ]


def rows_of(shape: ModelShape, asked: list[RaceLoad], found: Found, flops: float) -> Iterator[Row]:
    """What the runs say; ``flops`` a second is the fastest product."""
    for load in asked:
        rates = {way: load.new_tokens / found.seconds[way][load.name] for way in found.seconds}
        floor = products_of(shape, load) / flops
        details = {
            "tokens/s": rates,
            "share of the floor": {way: floor / of[load.name] for way, of in found.seconds.items()},
            "floor, s": floor,
            "TFLOP": products_of(shape, load) / 1e12,
            "fastest product, GFLOP/s": flops / 1e9,
            "rounds": found.rounds,
            "threads": torch.get_num_threads(),
        }
        tell(details)
        for peer in list(rates)[1:]:
            goal = FASTER[peer]
            words = f"at least {goal:g}x faster" if goal > 1 else "at least as fast"
            claim, holds = f"{shape.name}: {load.name}", rates[OURS] >= goal * rates[peer]
            yield Detailed(claim, rates[OURS], rates[peer], peer, "tokens/s", words, holds, details)
    for peer in (way for way in (EAGER, COMPILED) if way in found.seconds):
        yield from beside_vllm(shape, found, peer)


def beside_vllm(shape: ModelShape, found: Found, peer: str) -> Iterator[Row]:
    """The answers, the memory and the start beside one mode of vLLM."""
    asked, differ = found.requests, found.differ[peer]
    details = {"differ": [vars(each) for each in differ]}
    tell(details)
    claim, words = f"{shape.name}: answers token for token the same", "the others part at a tie"
    held = all(each.is_tie for each in differ)
    yield Detailed(claim, asked - len(differ), asked, peer, "answers", words, held, details)
    mine, theirs = (found.peak_bytes[way] / 1e6 for way in (OURS, peer))
    yield Row(f"{shape.name}: peak memory of the process", mine, theirs, peer, "MB", "less", mine < theirs)
    mine, theirs = (found.first_token[way] for way in (OURS, peer))
    claim, held = f"{shape.name}: from process start to the first token", mine <= START_SHARE * theirs
    yield Row(claim, mine, theirs, peer, "s", "at most a third", held)


def rows(section: str, vllm: Path | None, *, quick: bool, rounds: int, threads: int) -> Iterator[Row]:
    cases = QUICK if quick else FULL
    flops = product_rate()
    for shape, *sizes in [cases[section]] if section in cases else cases.values():
        asked = loads(shape, *sizes)
        ways = [OURS, *SECTIONS[section]]
        found = measure(shape, asked, ways, LIMITS, vllm, rounds=rounds, threads=threads)
        flops = max(flops, product_rate())
        yield from rows_of(shape, asked, found, flops)


def refusal(vllm: Path | None, sections: list[str]) -> str | None:
    """Why vLLM cannot be measured here; None where it can."""
    if not set(sections) & {"small", "large"}:
        return None
    if vllm is None:
        return f"vLLM is not there: `make bench-vllm` builds {VLLM_FOLDER.name} first (--only ideas needs no vLLM)."
    if vllm_version(vllm) is None:
        return f"{vllm} has no vLLM: `make bench-vllm` builds an environment that has it."
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"vLLM's compiled mode needs a C++ compiler, and there is no {compiler}: install one, or name it in CXX."
    return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small load, one round: 2 minutes on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    parser.add_argument("--rounds", type=int, help="how often each is timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of all engines")
    parser.add_argument("--vllm", type=Path, help="the Python of another environment that has vLLM")
    return parser.parse_args()


def main() -> None:
    options = parse()
    sections, vllm = options.only or list(SECTIONS), options.vllm or vllm_python()
    if (why := refusal(vllm, sections)) is not None:
        sys.exit(why)
    torch.set_num_threads(options.threads)
    rounds = options.rounds or (1 if options.quick else 3)
    run = {"quick": options.quick, "rounds": rounds, "threads": options.threads}
    told = [Step(section, partial(rows, section, vllm, **run)) for section in sections]
    version = {} if vllm is None else {"vLLM": vllm_version(vllm) or ""}
    publish(told, options.json, versions=version, left_out=set(SECTIONS) - set(sections))


if __name__ == "__main__":
    main()
