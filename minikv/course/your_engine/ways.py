"""Ways to answer a load of requests greedily, each in tokens a second and bytes of K and V, and whether they agree.

``generate()`` in static batches, transformers' own continuous batching (the manager that ``generate_batch`` makes),
nano, and ``minikv.LLM``. Each request gets as many tokens as it asks for.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from unittest.mock import patch

import torch

from minikv import LLM, SamplingParams, nano
from minikv.course.your_engine.driven import Driven
from minikv.errors import MiniKVError
from minikv.models.cache_argument import cache_in

STATIC = 16
# Two logits closer than this may change their order when sums are added up in another order.
TIE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
Answers = list[list[int]]


@dataclass(frozen=True)
class RaceRequest:
    """``prompt`` token ids, and how many tokens to generate."""

    prompt: tuple[int, ...]
    new: int


@dataclass(frozen=True)
class RaceLoad:
    """Requests that all arrive at the start; ``name`` is their name in the table."""

    name: str
    requests: tuple[RaceRequest, ...]

    @property
    def new_tokens(self) -> int:
        return sum(request.new for request in self.requests)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, the generated ones included."""
        return max(len(request.prompt) + request.new for request in self.requests)

    @property
    def shared_tokens(self) -> int:
        """Tokens of the prefix that all prompts share."""
        columns = zip(*(request.prompt for request in self.requests), strict=False)
        return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))

    def first(self, count: int) -> "RaceLoad":
        """The load's first requests, to try a setting with."""
        return RaceLoad(self.name, self.requests[:count])


@dataclass(frozen=True)
class Run:
    """A load answered. ``peak_kv_bytes``: the K and V held at the fullest moment, if the run watched it.

    ``cached_tokens`` of the prompts were not computed.
    """

    seconds: float
    answers: Answers
    peak_kv_bytes: int | None = None
    cached_tokens: int = 0
    steps: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Ours:
    """minikv: at most ``max_num_seqs`` at once and ``max_batched_tokens`` a step, on ``num_blocks`` blocks of 16."""

    max_num_seqs: int
    num_blocks: int
    max_batched_tokens: int

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        """Answer the load. With ``watch`` the blocks in use are counted, which takes time."""
        steps, preempted = [], []

        def emit(event: Any) -> None:
            if event.kind == "step":
                steps.append(event)
            elif event.kind == "preempt":
                preempted.append(event)

        with LLM(
            model,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=self.max_batched_tokens,
            emit=emit if watch else None,
        ) as llm:
            params = [
                SamplingParams(temperature=0, max_tokens=request.new, ignore_eos=True)
                for request in load.requests
            ]
            prompts = [list(request.prompt) for request in load.requests]
            start = _now(model)
            outputs = llm.generate(prompts, params, progress=False)
            seconds = _now(model) - start
            block_bytes = [group.block_bytes(llm.cache.block_size) for group in llm.cache.kv_cache_groups]
        peak = max((_bytes(step.used, block_bytes) for step in steps), default=None)
        answers = [list(output.token_ids) for output in outputs]
        cached = sum(output.num_cached for output in outputs)
        return Run(seconds, answers, peak, cached, len(steps), len(preempted))


@dataclass(frozen=True)
class Nano:
    """``minikv.nano.LLM`` with the same three limits; parts assembled into nano are measured with it."""

    max_num_seqs: int
    num_blocks: int
    max_num_batched_tokens: int

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        """Answer the load. With ``watch`` the blocks that sequences hold are counted in each step."""
        own = model.config._attn_implementation
        used = list[int]()
        params = [nano.SamplingParams(each.new, temperature=0, ignore_eos=True) for each in load.requests]
        try:
            llm = nano.LLM(model, **dataclasses.asdict(self))
            forward, blocks = llm.run, llm.scheduler.blocks

            def counted(step: Any) -> torch.Tensor:
                used.append(blocks.num_blocks - len(blocks.free_blocks))
                return forward(step)

            if watch:
                llm.run = counted  # type: ignore[method-assign]
            start = _now(model)
            outputs = llm.generate([list(each.prompt) for each in load.requests], params)
            seconds = _now(model) - start
        finally:
            model.set_attn_implementation(own)
        peak = max(used) * (llm.cache.nbytes // self.num_blocks) if used else None
        cached = sum(output.num_cached for output in outputs)
        answers = [each.token_ids for each in outputs]
        return Run(seconds, answers, peak, cached, len(used), llm.scheduler.num_preemptions)


@dataclass(frozen=True)
class StaticBatches:
    """``model.generate()`` on ``size`` requests at a time, padded on the left, until the longest of them is done."""

    size: int = STATIC

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        answers: Answers = []
        peak = 0
        start = _now(model)
        for first in range(0, len(load.requests), self.size):
            batch = load.requests[first : first + self.size]
            longest = max(len(request.prompt) for request in batch)
            ids = torch.zeros(len(batch), longest, dtype=torch.long, device=model.device)
            mask = torch.zeros_like(ids)
            for row, request in enumerate(batch):
                ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
                mask[row, longest - len(request.prompt) :] = 1
            made = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(request.new for request in batch),
                do_sample=False,
                return_dict_in_generate=True,
            )
            held = (layer.keys.nbytes + layer.values.nbytes for layer in cache_in(made).layers)
            peak = max(peak, sum(held))
            answers += [
                row[longest : longest + request.new].tolist()
                for row, request in zip(made.sequences, batch, strict=True)
            ]
        return Run(_now(model) - start, answers, peak)


