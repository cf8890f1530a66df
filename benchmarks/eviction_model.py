"""The eviction benchmark on any model that reads English: texts of the package's tasks, or prompts of your own."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row
from minikv.eviction.study.curves import evicting_with, shared_out
from minikv.eviction.study.suite import Evicting, no_eviction, wilson
from minikv.eviction.study.text_suite import CAN, same_tokens, say
from minikv.eviction.study.text_tasks import Text


@dataclass(frozen=True)
class Read:
    """How texts are read and answered. ``seen``: the eviction comes behind the question, of which one token is left;
    so it does where a text has none.

    ``new`` tokens are generated greedily, and fewer where the model ends its answer.
    """

    kept: tuple[float, ...]
    policies: dict[str, Any]
    scope: str
    new: int
    seen: bool


def read_prompts(file: Path) -> list[Text]:
    """JSON lines: {"prompt": ...} or {"context": ..., "question": ...}, and "answers": [...] where they are known.

    Ends the benchmark with the number of the first line that is none of these.
    """
    texts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            context, question = (
                (told["prompt"], "") if "prompt" in told else (told["context"], told["question"])
            )
            known = told.get("answers", ())
            answers = (known,) if isinstance(known, str) else tuple(map(str, known))
            texts.append(Text(str(context), str(question), answers))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise SystemExit(f"{file}, line {number}, is no prompt ({reason}): see --help") from error
    return texts


def text_rows(
    name: str, what: str, model: Any, tokenizer: Any, texts: Sequence[Text], read: Read
) -> Iterator[Row]:
    """The full cache, then each policy and share kept: right answers, or where none are known the full cache's tokens.

    Where the full cache knows nothing, no policy has kept anything, and its row does not hold.
    """
    full = [_said(model, tokenizer, text, read) for text in texts]
    known = all(text.answers for text in texts)
    most = 1.0
    if known:
        most = _found(tokenizer, texts, full) / len(texts)
        goal = f"at least {100 * CAN:g}: the task can be done"
        claim, unit = f"{name}: {what}, full cache", "% of the answers"
        yield Row(claim, 100 * most, 100, "all", unit, goal, most >= CAN)
    for kept, policy in product(read.kept, read.policies):
        said = [_said(model, tokenizer, text, read, policy, kept) for text in texts]
        if known:
            found, unit, peer = _found(tokenizer, texts, said), "% of the answers", "full cache"
        else:
            found = sum(
                same_tokens(each, due) / max(1, len(due)) for each, due in zip(said, full, strict=True)
            )
            unit, peer = "% of the tokens", "full cache's greedy tokens"
        low, high = wilson(found, len(texts))
        details = {"texts": len(texts), "95 %": [round(100 * low, 1), round(100 * high, 1)]}
        tell(details)
        claim = f"{name}: {what}, {policy}, {100 * kept:g} % kept"
        goal, holds = "the full cache's in its interval", 0 < most <= high
        yield Detailed(claim, 100 * found / len(texts), 100 * most, peer, unit, goal, holds, details)


def _said(
    model: Any, tokenizer: Any, text: Text, read: Read, policy: str | None = None, kept: float = 1.0
) -> list[int]:
    """The token ids that ``model`` says behind the question. ``policy`` None is the full cache."""

    def evicting(tokens: int) -> Evicting:
        if policy is None:
            return no_eviction
        sizes = shared_out(max(1, round(kept * tokens)))
        return evicting_with(read.policies[policy], sizes, scope=read.scope)

    return say(model, tokenizer, text, new=read.new, evicting=evicting, seen=read.seen)


def _found(tokenizer: Any, texts: Sequence[Text], said: Sequence[list[int]]) -> float:
    """How many answers stand in what was said, a part for each text with several."""
    words = (tokenizer.decode(each, skip_special_tokens=True) for each in said)
    return sum(text.share(each) for text, each in zip(texts, words, strict=True))
