"""What eviction costs a decode step, and what it holds: milliseconds beside none, bytes beside their bound."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.engine_cases import ModelShape, random_model
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row
from minikv.eviction.hf.layer import EvictingLayer
from minikv.eviction.policies.budget import Budget
from minikv.eviction.study.curves import evicting_with

ROUND = 16  # steps: one eviction at least, however seldom they are
RECENT = 64
MIB = 2**20
VARIANTS = (("streaming", 1), ("keydiff", 1), ("h2o", 1), ("h2o", 8), ("h2o", 16), ("keydiff", 16))


@dataclass(frozen=True)
class Sizes:
    """``resident`` tokens of one sequence stay in a model of ``shape``; ``rounds`` of steps are timed.

    ``most``: what a step may take with an eviction each, as a multiple of one without; None: there is no goal.
    """

    shape: ModelShape
    resident: int
    rounds: int
    most: float | None = None


class Decoding:
    """A model and a sequence in its cache: ``step`` decodes on. Greedy tokens, so what is timed is no chosen text.

    The sequence begins as ``tokens`` of random keys and values: a step takes as long as if a prompt had been computed.
    """

    def __init__(self, model: Any, cache: Any, tokens: int):
        self.model, self.cache = model, cache
        config = model.config
        shape = 1, config.num_key_value_heads, tokens, config.head_dim
        for layer in cache.layers:
            layer.update(*(torch.randn(shape, dtype=model.dtype, device=model.device) for _ in range(2)))
            if isinstance(layer, EvictingLayer):
                layer.evict()  # the end of its forward: nothing goes, since there is room for ``tokens``
        self.token = torch.ones(1, 1, dtype=torch.int64, device=model.device)

    def step(self) -> float:
        """Decode a token; the seconds that it took."""
        start = time.perf_counter()
        out = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.token = out.logits[:, -1:].argmax(-1)
        if self.token.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def watched(self) -> int:
        """The most bytes of K and V held after any step of a round."""
        held = 0
        for _ in range(ROUND):
            self.step()
            held = max(held, kv_storage_bytes(self.cache))
        return held


def kv_storage_bytes(cache: Any) -> int:
    """Bytes of the storage behind a transformers cache's keys and values: not of the views on it."""
    storages = (tensor.untyped_storage() for layer in cache.layers for tensor in (layer.keys, layer.values))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@torch.no_grad()
def step_rows(sizes: Sizes) -> Iterator[Row]:
    """A step with an eviction beside one without, for each policy; then H2O's rarer ones, and what each holds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    steps = ROUND * (2 + sizes.rounds)
    models = _alike(random_model(sizes.shape, device, dtype, sizes.resident + steps))
    endless = Budget(n_sink=4, budget=sizes.resident + steps, n_recent=RECENT)
    for policy, every in VARIANTS:
        budget = Budget(n_sink=4, budget=sizes.resident - 4 - RECENT, n_recent=RECENT, evict_every=every)
        with ExitStack() as stack:
            evicts = stack.enter_context(evicting_with(policy, budget)(models[0]))
            keeps = stack.enter_context(evicting_with("streaming", endless)(models[1]))
            caches = evicts.new_cache(), keeps.new_cache(), DynamicCache(config=models[2].config)
            pairs = zip(models, caches, strict=True)
            runs = [Decoding(model, cache, sizes.resident) for model, cache in pairs]
            times = _in_turn(runs, sizes.rounds)
            held = runs[0].watched()
        name = f"{sizes.shape.name}, {sizes.resident} stay, {policy} every {every}"
        details = {"ms of DynamicCache": times[2], "ms more": times[0] - times[1]}
        details |= {"peak tokens": budget.peak_resident}
        tell(details)
        goal, holds = "told, no goal", True
        if every == 1 and sizes.most is not None:
            goal, holds = f"at most {sizes.most:g}x", times[0] <= sizes.most * times[1]
        peer = "the same cache, nothing evicted"
        yield Detailed(f"{name}: a step", times[0], times[1], peer, "ms", goal, holds, details)
        # A forward has room for its own token too.
        bound = (budget.peak_resident + 1) * sizes.shape.token_bytes // 4 * dtype.itemsize
        peer, goal = "peak_resident + 1 tokens", "no more"
        yield Row(f"{name}: K and V", held / MIB, bound / MIB, peer, "MiB", goal, held <= bound)


def _alike(model: Any) -> list[Any]:
    """Three models with the same weights: an eviction that is installed in one of them is not in the others."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    return [model, copy.deepcopy(model, dict(shared)), copy.deepcopy(model, dict(shared))]


def _in_turn(runs: Sequence[Decoding], rounds: int) -> list[float]:
    """Milliseconds of a step of each, the mean over a round.

    They step in turn, and of the same step of all rounds the best counts: whatever else runs on the machine only adds.
    """
    times = [[[run.step() for run in runs] for _ in range(ROUND)] for _ in range(1 + rounds)]
    # Without the first, to warm up
    best = (map(min, zip(*same, strict=True)) for same in zip(*times[1:], strict=True))
    return [1e3 * sum(of) / ROUND for of in zip(*best, strict=True)]
