"""Exercise 14b.1: a policy of the learner's own against chance, on the tiny model's own task."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from minikv.course.exercise import Exercise, Misconception
from minikv.eviction import Needs, Policy, View

CAPACITY, LENGTH = 48, 193
TEXTS = 2  # texts in a run
ENOUGH = 0.75  # share of the questions; chance answers about a third


@dataclass(frozen=True)
class _Own(Policy):
    """A learner's function as a policy with every field of the view."""

    needs: ClassVar[Needs] = Needs.PROBS | Needs.WINDOW
    fn: Callable[[View], Tensor]

    @property
    def window(self) -> int:
        return 16

    def score(self, view: View) -> Tensor:
        return self.fn(view)


def score(view: View) -> Tensor:
    keys = functional.normalize(view.keys, dim=-1)
    typical = keys.mean(2, keepdim=True)
    return -functional.cosine_similarity(keys, typical, dim=-1)


def score_the_typical(view):
    """Keeps the tokens that are most like the others: the sign is wrong."""
    return -score(view)


def score_the_newest(view):
    return view.positions.float()


def score_the_oldest(view):
    return -view.positions.float()


def score_the_sum(view):
    """H2O as in the paper."""
    return view.state


def score_the_last_glances(view):
    return view.window_probs


def score_large_values(view):
    return view.values.norm(dim=-1)


_KNOWN = (
    score,
    score_the_typical,
    score_the_newest,
    score_the_oldest,
    score_the_sum,
    score_the_last_glances,
    score_large_values,
)


def run_policy(fn: Callable[[View], Tensor], text: int, capacity: int) -> dict[str, int]:
    """Return how many questions about two texts were asked, how many pass, and how many were answered right.

    The model reads the texts, each head keeps ``capacity`` of 193 tokens, and the questions come after that.
    """
    right = (_known_right if fn in _KNOWN else _right)(fn, text, capacity)
    asked = sum(len(case.asked) for case in _cases(text))
    return {"asked": asked, "enough": ceil(ENOUGH * asked), "right": right}


def _right(fn: Callable[[View], Tensor], text: int, capacity: int) -> int:
    from minikv.eviction.study.curves import evicting_with, shared_out
    from minikv.eviction.study.suite import answer
    from minikv.memory.bandwidth import only

    evicting = evicting_with(_Own(fn), shared_out(capacity), scope="head")
    model = deepcopy(_model())  # the time limit may cut a run before its eviction is taken out again
    with only(1):  # beside another notebook, the threads of so small a model wait longer than they compute
        return round(answer(model, _cases(text), evicting=evicting).right)


# Cached, since the reference and the known wrong answers are compared with every learner's runs.
_known_right = cache(_right)


@cache
def _cases(text: int) -> tuple:
    from minikv.eviction.study.tasks import make_cases

    return tuple(make_cases("multikey", TEXTS, seed=text, length=LENGTH))


@cache
def _model():
    from minikv.models import load

    return load("tiny-gqa", device="cpu").model


def good_enough(expected: Any, got: Any) -> bool:
    """Return whether ``got`` answers enough where ``expected`` does; elsewhere, whether the two are equal."""
    if _passes(expected):
        return _passes(got)
    return expected == got


def _passes(found: dict) -> bool:
    return found["right"] >= found["enough"]


def draw_runs(rng) -> list[dict]:
    """Draw thirty times two texts."""
    return [{"text": rng.randrange(40), "capacity": CAPACITY} for _ in range(30)]


OWN = Exercise(
    id="14b.1",
    minutes=4,
    name="score",
    signature=("text", "capacity"),
    cases=draw_runs,
    reference=score,
    drive=run_policy,
    equal=good_enough,
    misconceptions=(
        Misconception("typical", score_the_typical, within=("summed",)),
        Misconception("newest", score_the_newest),
        Misconception("oldest", score_the_oldest),
        Misconception("summed", score_the_sum),
        Misconception("last_glances", score_the_last_glances),
        Misconception("large_values", score_large_values),
    ),
    limit_s=60.0,
)
