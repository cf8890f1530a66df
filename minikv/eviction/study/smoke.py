"""The decisions of eviction, checked without a model: ``minikv doctor --smoke``. Lesson 14.

Each policy gets a few scores with an answer worked out by hand; then tokens are evicted from a small cache of random
keys and values (``smoke_cache``). No transformers, no weights, less than a second: a failure here concerns every model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from minikv.eviction.policies.echo import Echo, EchoLayers
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.from_keys import CUR, LagKV, Leverage
from minikv.eviction.policies.literature import (
    H2O,
    TOVA,
    KeyDiff,
    Knorm,
    PyramidKV,
    Random,
    SnapKV,
    StreamingLLM,
)
from minikv.eviction.policies.policy import Policy, Seen, View
from minikv.eviction.policies.select import select
from minikv.i18n import text

TOKENS, SINKS, RECENT = 10, 1, 2  # of one text: the tokens 0, 8 and 9 stay whatever their score

# Attention as {query: {token: probability}}; the rest of a query's attention goes to token 0.
# Token 1 gets 3.0 of six queries, token 4 the largest probability of one, token 7 the most of each query that can see
# it (1.4 of three), token 6 the most of the newest query.
LOOKS = {
    **{query: {1: 0.5} for query in range(1, 5)},
    5: {4: 0.95},
    6: {1: 0.5},
    7: {1: 0.5, 7: 0.5},
    8: {7: 0.9},
    9: {6: 0.8},
}


@dataclass(frozen=True)
class Check:
    """One decision: its result ``found``, the expected ``wanted``, and the ``error`` raised instead, or None.

    ``key`` and ``values`` make its sentence.
    """

    key: str
    values: dict[str, Any]
    found: Any
    wanted: Any
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None and self.found == self.wanted

    def line(self, lang: str) -> str:
        """Return a line for a terminal; the line of a failure has the wrong result."""
        sentence = text(f"eviction.smoke_{self.key}", lang, **self.values)
        if self.passed:
            return f"[ok  ] {sentence}"
        if self.error is not None:
            return f"[FAIL] {sentence} {self.error}"
        values = {"found": _said(self.found), "wanted": _said(self.wanted)}
        return f"[FAIL] {sentence} {text('eviction.smoke_found', lang, **values)}"

    def as_dict(self, lang: str) -> dict[str, Any]:
        """Plain JSON values."""
        return {"check": self.key, **self.values, "passed": self.passed, "text": self.line(lang)}


def smoke() -> Iterator[Check]:
    """Yield every check when it has been made. A check that raises has failed, and the others go on."""
    from minikv.eviction.study.smoke_cache import CACHE_CHECKS

    for name, (policy, view, budget, wanted) in policy_cases().items():
        values = {"policy": name, "tokens": _said(wanted), "total": TOKENS}
        yield made("keeps", partial(kept, policy, view, budget), wanted, **values)
    for key, (check, wanted) in {**SELECT_CHECKS, **CACHE_CHECKS}.items():
        yield made(key, check, wanted)


def made(key: str, check: Callable[[], Any], wanted: Any, **values: Any) -> Check:
    """Return the check of that ``key``: whether ``check()`` is ``wanted``. An exception becomes its one-line error."""
    try:
        return Check(key, values, check(), wanted)
    except Exception as error:  # a broken installation may raise anything
        return Check(key, values, None, wanted, f"{type(error).__name__}: {error}".partition("\n")[0])


def policy_cases() -> dict[str, tuple[Policy, View, int, list[int]]]:
    """By name: a policy, its view, its budget, and the tokens that should stay."""
    window = torch.tensor([0.9, 0.2, 0.3, 0.4, 0.1, 0.6, 0.5, 0.7, 0.0, 0.0])
    spike = torch.zeros(TOKENS).index_fill(0, torch.tensor([4]), 1.0)  # its neighbours stay with it
    small = torch.ones(TOKENS, 4).index_fill(0, torch.tensor([2, 5]), 0.1)
    alone = torch.tensor([1.0, 0.0]).repeat(TOKENS, 1)
    alone[[3, 6]] = torch.tensor([0.0, 1.0])
    wide = torch.zeros(TOKENS, 4)
    wide[[2, 6]] = torch.arange(4.0)
    cases: dict[str, tuple[Policy, View, int, list[int]]] = {
        "streaming": (StreamingLLM(), view_of(), 2, [0, 6, 7, 8, 9]),
        "snapkv": (SnapKV(kernel=3), view_of(window=spike), 3, [0, 3, 4, 5, 8, 9]),
        "pyramidkv": (PyramidKV(kernel=3), view_of(window=spike), 3, [0, 3, 4, 5, 8, 9]),
        "tova": (TOVA(), view_of(window=window), 6, [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        "knorm": (Knorm(), view_of(keys=small), 2, [0, 2, 5, 8, 9]),
        "keydiff": (KeyDiff(), view_of(keys=alone), 2, [0, 3, 6, 8, 9]),
        "leverage": (Leverage(), view_of(keys=alone), 2, [0, 3, 6, 8, 9]),
        "cur": (CUR(), view_of(keys=small), 2, [0, 1, 3, 8, 9]),
        "lagkv": (LagKV(lag=5), view_of(keys=wide), 2, [0, 2, 6, 8, 9]),
        "expected-attention": (
            ExpectedAttention(),
            view_of(keys=torch.ones(TOKENS, 4), window=window),
            6,
            [0, 1, 2, 3, 5, 6, 7, 8, 9],
        ),
        "echo": (Echo(), view_of(state=window), 2, [0, 5, 7, 8, 9]),
        "echo-layers": (EchoLayers(), view_of(state=window), 2, [0, 5, 7, 8, 9]),
    }
    for reduce, token in {"sum": 1, "mean": 7, "max": 4, "decay": 6}.items():
        policy = H2O(reduce, decay=0.5)
        cases[f"h2o {reduce}"] = (policy, view_of(state=watched(policy, (6, 3, 1))), 1, [0, token, 8, 9])
    return cases


def view_of(keys: Tensor | None = None, state: Tensor | None = None, window: Tensor | None = None) -> View:
    """A view of a text with one head: ``keys`` [S, D], ``state`` and ``window`` [S]; missing ones are zero."""
    keys = torch.zeros(TOKENS, 4) if keys is None else keys
    return View(
        keys=keys[None, None],
        values=keys[None, None],
        state=torch.zeros(1, 1, TOKENS) if state is None else state.view(1, 1, -1),
        window_probs=None if window is None else window.view(1, 1, -1),
        positions=torch.arange(TOKENS).view(1, 1, -1),
        valid=torch.ones(1, TOKENS, dtype=torch.bool),
    )


def watched(policy: Policy, chunks: tuple[int, ...]) -> Tensor:
    """[S]: the state of ``policy`` after forwards of so many of the queries of ``LOOKS`` each."""
    probs = torch.zeros(TOKENS, TOKENS)
    for query in range(TOKENS):
        for token, share in LOOKS.get(query, {}).items():
            probs[query, token] = share
        probs[query, 0] = 1 - probs[query].sum()
    state, start = torch.zeros(1, 1, 0), 0
    for queries in chunks:
        end = start + queries
        rows, weight = probs[start:end, :end], policy.query_weight(torch.arange(queries - 1, -1, -1))
        rows = rows if weight is None else rows * weight[:, None]
        sums = rows.amax(0) if policy.over_queries == "max" else rows.sum(0)
        seen = Seen(pad(state, (0, queries)), queries, torch.arange(end).view(1, 1, -1))
        state, start = policy.observe(sums.view(1, 1, -1), seen), end
    return state.flatten()


def kept(policy: Policy, view: View, budget: int) -> list[int]:
    """The tokens that stay beside ``SINKS`` and ``RECENT``."""
    chosen = select(
        policy.score(view).expand(1, view.keys.shape[1], -1),
        valid=view.valid,
        n_sink=SINKS,
        n_recent=RECENT,
        budget=budget,
    )
    return chosen[0, 0].tolist()


def _random() -> bool:
    """A seed decides which tokens stay, and over many seeds every token stays at least once."""
    first, again = ([kept(Random(seed), view_of(), 2) for seed in range(64)] for _ in range(2))
    return first == again and set().union(*first) == set(range(TOKENS))


def _pyramid() -> bool:
    """The layers' budgets fall, and their sum is that of equal budgets."""
    shares = PyramidKV().layer_budgets(10, 5)
    return sum(shares) == 50 and shares[0] > shares[-1] and list(shares) == sorted(shares, reverse=True)


