"""Two runs that are to agree although they round otherwise: what one has chosen to keep, the other keeps as well.

A token more or less in the cache changes every score after it, and where two scores nearly tie rounding decides. So
the scores themselves are compared, within a tolerance, and those of the first run decide in both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minikv.eviction.policies.policy import View
from minikv.eviction.policies.sampled import Wrapped

CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def prompt(rows=2, tokens=60):
    return torch.randint(4, 190, (rows, tokens), generator=torch.Generator().manual_seed(0))


def generate(model, ids, new):
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **options)


@dataclass(frozen=True)
class Told(Wrapped):
    """The policy as it is; ``scores`` gets (positions, scores) of each call, as ``in_order`` gives them."""

    scores: list[tuple[Tensor, Tensor]]

    def score(self, view: View) -> Tensor:
        found = self.policy.score(view)
        self.scores.append(in_order(view, found))
        return found


@dataclass(frozen=True)
class Following(Wrapped):
    """Compares each call's scores with the next of ``due`` and gives those; ``compared`` gets the differences."""

    due: Iterator[tuple[Tensor, Tensor]]
    compared: list[float]

    def score(self, view: View) -> Tensor:
        positions, mine = in_order(view, self.policy.score(view))
        same_positions, theirs = next(self.due)
        assert torch.equal(positions, same_positions)
        torch.testing.assert_close(mine, theirs, **CLOSE)
        self.compared.append(float((mine - theirs).abs().max()))
        back = view.positions.argsort(-1).argsort(-1)
        return theirs.to(view.positions.device).gather(-1, back)


def in_order(view: View, score: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and scores [B, H, S] of the resident tokens in the order of their positions, on a CPU."""
    order = view.positions.argsort(-1)
    scores = score.float().expand(view.positions.shape).gather(-1, order)
    return view.positions.gather(-1, order).cpu(), scores.cpu()
