"""An ``LLM`` on a small random model, and what the model's own ``generate`` makes of the same prompts one at a time."""

import functools
import gc
import random

import torch
from torch._subclasses.fake_tensor import FakeTensor

from minikv import LLM
from minikv.engine import EventLog, FinishReason, SamplingParams
from tests.engine.drive import Clock
from tests.models.running import TIE, World

VOCABULARY = 97
LONGEST = 12  # tokens that a reference answer has
TINY = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 28}


class Broken(Exception):
    """What an injected failure raises."""


class Reference:
    """A model, its prompts, and the greedy answer to each of them, made before any LLM is bound to the model; without
    ``answers`` those of a test that asks for none.

    The model is a random one of ``model_type``, or the one given, with a vocabulary of ``VOCABULARY`` at least.
    """

    def __init__(self, model_type: str, model=None, *, answers: bool = True, **changes):
        self.model = model or World.bare(model_type, **{**TINY, **changes})
        draw = random.Random(model_type)
        stems = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in (9, 20)]
        ends = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in (1, 3, 6, 17)]
        heads = [[], stems[0], stems[1], stems[1][:7]]
        self.prompts = [head + end for head in heads for end in ends]
        self.ties = 0
        self._known: dict[tuple[int, ...], tuple[list[int], torch.Tensor]] = {}
        for prompt in self.prompts if answers else ():
            self.answer(prompt)

    def answer(self, prompt, count=LONGEST):
        """(tokens, logits [tokens, vocabulary]) of ``generate``."""
        key = tuple(prompt)
        if key not in self._known or len(self._known[key][0]) < count:
            assert not self.model.config._attn_implementation.startswith("minikv"), "an LLM is bound to it"
            out = self.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=max(count, LONGEST),
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=0,
            )
            self._known[key] = out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).double()
        tokens, logits = self._known[key]
        return tokens[:count], logits[:count]

    def due(self, prompt, params):
        """The tokens of a greedy request, and its finish reason."""
        tokens, _ = self.answer(prompt, params.max_tokens)
        for place, token in enumerate(tokens):
            if token in params.stop_token_ids:
                return tokens[: place + 1], FinishReason.STOP
        return tokens, FinishReason.LENGTH

    def check(self, out, params):
        """The completions of a greedy request have the reference's tokens, if it was aborted the first of them."""
        due, reason = self.due(list(out.prompt_token_ids), params)
        for each in out.completions:
            made = list(each.token_ids)
            if self._tied(out.prompt_token_ids, made, due):
                continue
            if each.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                assert made == due[: len(made)], out
            else:
                assert (made, each.finish_reason) == (due, reason), out

    def _tied(self, prompt, made, due):
        """Whether the two part at a tie of the reference's best two: from there on nothing is comparable."""
        place = next((at for at, pair in enumerate(zip(made, due, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            return False
        best = self.answer(prompt)[1][place].topk(2).values
        assert best[0] - best[1] < TIE, f"{made} is not {due} of {list(prompt)}"
        self.ties += 1
        return True


@functools.cache
def reference(model_type, **changes):
    """One for each model in a test run: the answers are made once."""
    return Reference(model_type, **changes)


def greedy(max_tokens=8, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


def make(model, **options):
    """An LLM with small sizes; ``options`` win. Its ``emit`` is an ``EventLog`` unless one is given."""
    sizes = {
        "block_size": 4,
        "max_num_seqs": 8,
        "max_batched_tokens": 64,
        "clock": Clock(),
        "emit": EventLog(),
    }
    if not {"num_blocks", "kv_bytes"} & options.keys():
        sizes["num_blocks"] = 64
    return LLM(model, **{**sizes, **options})


def check_between_steps(llm):
    llm.manager.check_invariants()
    assert set(llm.manager.sequences()) == {seq.id for seq in llm.scheduler.running_sequences}


def check_empty(llm):
    """Every block is back, and nothing is remembered of what was given back."""
    check_between_steps(llm)
    assert not llm.has_work
    assert not llm.manager.sequences()
    assert all(pool.num_free == pool.num_blocks for pool in llm.manager.pools)
    assert not llm._engine._requests
    assert not llm._engine._outputs


def run(llm, most=2000):
    """Step until there is nothing left: (tokens, {request: output})."""
    tokens, outputs = [], {}
    for _ in range(most):
        if not llm.has_work:
            return tokens, outputs
        out = llm.step()
        check_between_steps(llm)
        tokens += out.tokens
        outputs |= {each.request: each for each in out.finished}
    raise AssertionError(f"not done after {most} steps")


def tensor_bytes():
    """The bytes of all live tensors' storages, each storage once. A fake tensor, which other tests make, has none."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        kind = type(each)
        if issubclass(kind, torch.Tensor) and not issubclass(kind, FakeTensor) and each.device.type == "cpu":
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
