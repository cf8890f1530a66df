"""One prefill and one decode step of a small Llama with random weights, under ``torch.profiler`` on the CPU."""

import os
from collections.abc import Callable
from functools import cache, partial

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from minikv.course.lessons.l11a.longest_operations import Call
from minikv.memory import matmul_rate, read_bandwidth
from minikv.models.cache_argument import cache_argument

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler reports its start and its end on stderr

PROMPT = 256  # tokens of the prefill
ROUNDS = 3  # the one least disturbed by other programs counts
ITEM = 4  # bytes of a float32
BUFFER = 2**28  # bytes read to measure the memory, more than caches hold
PREFIX = "aten::"  # of torch's own operations
# They move no data: views, and those that only call another operation.
IDLE = set(
    "alias as_strided contiguous detach expand linear matmul reshape scaled_dot_product_attention slice "
    "t to transpose _to_copy unsqueeze _unsafe_view view".split()
)


@cache
def profiled_steps() -> dict[str, list[Call]]:
    """Return the operations of a "prefill" of 256 tokens and of a "decode" step after it, one entry a call.

    FLOPs are those of a matrix product or of attention, and one for each element elsewhere. Bytes are those of the
    tensors that go in, and of the one that comes out.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            vocab_size=4096,
        )
    ).eval()
    ids = torch.randint(4096, (1, PROMPT + 1))
    steps: dict[str, list[list[Call]]] = {"prefill": [], "decode": []}
    with torch.inference_mode():
        model(ids)  # warm-up
        for _ in range(ROUNDS):
            kv_cache = DynamicCache(config=model.config)
            for calls, tokens in zip(steps.values(), (ids[:, :PROMPT], ids[:, PROMPT:]), strict=True):
                calls.append(_calls_of(partial(model, tokens, **cache_argument(model, kv_cache))))
    return {
        step: min(rounds, key=lambda calls: sum(us for _, us, _, _ in calls))
        for step, rounds in steps.items()
    }


def roof_here() -> tuple[int, int]:
    """Return what this CPU does in a microsecond: FLOPs of a matrix product in float32, and bytes that it reads."""
    return round(matmul_rate("cpu").tflops * 1e6), round(read_bandwidth(BUFFER, "cpu").gb_s * 1e3)


def longest_here(fn: Callable, steps: tuple[str, str]) -> list[list]:
    """Return the rows of a table of what ``fn`` says about the two steps, called ``steps``; none while it is a stub."""
    roof = roof_here()
    try:
        return [
            [label, name, str(memory_bound), times]
            for label, calls in zip(steps, profiled_steps().values(), strict=True)
            for name, memory_bound, times in fn(list(calls), *roof)
        ]
    except NotImplementedError:
        return []


def _calls_of(step: Callable[[], object]) -> list[Call]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as recorded:
        step()
    return [_call(event) for event in recorded.events() if _is_operation(event)]


def _is_operation(event: FunctionEvent) -> bool:
    """True for an operation of torch that reads a tensor and moves data itself."""
    name = event.name.removeprefix(PREFIX)
    return event.name.startswith(PREFIX) and name not in IDLE and any(event.input_shapes or ())


def _call(event: FunctionEvent) -> Call:
    shapes = [tuple(shape) for shape in event.input_shapes if shape]
    elements = [torch.Size(shape).numel() for shape in shapes]
    flops, out = event.flops or max(elements), max(elements)
    if event.flops and len(shapes) == 2 and len(shapes[0]) == 2:  # [m, k] times [k, n]
        out = shapes[0][0] * shapes[1][1]
    if (
        "attention" in event.name
    ):  # queries [1, H, T, D] on keys [1, H, S, D]: scores, then their sum of values
        flops, out = 4 * elements[0] * shapes[1][2], elements[0]
    return (
        event.name.removeprefix(PREFIX),
        round(event.self_cpu_time_total),
        int(flops),
        ITEM * (sum(elements) + out),
    )