@dataclass(frozen=True)
class ContinuousBatching:
    """transformers' continuous batching, at most ``max_batch_tokens`` tokens a step, pages of ``page_size`` tokens."""

    max_batch_tokens: int
    page_size: int
    num_tokens: int

    @property
    def name(self) -> str:
        return f"{self.max_batch_tokens} tokens a step, pages of {self.page_size}"

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        """Answer the load. With ``watch`` the blocks of live requests are counted, which takes time.

        The start of the manager and its cache is not timed, nor is its stop.
        """
        from transformers import GenerationConfig

        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        peak: list[int] = []
        with (
            _quiet(),
            _watched(peak if watch else None),
            model.continuous_batching_context_manager(
                generation_config=generation, continuous_batching_config=self._config()
            ) as manager,
        ):
            start = _now(model)
            names = [
                manager.add_request(list(request.prompt), max_new_tokens=request.new)
                for request in load.requests
            ]
            done: dict[str, list[int]] = {}
            while len(done) < len(names):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has stopped")
                if result is not None and result.is_finished():
                    if result.error is not None:
                        raise RuntimeError(f"transformers' continuous batching: {result.error}")
                    done[result.request_id] = list(result.generated_tokens)
            seconds = _now(model) - start
        return Run(seconds, [done[name] for name in names], max(peak, default=None))

    def _config(self) -> Any:
        from transformers import ContinuousBatchingConfig

        # The size of a page is called block_size before 5.17.
        known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        page = {"page_size" if "page_size" in known else "block_size": self.page_size}
        blocks = -(-self.num_tokens // self.page_size)
        return ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=self.max_batch_tokens, **page)


@dataclass(frozen=True)
class Elsewhere:
    """An engine in a process of its own, which has the weights. It does not say what K and V it holds."""

    engine: Driven

    def run(self, model: Any, load: RaceLoad, watch: bool = False) -> Run:
        found = self.engine.ask([each.prompt for each in load.requests], [each.new for each in load.requests])
        return Run(found["seconds"], found["tokens"])


@dataclass(frozen=True)
class Difference:
    """Two ways part at token ``place`` of the answer to request ``request``: the logits there lie ``gap`` apart."""

    request: int
    place: int
    gap: float


def differences(
    model: Any, load: RaceLoad, answers: Answers, others: Answers, ways: str
) -> Iterator[Difference]:
    """The requests to which two ways, named in the last argument, answer otherwise.

    Raises ``MiniKVError`` for an answer of another length than was asked for.
    """
    for number, (request, one, other) in enumerate(zip(load.requests, answers, others, strict=True)):
        if len(one) != request.new or len(other) != request.new:
            sizes = {"one": len(one), "other": len(other), "new": request.new}
            raise MiniKVError("race_length", ways=ways, request=number, **sizes)
        if one != other:
            place = next(place for place in range(request.new) if one[place] != other[place])
            gap = _gap(model, [*request.prompt, *one[:place]], one[place], other[place])
            yield Difference(number, place, gap)


def agree(model: Any, load: RaceLoad, answers: Answers, others: Answers, ways: str) -> int:
    """The number of requests that differ from a tie on. Raises ``MiniKVError`` for any other difference or length.

    A tie: two tokens with logits closer than ``TIE``. The last argument names the two ways.
    """
    ties = 0
    for found in differences(model, load, answers, others, ways):
        if found.gap > TIE[model.dtype]:
            raise MiniKVError(
                "race_differs", ways=ways, request=found.request, place=found.place, gap=found.gap
            )
        ties += 1
    return ties


@torch.no_grad()
def _gap(model: Any, tokens: list[int], one: int, other: int) -> float:
    """The distance of the lower of two tokens' logits from the best logit behind ``tokens``."""
    logits = model(torch.tensor([tokens], device=model.device), logits_to_keep=1).logits[0, -1].float()
    return float(logits.max() - logits[[one, other]].min())


@contextmanager
def _watched(peak: list[int] | None) -> Iterator[None]:
    """Put the bytes of the blocks that live requests hold into ``peak`` before each step of transformers' manager."""
    if peak is None:
        yield
        return
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

    prepare = ContinuousBatchProcessor.prepare_next_batch

    def counted(processor: Any) -> bool:
        ready = prepare(processor)
        allocators = processor.cache.cache_allocators.values()
        blocks = [set().union(*allocator.block_table.values()) for allocator in allocators]
        peak.append(
            sum(
                len(held) * allocator.bytes_per_block
                for held, allocator in zip(blocks, allocators, strict=True)
            )
        )
        return ready

    with patch.object(ContinuousBatchProcessor, "prepare_next_batch", counted):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the manager's warning in each run that no end-of-sequence token was given."""
    log = logging.getLogger("ContinuousBatchingLogger")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _bytes(blocks: tuple[int, ...], block_bytes: list[int]) -> int:
    return sum(count * size for count, size in zip(blocks, block_bytes, strict=True))


def _now(model: Any) -> float:
    """The time in seconds, after the device has finished its work."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
