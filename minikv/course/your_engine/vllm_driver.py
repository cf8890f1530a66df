"""vLLM, driven from another process: a plain file for the Python of vLLM's own environment, where minikv is not.

A line of JSON in, a line of JSON out. The first line is the ``setup`` of the engine; each line behind it is a load:
``prompts`` as token ids, how many ``new`` tokens each gets, and how many of them, ``warm``, are answered once before.
Its answer has the ``seconds``, the ``tokens``, the time ``now`` and the ``peak_bytes`` of the process.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

Tokens = list[list[int]]


class DrivenEngine(Protocol):
    """Any engine that ``serve`` can drive."""

    def warm(self, prompts: Tokens, new: list[int]) -> None:
        """Answer requests that are not timed."""

    def answer(self, prompts: Tokens, new: list[int]) -> tuple[float, Tokens]:
        """The seconds that the answers took, and their tokens. No prefix of an earlier load is found again."""


class Vllm:
    """``vllm.LLM`` in float32, greedy, on token ids. ``setup``: a folder, limits, and whether it is ``eager``."""

    def __init__(self, setup: dict[str, Any]):
        from vllm import LLM, SamplingParams

        self.params = SamplingParams
        self.llm = LLM(
            setup["folder"],
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=setup["eager"],
            max_num_seqs=setup["seats"],
            max_num_batched_tokens=setup["step_tokens"],
            max_model_len=setup["longest"],
            kv_cache_memory_bytes=setup["kv_bytes"],
        )

    def warm(self, prompts: Tokens, new: list[int]) -> None:
        self.answer(prompts, new)

    def answer(self, prompts: Tokens, new: list[int]) -> tuple[float, Tokens]:
        self.llm.reset_prefix_cache()
        params = [
            self.params(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False) for count in new
        ]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        outputs = self.llm.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]


def serve(make: Callable[[dict[str, Any]], DrivenEngine]) -> None:
    """Make the engine of the first line, and answer the loads of the others until there are no more."""
    # What a library prints would stand between the answers: file descriptor 1 becomes standard error.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine = make(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        load = json.loads(line)
        prompts, new, warm = load["prompts"], load["new"], load["warm"]
        if warm:
            engine.warm(prompts[:warm], new[:warm])
        seconds, tokens = engine.answer(prompts, new)
        found = {"seconds": seconds, "tokens": tokens, "now": time.monotonic(), "peak_bytes": peak_bytes()}
        print(json.dumps(found), file=told, flush=True)


def peak_bytes() -> int | None:
    """The most memory that this process has had in use at once; None where the system does not say (not Linux).

    ``getrusage`` would count the process that has started this one, as it was before the program was loaded.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            lines = dict(line.split(":", 1) for line in status)
    except OSError:
        return None
    return int(lines["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    serve(Vllm)
