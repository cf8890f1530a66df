"""``minikv.nano`` beside ``minikv.LLM`` and transformers' continuous batching: tokens a second, and the lines of each.

    python -m benchmarks.nano [--quick] [--json FILE]

nano is written to be read. This says what that costs: the same requests on the same model with the same greedy answers,
in the same process, each way in turn. generate_batch runs with the fastest of three step sizes. "tight" gives both
engines of ours a third of the blocks, so that they preempt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import minikv
from benchmarks.engine_cases import SMALL, RaceLoad, mixed, random_model
from benchmarks.engine_compare import compare
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, arguments, publish
from minikv.course.your_engine.ways import ContinuousBatching, Nano, Ours

PEER_GOALS = {"minikv.LLM": 0.6, "generate_batch": 1.0}  # nano's tokens a second as a share of the peer's
SEATS, STEP_TOKENS, BLOCK = 64, 512, 16


def fastest(model: Any, load: RaceLoad) -> ContinuousBatching:
    """The peer with the tokens a step that answer the first requests soonest."""
    trial = load.first(24)
    tried = [ContinuousBatching(tokens, 16, (load.longest + 16) * 64) for tokens in (64, 128, 256)]
    return min(tried, key=lambda setting: setting.run(model, trial).seconds)


def rows(quick: bool) -> Iterator[Row]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = random_model(SMALL, device, torch.float32)
    load = mixed(24 if quick else 128, 6 if quick else 12, 48 if quick else 128, SMALL.vocabulary)
    roomy = SEATS * -(-load.longest // BLOCK)
    for name, blocks in (("room for all", roomy), ("tight", roomy // 3)):
        peers = {"minikv.LLM": Ours(SEATS, blocks, STEP_TOKENS)}
        if blocks == roomy:
            peers["generate_batch"] = fastest(model, load)
        found = compare(
            model, load, {"nano": Nano(SEATS, blocks, STEP_TOKENS), **peers}, rounds=1 if quick else 3
        )
        preempted = found.watched["nano"].preemptions
        details = {"seconds": found.seconds, "ties": found.ties, "preemptions": preempted, "blocks": blocks}
        tell(details | {"threads": torch.get_num_threads()})
        for peer in peers:
            mine, theirs, goal = found.rate("nano"), found.rate(peer), PEER_GOALS[peer]
            claim = f"nano, {load.name}, {name}"
            words = f"at least {goal:g}x"
            yield Detailed(claim, mine, theirs, peer, "tokens/s", words, mine >= goal * theirs, details)
    yield from size_rows()


def size_rows() -> Iterator[Row]:
    """Lines of Python that a reader has to know."""
    package = Path(minikv.__file__).parent
    mine, theirs = (
        sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (package / room).rglob("*.py"))
        for room in ("nano", "engine")
    )
    yield Row("lines of the engine", mine, theirs, "minikv.engine", "lines", "at most 1,000", mine <= 1000)


if __name__ == "__main__":
    asked = arguments(__doc__.splitlines()[0])
    publish(rows(asked.quick), asked.json)
