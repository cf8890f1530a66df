"""The engine beside what transformers offers: tokens a second, K and V held, prompt tokens saved, host overhead.

    python -m benchmarks.engine [--quick] [--json FILE] [--only SECTION ...] [--rounds N] [--threads N]

Peers, in the same process, on the same model, with the same greedy answers: ``generate()`` in static batches of 16, and
transformers' continuous batching (``generate_batch``'s manager) with the fastest of some settings, found on a part of
the load. The engine runs twice: with room for all its sequences, and ("less KV") with 9/10 of the K and V that the
more frugal peer held.

On a GPU the load is 256 requests of 100 to 1,024 tokens in and out, in bfloat16 on Qwen3-0.6B's shape. On a CPU it
is scaled down to 12 to 128 tokens, float32, on a Qwen3 of 4 layers x 512 (section "large": 8 layers x 1024, 64
requests); with ``--quick`` to 40 requests of 6 to 48 tokens. "skewed": lengths of which few are long. "prefix":
prompts that share 90% of their tokens. "host": what scheduling and the batch cost while 64 sequences decode.
"decode": a decode step beside its floor, the bytes that it has to read at the bandwidth that is measured.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_cases import (
    MEDIUM,
    QWEN3_06B,
    SMALL,
    ModelShape,
    mixed,
    random_model,
    shared_prefix,
    skewed,
)
from benchmarks.engine_compare import Compared, compare
from benchmarks.engine_decode import Decoding, decode_rows
from benchmarks.engine_host import host_rows
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, publish
from minikv.course.your_engine.ways import ContinuousBatching, Ours, RaceLoad, Run, StaticBatches

GPU_PARTS = {  # of python -m tools.gpu
    "decode": ("--only", "decode"),
    "host": ("--only", "host"),
    "mixed": ("--only", "mixed"),
    "skewed": ("--only", "skewed"),
    "prefix": ("--only", "prefix"),
}
SECTIONS = ("decode", "mixed", "skewed", "prefix", "large", "host")
OURS, FRUGAL = "minikv", "minikv, less KV"
STATIC, CONTINUOUS = "generate(), static batches of 16", "generate_batch"
FASTER, SAVED = {STATIC: 2.0, CONTINUOUS: 1.3}, 0.9
FASTER_ON_GPU = {STATIC: 5.0, CONTINUOUS: 3.0}  # of the mixed load, with room for all
POOL_SHARE = 0.9
MIB = 2**20


@dataclass(frozen=True)
class Scale:
    """How large everything is. ``seats`` and ``budget``: the sequences and the tokens of a step of ours.

    ``step_tokens`` and ``pages``: the peer's settings that are tried, on the first ``trial`` requests. ``steps``: how
    many the host's work is measured for.
    """

    shape: ModelShape
    count: int
    least: int
    most: int
    trial: int
    steps: int
    seats: int
    budget: int
    step_tokens: tuple[int, ...]
    pages: tuple[int, ...]
    decodes: tuple[Decoding, ...]


DECODES_ON_GPU = tuple(Decoding(batch, 1024, 50) for batch in (1, 32, 256))
DECODES = tuple(Decoding(batch, 256, 20) for batch in (1, 16, 64))
ON_GPU = Scale(QWEN3_06B, 256, 100, 1024, 64, 100, 256, 2048, (256, 1024, 4096), (64, 256), DECODES_ON_GPU)
ON_CPU = Scale(SMALL, 256, 12, 128, 48, 60, 64, 512, (32, 64, 128, 256), (16, 64), DECODES)
LARGE = Scale(MEDIUM, 64, 12, 128, 16, 60, 64, 512, (32, 64, 128), (16, 64), DECODES)
QUICK = Scale(SMALL, 24, 6, 48, 12, 20, 64, 256, (32, 64), (16,), (Decoding(1, 64, 10), Decoding(16, 64, 10)))


@dataclass(frozen=True)
class Bench:
    """A model and how often everything is measured."""

    model: Any
    scale: Scale
    rounds: int

    @property
    def shape(self) -> ModelShape:
        return self.scale.shape

    def rows(self, section: str) -> Iterator[Row]:
        scale, words = self.scale, self.shape.vocabulary
        sizes = scale.count, scale.least, scale.most
        if section in ("mixed", "large"):
            on_gpu = self.model.device.type == "cuda"
            yield from self.speed_rows(mixed(*sizes, words), FASTER_ON_GPU if on_gpu else FASTER)
        elif section == "skewed":
            yield from self.speed_rows(skewed(*sizes, words))
        elif section == "prefix":
            shared = 9 * scale.most // 8 // 16 * 16
            load = shared_prefix(2 * scale.count, shared, shared // 9, scale.least, words)
            yield from self.prefix_rows(load)
        elif section == "decode":
            yield from decode_rows(self.model, self.shape.name, words, scale.decodes)
        else:
            yield from host_rows(self.model, words, scale.steps)

    def speed_rows(self, load: RaceLoad, goals: dict[str, float] = FASTER) -> Iterator[Row]:
        """Tokens a second against both peers; the same in less K and V than either holds; and how much less that is."""
        tuned, tried = self.tune(load)
        peers = {STATIC: StaticBatches(), CONTINUOUS: tuned}
        first = {name: peer.run(self.model, load, watch=True) for name, peer in peers.items()}
        held = min(run.peak_kv_bytes or 0 for run in first.values())
        longest = -(-load.longest // 16)
        frugal = max(longest, int(POOL_SHARE * held) // self.block_bytes)
        pools = {OURS: self.scale.seats * longest, FRUGAL: frugal}
        ours = {name: Ours(self.scale.seats, blocks, self.scale.budget) for name, blocks in pools.items()}
        found = compare(self.model, load, {**ours, **peers}, self.rounds, first)
        details = self._details(found) | {"setting": tuned.name, "tried": tried}
        details |= {"seats": self.scale.seats, "budget": self.scale.budget, "blocks": pools}
        tell(details)
        claim = f"{self.shape.name}: {load.name}"
        for way in (OURS, FRUGAL):
            name = claim if way == OURS else f"{claim}, less KV"
            for peer, goal in (goals if way == OURS else FASTER).items():
                mine, theirs = found.rate(way), found.rate(peer)
                words, holds = f"at least {goal:g}x faster", mine >= goal * theirs
                yield Detailed(name, mine, theirs, peer, "tokens/s", words, holds, details)
        for peer in (STATIC, CONTINUOUS):
            mine, theirs = (_mib(found.watched[way]) for way in (FRUGAL, peer))
            name = f"{claim}, peak KV"
            yield Detailed(name, mine, theirs, peer, "MiB", "less", mine < theirs, details)

    def prefix_rows(self, load: RaceLoad) -> Iterator[Row]:
        """Prompt tokens that were not computed, of those that the first prompt had computed already; and the speed."""
        tuned, tried = self.tune(load)
        blocks = self.scale.seats * (-(-load.longest // 16) + 1)
        ways = {OURS: Ours(self.scale.seats, blocks, self.scale.budget), CONTINUOUS: tuned}
        found = compare(self.model, load, ways, self.rounds)
        possible = load.shared_tokens * (len(load.requests) - 1)
        saved = found.watched[OURS].cached_tokens
        details = self._details(found) | {"setting": tuned.name, "tried": tried}
        details |= {"of all prompt tokens": saved / load.prompt_tokens}
        tell(details)
        claim = f"{self.shape.name}: {load.name}"
        goal = f"at least {SAVED:g} of them"
        holds = saved >= SAVED * possible
        peer = "all that follow the first prompt"
        yield Detailed(claim + ", saved", saved, possible, peer, "tokens", goal, holds, details)
        rate, peer_rate = found.rate(OURS), found.rate(CONTINUOUS)
        goal, holds = f"at least {FASTER[CONTINUOUS]:g}x faster", rate >= FASTER[CONTINUOUS] * peer_rate
        yield Detailed(claim, rate, peer_rate, CONTINUOUS, "tokens/s", goal, holds, details)

    def tune(self, load: RaceLoad) -> tuple[ContinuousBatching, dict[str, float]]:
        """The peer's fastest setting on the first requests of ``load``, and the tokens a second of all."""
        trial, rates = load.first(self.scale.trial), {}
        for tokens in self.scale.step_tokens:
            for page in self.scale.pages:
                room = (load.longest + page) * min(tokens, len(load.requests))
                setting = ContinuousBatching(tokens, page, room)
                rates[setting] = trial.new_tokens / setting.run(self.model, trial).seconds
        return max(rates, key=rates.__getitem__), {each.name: round(rates[each], 1) for each in rates}

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of 16 tokens in the model's dtype."""
        return 16 * self.shape.token_bytes * self.model.dtype.itemsize // 4

    def _details(self, found: Compared) -> dict[str, Any]:
        ours = found.watched[OURS]
        return {
            "seconds": found.seconds,
            "ties": found.ties,
            "new tokens": found.load.new_tokens,
            "prompt tokens": found.load.prompt_tokens,
            "steps": ours.steps,
            "preemptions": {
                name: run.preemptions for name, run in found.watched.items() if name in (OURS, FRUGAL)
            },
            "peak KV MiB": {name: round(_mib(run), 2) for name, run in found.watched.items()},
            "rounds": self.rounds,
            "threads": torch.get_num_threads(),
        }


def _mib(run: Run) -> float:
    return float("nan") if run.peak_kv_bytes is None else run.peak_kv_bytes / MIB


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    parser.add_argument("--rounds", type=int, help="how often each is timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU, for all")
    return parser.parse_args()


def sections(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of the sections that are asked for; a model is made when its first section comes."""
    on_gpu = torch.cuda.is_available()
    device, dtype = (torch.device("cuda"), torch.bfloat16) if on_gpu else (torch.device("cpu"), torch.float32)
    usual = ON_GPU if on_gpu else QUICK if options.quick else ON_CPU
    rounds = options.rounds or (1 if options.quick else 3)
    left_out = {"large"} if on_gpu or options.quick else set()
    names = [name for name in SECTIONS if name in (options.only or SECTIONS) and name not in left_out]
    for scale, group in itertools.groupby(names, lambda name: LARGE if name == "large" else usual):
        bench = Bench(random_model(scale.shape, device, dtype), scale, rounds)
        for name in group:
            yield from bench.rows(name)


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    publish(sections(options), options.json, on="cuda")


if __name__ == "__main__":
    main()
