"""Recurrent layers: tokens a second of decode steps, all sequences in one forward beside one sequence a forward.

    python -m benchmarks.states [--quick] [--json FILE]

A small Qwen3-Next (6 of 8 layers linear, experts) and a small Mamba-2, with random weights, in float32 on one thread.
Both engines have the same weights and requests and take their steps in turns: ``reads="auto"`` decodes all sequences in
one forward, ``reads="gather"`` each in a forward of its own, on copies of its K and V. Seconds are the thread's CPU
time, so that other work on the machine counts little. Their answers have to be the same tokens.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks.report import Row, arguments, publish
from minikv import LLM, SamplingParams
from minikv.models.adapter import Reads

VOCABULARY = 8000
PROMPT = (24, 48)  # the fewest and the most tokens of a prompt
SETTLE = 2  # steps that are not timed
ONE, MANY = 1, 32
SIZES: dict[str, dict[str, int]] = {
    "qwen3_next": {
        "hidden_size": 384,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
    "mamba2": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_heads": 16,
        "head_dim": 64,
        "state_size": 32,
        "n_groups": 1,
        "expand": 2,
    },
}
NAMES = {"qwen3_next": "Qwen3-Next", "mamba2": "Mamba-2"}
# The least ratio of tokens a second, at each number of sequences. One sequence is one forward either way.
GOALS = {"qwen3_next": {ONE: 0.8, MANY: 4.0}, "mamba2": {ONE: 0.8, MANY: 2.5}}
PEER = "one sequence a forward, on copies"


def random_model(model_type: str, **changes: int) -> Any:
    """A model of ``SIZES`` in float32, the same weights every time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": VOCABULARY, **SIZES[model_type], **changes}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, pad_token_id=0, **sizes))
    return model.eval().float()


def measure(
    model: Any, sequences: int, steps: int, clock: Callable[[], float] = time.thread_time
) -> tuple[float, float]:
    """Tokens a second of decode steps of ``sequences``: in one forward, and in one each.

    ``steps`` of each engine are timed by ``clock``, in seconds. Raises ``RuntimeError`` if the answers differ.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    draw, seconds = random.Random(sequences), [0.0, 0.0]
    prompts = [
        [draw.randrange(1, vocabulary) for _ in range(draw.randint(*PROMPT))] for _ in range(sequences)
    ]
    params = SamplingParams(temperature=0, max_tokens=SETTLE + steps + 1, ignore_eos=True)
    sizes: dict[str, Any] = {
        "max_num_seqs": sequences,
        "max_batched_tokens": sequences * PROMPT[1],
        "saved_states": 0,
    }
    longest = PROMPT[1] + params.max_tokens
    with ExitStack() as stack:
        engines = []
        ways: tuple[tuple[Any, Reads], ...] = ((model, "auto"), (copy.deepcopy(model), "gather"))
        for each, reads in ways:
            blocks = sequences * -(-longest // 16)
            llm = stack.enter_context(
                LLM(each, num_blocks=blocks, max_model_len=longest, reads=reads, **sizes)
            )
            for number, prompt in enumerate(prompts):
                llm.add_request(prompt, params, request_id=number)
            engines.append(llm)
        answers: list[dict[Any, list[int]]] = [{}, {}]
        for step in range(1 + SETTLE + steps):  # the first computes the prompts
            for side, llm in enumerate(engines):
                began = clock()
                report = llm.step()
                if step > SETTLE:
                    seconds[side] += clock() - began
                for out in report.finished:
                    answers[side][out.request] = list(out.completions[0].token_ids)
    if len(answers[0]) < sequences or answers[0] != answers[1]:
        raise RuntimeError(f"the answers of {sequences} sequences differ, or are not all there")
    together, apart = (sequences * steps / spent for spent in seconds)
    return together, apart


def rows(quick: bool) -> Iterator[Row]:
    for model_type, goals in GOALS.items():
        model = random_model(model_type)
        for sequences, least in goals.items():
            steps = (10 if quick else 60) if sequences == ONE else (4 if quick else 24)
            ours, peer = measure(model, sequences, steps)
            claim = f"decode, small {NAMES[model_type]}, {sequences} sequence{'s' * (sequences > 1)}"
            goal = f"at least {least:g} times the peer"
            yield Row(claim, ours, peer, PEER, "tokens/s", goal, ours >= least * peer)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    publish(rows(options.quick), options.json)


if __name__ == "__main__":
    main()
