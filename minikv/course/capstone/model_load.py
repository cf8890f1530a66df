"""model_task: a load for any model of transformers, on any GPU of the catalogue. Lesson 18.

The expected answers are the model's own with all of its K and V kept, in the dtype of its weights: the bar is the share
of them that a plan must give.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from minikv.cache.allocator import kv_dtype_of
from minikv.course.capstone.machine import LIKE_GPU, LIKE_MODEL, small_machine
from minikv.course.capstone.reference import reference_answers
from minikv.course.capstone.task import Task, TaskRequest
from minikv.engine.factory import open_model
from minikv.errors import ArgumentError, UnknownNameError, check_count
from minikv.plan import CacheSpec
from minikv.plan.catalog import GPU, find_gpu
from minikv.plan.pool import sequence_bytes
from minikv.plan.roofline import Roof, gpu_roof
from minikv.simulate.assumptions import Assumptions
from minikv.simulate.step_time import StepTime

# Moments of arrival, and the number of requests that share the first half of their prompts.
BURSTS, GROUP = 4, 4
FIT = 8  # the budget holds one of so many requests at once, at their longest; at least two


def model_task(
    model: Any,
    *,
    num_requests: int = 24,
    seed: int = 0,
    gpu: str | GPU | Roof | None = None,
    scaled: bool = False,
    kv_bytes: int | None = None,
    quality: float = 0.95,
    prompt_tokens: int = 256,
    max_tokens: int = 32,
    prompts: Sequence[Sequence[int]] | None = None,
    dtype: Any = "auto",
    device: Any = "auto",
) -> Task:
    """``num_requests`` of up to ``prompt_tokens`` in and ``max_tokens`` out for ``model``, which ``LLM`` would take.

    Groups of four share the first half of their prompts, and lengths differ much; a quarter asks for one token. The
    requests arrive in four bursts. The last burst comes after half of the seconds that the load takes if each burst's
    prompts are a step and all of them decode together. ``prompts``: lists of token ids instead of random ones, with the
    prefixes that they share. ``gpu``: the GPU of the clock, a name of the catalogue. None is the GPU that the model is
    on; without one, or for one that the catalogue lacks, an H200, which ``explain`` calls an assumption. ``scaled``: an
    H200 scaled down to this model instead (``small_machine``), for models with steps that would be all overhead.
    ``kv_bytes`` None holds one of eight requests, at least two, at their longest. ``dtype`` and ``device``: see
    ``load``.

    Raises what ``LLM`` raises for the model, ``ConfigError`` for one with steps that ``StepTime`` cannot count,
    ``ArgumentError`` for bad counts and shares, and for prompts that are empty or longer than the model.
    """
    for what, value in (("num_requests", num_requests), ("max_tokens", max_tokens)):
        check_count(what, value)
    check_count("prompt_tokens", prompt_tokens, 8)
    check_count("seed", seed, 0)
    name = str(model) if isinstance(model, str) else None
    model, tokenizer = open_model(model, None, dtype=dtype, device=device, tp=1)
    roof, assumptions, machine = _machine(gpu, model, scaled)
    own = kv_dtype_of(model)
    spec = CacheSpec.from_config(model.config, kv_dtype=own)
    clock = StepTime.of_model(model.config, roof, kv_dtype=own, assumptions=assumptions)
    _check_length(spec, prompt_tokens, max_tokens, prompts)
    random = np.random.default_rng([seed, 18])
    if prompts is None:
        tokens, groups = _prompts(random, num_requests, prompt_tokens, model)
    else:
        tokens, groups = [tuple(map(int, prompt)) for prompt in prompts], list(range(len(prompts)))
    outputs = _outputs(random, len(tokens), max_tokens)
    gap = _span(clock, tokens, max_tokens) / (BURSTS - 1)
    requests = [
        TaskRequest(place * BURSTS // len(tokens) * gap, prompt, output, group=group)
        for place, (prompt, output, group) in enumerate(zip(tokens, outputs, groups, strict=True))
    ]
    longest = max((request.longest for request in requests), default=1)
    if kv_bytes is None:
        kv_bytes = max(2, len(requests) // FIT) * sequence_bytes(spec, longest, 16)
    task = Task(
        name=name or spec.name,
        seed=seed,
        model=model,
        requests=tuple(requests),
        kv_bytes=kv_bytes,
        quality=quality,
        roof=roof,
        assumptions=assumptions,
        tokenizer=tokenizer,
        machine=machine,
    )
    answers = reference_answers(task)
    return replace(
        task,
        requests=tuple(
            replace(request, answer=answer) for request, answer in zip(requests, answers, strict=True)
        ),
    )


def _machine(gpu: Any, model: Any, scaled: bool) -> tuple[Roof, Assumptions, tuple[str, dict[str, Any]]]:
    """The roof, the assumptions of its clock, and the sentence that says where it comes from."""
    if scaled:
        if gpu is not None:
            raise ArgumentError("capstone_two_machines", gpu=gpu)
        return *small_machine(model.config), ("machine_small", {"gpu": LIKE_GPU, "model": LIKE_MODEL})
    if isinstance(gpu, Roof):
        return gpu, Assumptions(), ("machine_given", {})
    if isinstance(gpu, GPU | str):
        return gpu_roof(find_gpu(gpu) if isinstance(gpu, str) else gpu), Assumptions(), ("machine_gpu", {})
    if gpu is not None:
        raise ArgumentError("simulate_type", what="gpu", kind="str", value=type(gpu).__name__)
    if model.device.type == "cuda":
        try:
            found = gpu_roof(find_gpu(torch.cuda.get_device_name(model.device)))
            return found, Assumptions(), ("machine_gpu", {})
        except (UnknownNameError, ArgumentError):
            pass  # the catalogue lacks the card, or its FLOP rate
    return gpu_roof(find_gpu(LIKE_GPU)), Assumptions(), ("machine_assumed", {})


def _check_length(
    spec: CacheSpec, prompt_tokens: int, max_tokens: int, prompts: Sequence[Sequence[int]] | None
) -> None:
    """Raise ``ArgumentError`` for requests that are longer than the model."""
    longest = prompt_tokens if prompts is None else max(map(len, prompts), default=0)
    if spec.max_positions is not None and longest + max_tokens > spec.max_positions:
        raise ArgumentError(
            "capstone_length", prompt=longest, max_tokens=max_tokens, most=spec.max_positions, name=spec.name
        )


def _prompts(
    random: np.random.Generator, count: int, longest: int, model: Any
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Random prompts: a group shares the first half of ``longest``; an eighth of it or more follows for each."""
    vocabulary = model.get_input_embeddings().num_embeddings
    prompts, groups = [], []
    for number in range(count):
        group = number // GROUP
        if number % GROUP == 0:
            shared = random.integers(0, vocabulary, longest // 2).tolist()
        own = int(random.integers(longest // 8, longest - longest // 2 + 1))
        prompts.append((*shared, *random.integers(0, vocabulary, own).tolist()))
        groups.append(group)
    return prompts, groups


def _outputs(random: np.random.Generator, count: int, most: int) -> list[int]:
    """The lengths of outputs: a single token for a quarter of them, from ``most`` / 4 to ``most`` for the others."""
    counts = random.integers(max(1, most // 4), most + 1, size=count)
    counts[random.permutation(count)[: count // 4]] = 1
    return counts.tolist()


def _span(clock: StepTime, prompts: list[tuple[int, ...]], max_tokens: int) -> float:
    """Half of the seconds that the load takes if each burst's prompts are a step, and a quarter decodes at a time."""
    parts = [
        prompts[place * len(prompts) // BURSTS : (place + 1) * len(prompts) // BURSTS]
        for place in range(BURSTS)
    ]
    seconds = 0.0
    for part in filter(None, parts):
        seconds += clock.seconds(prefill=[(0, len(prompt)) for prompt in part])
        seconds += max_tokens * clock.seconds(decode=[len(prompt) for prompt in part])
    return seconds / 2
