"""The heat-map widget's drawing: an ``EvictionTrace`` as shades, roles and sentences of one language."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minikv.i18n import text
from minikv.models.recall import Question
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.eviction.study.trace import EvictionTrace

SHADES = 9
GONE, NOT_YET, LEAVING = "-", ".", "x"
SINK, HEAVY, RECENT = "SHR"


def draw_trace(
    trace: "EvictionTrace",
    questions: Sequence[Question],
    word: Callable[[int], str],
    lang: str,
) -> dict[str, Any]:
    """Return the view of ``trace``, as heat_map.js reads it: a map for each layer and head, and the steps.

    ``questions`` are those of the text; ``word`` gives a token id's word.
    """
    asked = _asked(trace, questions)
    tails = [_tail(trace, step, asked, word, lang) for step in range(trace.steps)]
    heads: list[int | None] = [None, *range(trace.heads)] if trace.heads > 1 else [None]
    return {
        "maps": {
            str(layer): {
                "all" if head is None else str(head): _map(trace, place, head, word, tails, lang)
                for head in heads
            }
            for place, layer in enumerate(trace.layers)
        },
        "steps": [_step(trace, step, asked, word) for step in range(trace.steps)],
        "status": "",
        "error": False,
    }


def roles_of(trace: "EvictionTrace", layer: int, head: int | None, step: int) -> str:
    """Return a letter a token, for the ``layer``-th traced layer: S, H and R are kept as sink, by score and as recent.

    ``x``: evicted in this step; ``-``: before; ``.``: not read yet. ``head`` None: kept by at least one head.
    """
    heads = slice(None) if head is None else slice(head, head + 1)
    kept: np.ndarray = np.any(trace.kept[layer, heads, step], 0)
    resident: np.ndarray = ~np.all(np.isnan(trace.scores[layer, heads, step]), 0)
    seen = trace.prompt + step
    roles = []
    for token in range(trace.length):
        if token >= seen:
            roles.append(NOT_YET)
        elif not kept[token]:
            roles.append(LEAVING if resident[token] else GONE)
        elif token < trace.budget.n_sink:
            roles.append(SINK)
        else:
            roles.append(RECENT if token >= seen - trace.budget.n_recent else HEAVY)
    return "".join(roles)


def shades_of(scores: np.ndarray, roles: str, *, by_rank: bool) -> str:
    """Return the shades of one row's ``scores`` [n], "0" the lowest to "8" the highest.

    By score, the nine shades divide the range from the lowest score to the highest equally; by rank, they divide the
    resident tokens equally. A row of equal scores has the middle shade. A token that is not resident keeps its role's
    letter.
    """
    resident = np.array([role not in (GONE, NOT_YET) for role in roles])
    values = scores[resident].astype(np.float64)
    if by_rank:
        order = np.searchsorted(np.sort(values), values) + np.searchsorted(np.sort(values), values, "right")
        along = order / (2 * max(len(values), 1))  # mean of first and last rank among equal scores
    else:
        along = _stretch(values)
    shades = iter(np.minimum((along * SHADES).astype(int), SHADES - 1))
    return "".join(str(next(shades)) if here else roles[place] for place, here in enumerate(resident))


def reduced(scores: np.ndarray) -> np.ndarray:
    """Return ``scores`` [heads, n] reduced over the heads that hold a token: the mean, NaN where none does."""
    held = ~np.isnan(scores)
    total = np.where(held, scores, 0).sum(0)
    return np.where(held.any(0), total / np.maximum(held.sum(0), 1), np.nan).astype(np.float32)


def _stretch(values: np.ndarray) -> np.ndarray:
    """Scale the lowest finite value to 0 and the highest to 1; infinite values are at the ends."""
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    if high == low:
        return np.where(np.isfinite(values), 0.5, np.where(values > 0, 1.0, 0.0))
    return (np.clip(values, low, high) - low) / (high - low)


def _map(
    trace: "EvictionTrace",
    layer: int,
    head: int | None,
    word: Callable[[int], str],
    tails: Sequence[dict[str, str]],
    lang: str,
) -> dict[str, list]:
    """Return one layer and head: every step's shades, roles, scores and sentence."""
    found: dict[str, list] = {key: [] for key in ("score", "rank", "roles", "values", "status")}
    for step in range(trace.steps):
        scores = trace.scores[layer, :, step]
        row = reduced(scores) if head is None else scores[head]
        roles = roles_of(trace, layer, head, step)
        found["roles"].append(roles)
        found["score"].append(shades_of(row, roles, by_rank=False))
        found["rank"].append(shades_of(row, roles, by_rank=True))
        found["values"].append(
            [f"{row[token]:.3g}" for token, role in enumerate(roles) if role not in (GONE, NOT_YET)]
        )
        said = {"read": _read(trace, step, word, lang), "held": _held(trace, layer, head, step, roles, lang)}
        found["status"].append(text("widgets_heat_map.status", lang, **said, **tails[step]))
    return found


