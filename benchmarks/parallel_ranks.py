"""What each rank of ``benchmarks.parallel`` does: decode through the engine, repeat it without the engine, and as
transformers itself would."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import distributed

from minikv import LLM, SamplingParams
from minikv.cache.sharded import local
from minikv.engine.core.runner import Runner
from minikv.engine.core.step import Step
from minikv.engine.ext.tensor_parallel import TensorParallelGroup


@dataclass(frozen=True)
class Decoding:
    """``batch`` sequences of ``prompt`` tokens, of which ``rounds`` times ``steps`` more are generated."""

    batch: int
    prompt: int
    steps: int
    rounds: int

    @property
    def new(self) -> int:
        """Tokens that a sequence generates: the prefill makes one, and nobody ends while steps are timed."""
        return self.steps * self.rounds + 2

    @property
    def blocks(self) -> int:
        return self.batch * (-(-(self.prompt + self.new) // 16) + 1)

    def prompts(self, vocabulary: int) -> list[list[int]]:
        random = np.random.default_rng(0)
        return random.integers(1, vocabulary, (self.batch, self.prompt)).tolist()


@dataclass
class Replay:
    """Notes the decode steps that a runner computes; every ``count`` of them are computed again, by all ranks alike.

    No schedule, no message and no bookkeeping belong to the second time: the forward, and the likeliest tokens.
    """

    runner: Runner
    count: int

    def __post_init__(self) -> None:
        self.compute = self.runner.compute
        self.steps: list[Step] = []
        self.runner.compute = self._record

    def _record(self, runner: Runner, step: Step, sampled: torch.Tensor | None) -> torch.Tensor:
        logits = self.compute(runner, step, sampled)
        if len(step.batch.token_ids) == len(step.batch.lengths):
            self.steps.append(step)
        return logits

    def again(self) -> list[float]:
        """The seconds of each."""
        steps, self.steps = self.steps, []
        return [timed(lambda step=step: self.runner.forward(step).argmax(-1).tolist()) for step in steps]


def timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def follow(team: TensorParallelGroup, llm: LLM, count: int) -> None:
    """The other ranks' part of ``engine_times``."""
    replay, compute = Replay(llm.runner, count), llm.runner.compute

    def then_again(runner: Runner, step: Step, sampled: torch.Tensor | None) -> torch.Tensor:
        logits = compute(runner, step, sampled)
        if len(replay.steps) == count:
            replay.again()
        return logits

    llm.runner.compute = then_again
    team.follow(llm.runner)


def engine_times(folder: str, decoding: Decoding) -> dict[str, Any] | None:
    """Seconds of every decode step with and without the engine, and the messages. None on all ranks but rank 0."""
    held: dict[str, int] = {}

    def serve(team: TensorParallelGroup, llm: LLM) -> None:
        held.update(bytes_of(llm))
        follow(team, llm, decoding.steps)
        llm.close()
        raise SystemExit(0)

    told = None
    with suppress(SystemExit), _patched(TensorParallelGroup, "serve", serve):
        sizes = {"num_blocks": decoding.blocks, "max_num_seqs": decoding.batch, "max_batched_tokens": 4096}
        with LLM(folder, tp="auto", **sizes) as llm:
            held.update(bytes_of(llm))
            told = _lead(llm, decoding)
    everybody: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybody, held)
    return None if told is None else told | {"held": everybody}


def _lead(llm: LLM, decoding: Decoding) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=decoding.new, ignore_eos=True)
    for prompt in decoding.prompts(llm.vocabulary):
        llm.add_request(prompt, params, pieces=False)
    replay = Replay(llm.runner, decoding.steps)
    while llm.snapshot().generated < decoding.batch:
        llm.step()
    replay.steps.clear()  # a prompt of one chunk may look like a decode
    team, whole, alone = llm._group, [], []
    assert team is not None
    before = team.messages, team.num_bytes
    for _ in range(decoding.rounds):
        whole += [timed(llm.step) for _ in range(decoding.steps)]
        alone += replay.again()
    count = len(whole)
    assert len(alone) == count
    messages, num_bytes = team.messages - before[0], team.num_bytes - before[1]
    for request in range(decoding.batch):
        llm.abort(f"request {request}")
    return {
        "engine": whole,
        "forward": alone,
        "messages": messages / count,
        "message bytes": num_bytes / count,
    }


def transformers_times(model: Any, decoding: Decoding) -> list[float]:
    """Seconds of a decode step of transformers' model with its own cache, and the likeliest tokens; on every rank."""
    from transformers import DynamicCache

    prompts = torch.tensor(decoding.prompts(model.get_input_embeddings().num_embeddings))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        last = model(input_ids=prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)

        def step() -> None:
            nonlocal last
            last = model(input_ids=last, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
            last.tolist()

        return [timed(step) for _ in range(decoding.steps * decoding.rounds)]


def bytes_of(llm: LLM) -> dict[str, int]:
    """What this rank holds: blocks of the cache, and its shard of the weights."""
    return {"kv": llm.cache.nbytes, "weights": sum(local(each).nbytes for each in llm.model.parameters())}


def run_rank(
    rank: int, size: int, store: str, folders: dict[str, str], decoding: Decoding, results: Any
) -> None:
    """A rank from its start to its end; rank 0 puts {name: figures} into the queue ``results``."""
    from minikv.models import load

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, size), rank=rank, world_size=size
    )
    told = {}
    for name, folder in folders.items():
        found = engine_times(folder, decoding)
        model = load(folder, tp=size).model
        times = transformers_times(model, decoding)
        if found is not None:
            told[name] = found | {"transformers": times}
    if rank == 0:
        results.put(told)
    distributed.barrier()
    distributed.destroy_process_group()


def alone_times(folder: str, decoding: Decoding, threads: int) -> list[float]:
    """``transformers_times`` of one process with as many threads as there would be ranks."""
    from minikv.models import load

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return transformers_times(load(folder, device="cpu").model, decoding)
    finally:
        torch.set_num_threads(before)


def _patched(owner: Any, name: str, value: Any) -> Any:
    from unittest.mock import patch

    return patch.object(owner, name, value)