def _protected() -> list[int]:
    """Sinks and recent tokens have the worst scores, all others are equal: of these the earlier stay."""
    score = torch.zeros(1, 1, TOKENS)
    score[..., 0], score[..., 8], score[..., 9] = -torch.inf, -1e38, -1.0
    valid = torch.ones(1, TOKENS, dtype=torch.bool)
    return select(score, valid=valid, n_sink=SINKS, n_recent=RECENT, budget=2)[0, 0].tolist()


def _padded() -> list[int]:
    """Padding goes first, and the sinks are the first tokens behind it."""
    valid = torch.arange(TOKENS) >= 3
    score = torch.where(valid, 0.0, 9.0).view(1, 1, -1)
    return select(score, valid=valid[None], n_sink=2, n_recent=1, budget=1)[0, 0].tolist()


def _scopes() -> list[list[int]]:
    """Return the kept tokens of two heads that disagree: with "head" each its own, with "layer" the best mean."""
    score = torch.zeros(1, 2, TOKENS)
    score[0, 0, 3], score[0, 1, 5], score[0, :, 6] = 9.0, 8.0, 5.0
    given = {"valid": torch.ones(1, TOKENS, dtype=torch.bool), "n_sink": 0, "n_recent": 1, "budget": 1}
    return [head for scope in ("head", "layer") for head in select(score, scope=scope, **given)[0].tolist()]


SELECT_CHECKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "random": (_random, True),
    "pyramid": (_pyramid, True),
    "protected": (_protected, [0, 1, 2, 8, 9]),
    "padded": (_padded, [3, 4, 5, 9]),
    "scopes": (_scopes, [[3, 9], [5, 9], [6, 9], [6, 9]]),
}
"""The checks by the key of their sentence: a function, and its expected result."""


def _said(value: Any) -> str:
    """A list of tokens as a sentence shows it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
