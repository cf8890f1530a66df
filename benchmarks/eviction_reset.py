"""What a forgotten reset does: the scores of a text that is over keep its tokens, and the next text has less room."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row
from minikv.eviction.hf.install import reset_eviction_scores
from minikv.eviction.policies.literature import H2O
from minikv.eviction.study.curves import evicting_with, shared_out
from minikv.eviction.study.suite import Score, scored
from minikv.eviction.study.tasks import Case, make_cases
from minikv.models import load

RESET_LENGTH = 97  # two such texts and the questions are no longer than what the models were trained on


def reset_rows(models: Mapping[str, tuple[str, ...]], cases: int) -> Iterator[Row]:
    """A second text in the cache of a first one, with the scores of the first set to zero or not."""
    for name, scopes in models.items():
        model = load(name).model
        first = make_cases("single", cases, length=RESET_LENGTH)
        second = make_cases("multikey", cases, seed=1, length=RESET_LENGTH)
        forgotten, done = (
            second_text(model, first, second, scopes[0], reset=reset) for reset in (False, True)
        )
        details = {
            told: {
                "recall": round(100 * text.score.share, 2),
                "95 %": [round(100 * bound, 2) for bound in text.score.interval],
            }
            for told, text in (("forgotten", forgotten), ("reset", done))
        }
        tell(details)
        claim, peer = f"{name}: kept of the last text, reset forgotten", "after reset_eviction_scores"
        ours, theirs, goal = 100 * forgotten.old, 100 * done.old, "more: it is in the new one's place"
        yield Detailed(claim, ours, theirs, peer, "% of what is kept", goal, ours > theirs, details)


@dataclass(frozen=True)
class SecondText:
    """``score`` of texts read in the caches of others; ``old``: the share of what is kept that is the others'."""

    score: Score
    old: float


@torch.no_grad()
def second_text(
    model: Any, first: Sequence[Case], second: Sequence[Case], scope: str, *, reset: bool, kept: float = 0.5
) -> SecondText:
    """Read each ``second`` text in the cache in which a ``first`` one was read before it, under summed H2O."""
    length = second[0].context
    before = torch.from_numpy(np.stack([case.tokens[: case.context] for case in first])).to(model.device)
    tokens = torch.from_numpy(np.stack([case.tokens for case in second])).to(model.device)
    with evicting_with(H2O(), shared_out(round(kept * length)), scope=scope)(model):
        cache = model(input_ids=before, use_cache=True).past_key_values
        if reset:
            reset_eviction_scores(model)
        model(input_ids=tokens[:, 1:length], past_key_values=cache, use_cache=True)
        places = torch.cat([layer.positions.flatten() for layer in cache.layers])
        out = model(input_ids=tokens[:, length:], past_key_values=cache, use_cache=True)
    found = scored(out.logits.float().log_softmax(-1).cpu(), second)
    return SecondText(sum(found, Score(0, 0)), float((places < before.shape[1]).float().mean()))