def _asked(trace: "EvictionTrace", questions: Sequence[Question]) -> dict[int, Question]:
    """Return the questions after the prompt, by the step with the logits that answer them."""
    steps = {question.position - trace.prompt + 1: question for question in questions}
    return {step: question for step, question in sorted(steps.items()) if 0 < step < trace.steps}


def _step(
    trace: "EvictionTrace", step: int, asked: dict[int, Question], word: Callable[[int], str]
) -> dict[str, Any]:
    question = asked.get(step)
    return {
        "word": word(int(trace.tokens[trace.prompt - 1 + step])),
        "source": question.source if question else None,
        "right": bool(question and trace.predicted[step] == question.answer_id),
    }


def _read(trace: "EvictionTrace", step: int, word: Callable[[int], str], lang: str) -> str:
    last = trace.prompt - 1 + step
    values = dict(step=step, last=trace.steps - 1, position=last, seen=last + 1)
    if not step:
        return text("widgets_heat_map.read_prompt", lang, **values)
    return text("widgets_heat_map.read_token", lang, word=word(int(trace.tokens[last])), **values)


def _held(trace: "EvictionTrace", layer: int, head: int | None, step: int, roles: str, lang: str) -> str:
    values = dict(
        layer=trace.layers[layer],
        head=head,
        heads=trace.heads,
        resident=int(trace.kept[layer, head or 0, step].sum()),
        union=sum(role in (SINK, HEAVY, RECENT) for role in roles),
        seen=trace.prompt + step,
        sinks=roles.count(SINK),
        heavy=roles.count(HEAVY),
        recent=roles.count(RECENT),
        capacity=trace.capacity[layer],
        n_sink=trace.budget.n_sink,
        budget=trace.capacity[layer] - trace.budget.n_sink - trace.budget.n_recent,  # this layer's own
        n_recent=trace.budget.n_recent,
    )
    if head is not None:
        return text("widgets_heat_map.held_by_head", lang, **values)
    return text(f"widgets_heat_map.held_by_{'one_row' if trace.heads == 1 else 'heads'}", lang, **values)


def _tail(
    trace: "EvictionTrace", step: int, asked: dict[int, Question], word: Callable[[int], str], lang: str
) -> dict[str, str]:
    """Return the text that is the same for every layer and head: the bytes, and the answers so far."""
    held, full = int(trace.bytes_held[step]), (trace.prompt + step) * trace.token_bytes
    sizes = dict(held=format_bytes(held), full=format_bytes(full), share=held / full)
    return {
        "bytes": text("widgets_heat_map.bytes", lang, **sizes),
        "asked": _answers(trace, [place for place in asked if place <= step], asked, word, lang),
    }


def _answers(
    trace: "EvictionTrace",
    so_far: Sequence[int],
    asked: dict[int, Question],
    word: Callable[[int], str],
    lang: str,
) -> str:
    if not so_far:
        return text("widgets_heat_map.asked_none", lang)
    last = so_far[-1]
    question = asked[last]
    return text(
        "widgets_heat_map.asked",
        lang,
        asked=len(so_far),
        right=sum(bool(trace.predicted[place] == asked[place].answer_id) for place in so_far),
        name=question.name,
        answer=question.answer,
        got=word(int(trace.predicted[last])),
        held=int(
            trace.kept[:, :, last - 1, question.source].sum()
        ),  # the tokens that this forward could read
        caches=len(trace.layers) * trace.heads,
    )
