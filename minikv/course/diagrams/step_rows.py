"""Prefill and decode: which rows of Q, K and V each step of a model computes, and which it reads from the cache."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.models.cache_argument import cache_in

TOP, ROW = 72, 17  # of the first row; from row to row
GAP = 32  # between two runs
LOOKS = {"Q": look("activations"), "K": look("k"), "V": look("v")}

Rows = tuple[int, int]  # that a step computes, and those that its attention sees


@contextmanager
def watch_rows(model: Any) -> Iterator[list[Rows]]:
    """Yield a list that grows by a step with each forward of ``model``, a decoder of transformers.

    A step is (fed, seen): the tokens for which the first layer makes rows of Q, K and V, and the keys that it sees.
    """
    steps: list[Rows] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        fed, cache = kwargs["hidden_states"].shape[1], cache_in(kwargs)
        steps.append((fed, fed if cache is None else cache.get_seq_length()))

    hook = model.model.layers[0].self_attn.register_forward_hook(note, with_kwargs=True)
    try:
        yield steps
    finally:
        hook.remove()


def step_rows(words: Sequence[str], runs: Mapping[str, Sequence[Rows]], lang: str = "en") -> Diagram:
    """Draw each of ``runs``, a name with its steps as ``watch_rows`` gives them, beside each other.

    ``words`` are the tokens in their order, which name the rows.
    """
    lang = pick_language(lang)
    most = max(seen for steps in runs.values() for _, seen in steps)
    left = max(width_of(word, 12) for word in words[:most]) + 16
    picture = Picture()
    for row, word in enumerate(words[:most]):
        picture.words(left - 10, TOP + row * ROW + 12, word, anchor="end", size=12)
    wide = (WIDTH - left - GAP * (len(runs) - 1)) / len(runs)
    lines = []
    for place, (name, steps) in enumerate(runs.items()):
        x = left + place * (wide + GAP)
        picture.words(x, 16, name, bold=True, size=16)
        for number, step in enumerate(steps):
            _draw(picture, step, x + number * wide / len(steps), wide / len(steps), most, lang)
            lines.append(_line(name, number, step, lang))
        total = text("diagrams_rows.total", lang, rows=sum(fed for fed, _ in steps))
        picture.words(x, TOP + most * ROW + 44, total, bold=True)
        lines.append(f"{name}{text('diagrams.colon', lang)}{total}")
    below = TOP + most * ROW + 72
    _legend(picture, below, lang)
    title = text("diagrams_rows.title", lang, steps=max(map(len, runs.values())), rows=most)
    alt = title + text("diagrams.colon", lang) + text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, [title, *lines], lang, width=WIDTH, height=below + 24)


def _draw(picture: Picture, step: Rows, x: float, wide: float, most: int, lang: str) -> None:
    (fed, seen), cell = step, (wide - 12) / 3
    picture.words(x, 40, text(f"diagrams_rows.{_kind(step)}", lang), size=12)
    for column, (name, fill) in enumerate(LOOKS.items()):
        at = x + column * cell
        picture.words(at + cell / 2 - 1, TOP - 8, name, anchor="middle", size=12, bold=True)
        for row in range(most):
            y = TOP + row * ROW
            if seen - fed <= row < seen:
                picture.box(at, y, cell - 2, ROW - 2, fill)
            elif row < seen and name != "Q":
                picture.box(at, y, cell - 2, ROW - 2, look("cached"))
            else:
                picture.box(at, y, cell - 2, ROW - 2, None, edge=0.3)
    picture.words(x, TOP + most * ROW + 18, text("diagrams_rows.computed", lang, rows=fed), size=12)


def _kind(step: Rows) -> str:
    fed, seen = step
    return "prefill" if fed == seen else "decode"


def _line(name: str, number: int, step: Rows, lang: str) -> str:
    fed, seen = step
    kind = text(f"diagrams_rows.{_kind(step)}", lang)
    return text("diagrams_rows.line", lang, name=name, number=number + 1, kind=kind, fed=fed, kept=seen - fed)


def _legend(picture: Picture, y: float, lang: str) -> None:
    entries = [(LOOKS.values(), "now"), ([look("cached")], "cached"), ([None], "absent")]
    x = 0.0
    for fills, key in entries:
        for fill in fills:
            picture.box(x, y, 16, 16, fill, edge=0 if fill else 0.3)
            x += 20
        said = text(f"diagrams_rows.{key}", lang)
        picture.words(x + 2, y + 13, said, size=12)
        x += 2 + width_of(said, 12) + 24
