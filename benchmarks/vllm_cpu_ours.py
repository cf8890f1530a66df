"""The engines of this environment, driven as vLLM is (``minikv/course/your_engine/vllm_driver.py``), one a process.

``benchmarks.vllm_cpu`` starts it. The first line on standard input says which ``way``: "minikv", "nano" or
"generate_batch". Each has the blocks, the seats and the tokens a step of the others; generate_batch has the fastest of
three step sizes.
"""

import runpy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minikv.course.your_engine.vllm_driver import DrivenEngine, Tokens

DRIVER = Path(__file__).parent.parent / "minikv/course/your_engine/vllm_driver.py"
BLOCK = 16


class DrivenMinikv:
    """One ``minikv.LLM`` for all loads, made from the folder."""

    def __init__(self, setup: dict[str, Any]):
        from minikv import LLM, SamplingParams

        self.params = SamplingParams
        self.llm = LLM(
            setup["folder"],
            num_blocks=setup["kv_tokens"] // BLOCK,
            max_num_seqs=setup["seats"],
            max_batched_tokens=setup["step_tokens"],
        )

    def warm(self, prompts: "Tokens", new: list[int]) -> None:
        self.answer(prompts, new)

    def answer(self, prompts: "Tokens", new: list[int]) -> "tuple[float, Tokens]":
        self.llm.reset_prefix_cache()
        params = [self.params(temperature=0, max_tokens=count, ignore_eos=True) for count in new]
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - start
        return seconds, [list(output.token_ids) for output in outputs]


class DrivenNano:
    """``minikv.nano``, made anew for every load; that is not timed."""

    def __init__(self, setup: dict[str, Any]):
        from minikv.models import load

        self.model: Any = load(setup["folder"]).model
        self.model.generation_config.pad_token_id = 0
        self.way = self.first_way(setup)

    def first_way(self, setup: dict[str, Any]) -> Any:
        from minikv.course.your_engine.ways import Nano

        return Nano(setup["seats"], setup["kv_tokens"] // BLOCK, setup["step_tokens"])

    def warm(self, prompts: "Tokens", new: list[int]) -> None:
        self.answer(prompts, new)

    def answer(self, prompts: "Tokens", new: list[int]) -> "tuple[float, Tokens]":
        run = self.way.run(self.model, _load(prompts, new))
        return run.seconds, run.answers


class DrivenGenerateBatch(DrivenNano):
    """transformers' continuous batching, whose manager is made anew too. Warming up finds the fastest step size."""

    def first_way(self, setup: dict[str, Any]) -> Any:
        from minikv.course.your_engine.ways import ContinuousBatching

        return ContinuousBatching(setup["seats"], BLOCK, setup["kv_tokens"])

    def warm(self, prompts: "Tokens", new: list[int]) -> None:
        from benchmarks.nano import fastest

        self.way = fastest(self.model, _load(prompts, new))


def _load(prompts: "Tokens", new: list[int]) -> Any:
    from minikv.course.your_engine.ways import RaceLoad, RaceRequest

    asked = (RaceRequest(tuple(prompt), count) for prompt, count in zip(prompts, new, strict=True))
    return RaceLoad("driven", tuple(asked))


WAYS = {"minikv": DrivenMinikv, "nano": DrivenNano, "generate_batch": DrivenGenerateBatch}


def make(setup: dict[str, Any]) -> "DrivenEngine":
    return WAYS[setup["way"]](setup)


def main() -> None:
    # Run as vLLM's Python runs it: an import would bring the course, which is no part of an engine's start.
    runpy.run_path(str(DRIVER))["serve"](make)
