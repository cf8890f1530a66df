"""The answers of a model to the texts of ``text_tasks`` while a policy evicts: greedy tokens. Lesson 14."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minikv.errors import check_count
from minikv.eviction.study.suite import Evicting
from minikv.eviction.study.text_tasks import Text, make_text
from minikv.models.cache_argument import cache_argument, cache_in

CAN = 0.9
"""Of the answers: where the full cache gives fewer, a task says more about the model than about an eviction."""


def make_texts(
    task: str, length: int, count: int, tokenizer: Any, *, seed: int = 0, depth: float | None = None
) -> list[Text]:
    """``count`` texts of ``task`` of at most ``length`` tokens of ``tokenizer``, without those of the answers."""

    def count_tokens(text: str) -> int:
        return len(tokenizer(text).input_ids)

    return [
        make_text(task, length=length, count_tokens=count_tokens, seed=seed, number=number, depth=depth)
        for number in range(count)
    ]


@torch.no_grad()
def say(
    model: Any,
    tokenizer: Any,
    text: Text,
    *,
    new: int,
    evicting: Callable[[int], Evicting],
    seen: bool = False,
) -> list[int]:
    """The greedy token ids that ``model`` says behind the question: ``new``, or fewer where it ends its answer.

    ``evicting`` gets the number of tokens that are read before the eviction: the context's; with ``seen``, or where the
    text has no question, all but one.
    """
    context = tokenizer(text.context).input_ids
    question = tokenizer(text.question, add_special_tokens=False).input_ids if text.question else []
    ids = torch.tensor([context + question], device=model.device)
    before = len(context) if question and not seen else ids.shape[1] - 1
    check_count("tokens before the eviction", before)
    ends, said = _ends(model), list[int]()
    with evicting(before)(model):
        out = model(input_ids=ids[:, :before], use_cache=True, logits_to_keep=1)
        fed = ids[:, before:]
        while len(said) < new and not (said and said[-1] in ends):
            held = cache_argument(model, cache_in(out))
            out = model(input_ids=fed, use_cache=True, logits_to_keep=1, **held)
            fed = out.logits[:, -1:].argmax(-1)
            said.append(int(fed))
    return said


def same_tokens(said: Sequence[int], due: Sequence[int]) -> int:
    """How many tokens of ``due`` are in ``said`` in the same places."""
    return sum(a == b for a, b in zip(said, due, strict=False))


def _ends(model: Any) -> set[int]:
    """The token ids that end an answer."""
    ends = model.generation_config.eos_token_id
    return {ends} if isinstance(ends, int) else set(ends or ())
