"""A verdict in words, in English or Chinese: plain text, or HTML with a long case folded.

The sentences stand in ``messages/course.toml``.
"""

import math
import numbers
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from minikv.course.check import HINT_LEVELS, Verdict
from minikv.course.compare import Mismatch, cut, mismatch, shown
from minikv.course.exercise import Exercise, Refused
from minikv.i18n import escape_controls, has_text, text
from minikv.shown import shown_html

BRIEF = 80  # characters of a value that an earlier hint has shown whole
LONGEST_OPEN = 400  # characters of a report; a notebook folds the table of a longer one


@dataclass(frozen=True)
class Report:
    """Sentences, the ``table`` of the case and the two answers, and sentences again: all of them lines.

    ``summary`` names the table where it is folded.
    """

    before: list[str]
    table: list[str]
    after: list[str]
    summary: str

    @property
    def text(self) -> str:
        return "\n".join([*self.before, *self.table, *self.after])

    @property
    def html(self) -> str | None:
        """The sentences, with the table folded between them; None where the whole is short enough."""
        if not self.table or len(self.text) <= LONGEST_OPEN:
            return None
        before, after = (escape("\n".join(lines)) for lines in (self.before, self.after))
        return shown_html(
            f'<div class="minikv-line">{before}</div>'
            f"<details><summary>{escape(self.summary)}</summary>"
            f'<pre class="minikv-line">{escape(chr(10).join(self.table))}</pre></details>'
            f'<div class="minikv-line">{after}</div>'
        )


def report(exercise: Exercise, verdict: Verdict, *, name: str, hint: int, seed: int, lang: str) -> str:
    """The lines that ``check`` prints. ``name`` is the learner's name of the function."""
    return full_report(exercise, verdict, name=name, hint=hint, seed=seed, lang=lang).text


def full_report(
    exercise: Exercise, verdict: Verdict, *, name: str, hint: int, seed: int, lang: str
) -> Report:
    """The same, in its parts."""

    def say(key: str, **values: object) -> str:
        return text(f"course.{key}", lang, **values)

    def alone(sentence: str) -> Report:
        return Report([sentence], [], [], "")

    head = dict(id=exercise.id, cases=verdict.num_cases, failed=verdict.num_failed, seed=seed)
    match verdict.kind:
        case "passed":
            return alone(say("passed", **head))
        case "not_attempted":
            return alone(say("not_attempted", id=exercise.id))
        case "not_a_function":
            return alone(say("not_a_function", id=exercise.id, kind=type(verdict.got).__name__))
        case "bad_signature":
            theirs, due = ", ".join(verdict.names), ", ".join(verdict.due)
            return alone(say("bad_signature", id=exercise.id, yours=theirs, due=due))
    keys = f"lesson_{exercise.lesson}.{exercise.name}.key"
    expected, got = (_in_words(value, keys, lang) for value in (verdict.expected, verdict.got))
    verdict = replace(verdict, expected=expected, got=got)
    before = [say(verdict.kind, limit_s=exercise.limit_s, argument=verdict.argument, **head)]
    table = _table(verdict, say, whole=hint == HINT_LEVELS[0])
    lines: list[str] = []
    if verdict.kind == "raised" and verdict.error is not None:
        lines.append(_error(verdict, lang, say))
    if verdict.printed:
        printed = escape_controls(verdict.printed, keep="\t\n")
        lines += [say("printed"), *(f"    | {line}" for line in printed.splitlines())]
    note = _note(exercise, verdict, say)
    if note:
        lines.append(note)
    if verdict.kind not in ("mutated", "timed_out"):  # their first line said it; hints are about the answer
        lines.append(say("hint", level=hint, text=hint_text(exercise, verdict, hint, lang)))
        if hint < HINT_LEVELS[-1]:
            lines.append(say("next_hint", id=exercise.id, name=name, level=hint + 1, seed=_seed(seed)))
    return Report(before, table, lines, say("case_folded"))


def hint_text(exercise: Exercise, verdict: Verdict, level: int, lang: str) -> str:
    """The hint of ``level`` (1 to 3) for this verdict: the misconception's own, else the exercise's."""
    owner = exercise.name if verdict.misconception is None else f"{exercise.name}.{verdict.misconception}"
    return text(f"lesson_{exercise.lesson}.{owner}.hint{level}", lang)


def _table(verdict: Verdict, say, *, whole: bool) -> list[str]:
    """The case, what was expected and what came; not ``whole``: long values cut, since the first hint showed them."""
    rows = [(name, shown(value)) for name, value in verdict.case.items()]
    if verdict.kind == "wrong":
        rows += [(say("expected"), _answer(verdict.expected, say)), (say("yours"), _answer(verdict.got, say))]
    width = max((_columns(name) for name, _ in rows), default=0)
    values = [value if whole else _begun(value) for _, value in rows]
    lines = [
        f"    {name}{' ' * (width - _columns(name))} = {_indent(value, width + 7)}"
        for (name, _), value in zip(rows, values, strict=True)
    ]
    return lines if values == [value for _, value in rows] else [*lines, say("case_cut")]


def _begun(value: str) -> str:
    """The beginning of ``value``, in one line."""
    first = value.partition("\n")[0][:BRIEF]
    return value if value == first else f"{first} …"


def _answer(value: object, say) -> str:
    return say("refused", error=value.kind.__name__) if isinstance(value, Refused) else shown(value)


def _in_words(value: Any, keys: str, lang: str) -> Any:
    """Return ``value``, with each key of its dicts that has a sentence under ``keys`` in ``lang``."""
    if type(value) is dict:
        said = {key: f"{keys}.{key}" for key in value}
        return {
            str(text(said[key], lang)) if has_text(said[key]) else key: _in_words(one, keys, lang)
            for key, one in value.items()
        }
    return [_in_words(one, keys, lang) for one in value] if type(value) is list else value


def _columns(name: str) -> int:
    """Terminal columns: a Chinese character takes two."""
    return sum(2 if ord(char) > 0x2E80 else 1 for char in name)


def _indent(value: str, columns: int) -> str:
    return value.replace("\n", "\n" + " " * columns)


def _error(verdict: Verdict, lang: str, say) -> str:
    error = verdict.error
    assert error is not None
    message = cut(error.text(lang))
    sentence = f"{error.kind.__name__}: {message}" if message else error.kind.__name__
    if error.line:
        return say("error_at_line", error=sentence, line=error.line, source=error.source)
    return say("error", error=sentence)


def _note(exercise: Exercise, verdict: Verdict, say) -> str:
    """The kind of difference and its place in the answer; "" where the two values show it."""
    if not verdict.differs:
        return ""
    if (
        verdict.got is None and verdict.misconception is not None
    ):  # a known mistake: its hint says where None is from
        return ""
    if exercise.equal is not None:  # the exercise compares in its own way: no place to name
        if type(verdict.expected) is type(verdict.got):
            return ""
        return _how(Mismatch(verdict.differs, "", verdict.expected, verdict.got), say)
    found = mismatch(verdict.expected, verdict.got)
    if found is None:
        return ""
    how = _how(found, say)
    return say("differs_inside", how=how, path=found.path) if found.path else how


def _how(found: Mismatch, say) -> str:
    expected, got = found.expected, found.got
    if isinstance(expected, Refused):
        return say("differs_refusal_due", error=expected.kind.__name__)
    if isinstance(got, Refused):
        return say("differs_refused", error=got.kind.__name__)
    if _is_finite(expected) and _is_endless(got):
        return say("differs_finite", got=got)
    match found.kind:
        case "length" | "keys" as kind:
            return say(f"differs_{kind}")
        case "none" | "generator" as kind if not found.path:  # what the function itself returned
            return say(f"differs_{kind}")
        case "type" if _is_finite(expected) and _is_whole(got) and got == expected:
            return say("differs_whole", got=shown(got))
        case "type" | "none" | "generator":
            due, yours = _type_names(expected, got)
            return say("differs_type", expected=due, got=yours)
        case "shape":
            return say("differs_shape", expected=tuple(expected.shape), got=tuple(got.shape))
        case "dtype":
            return say("differs_dtype", expected=expected.dtype, got=got.dtype)
        case "value" if found.path and hasattr(expected, "dtype"):
            return say("differs_numbers")
        case "value" if found.path:
            return say("differs_value", expected=shown(expected), got=shown(got))
    return ""


def _is_finite(value: Any) -> bool:
    if isinstance(value, numbers.Integral):  # may be too large for a float
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _is_endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _type_names(expected: object, got: object) -> tuple[str, str]:
    """The two types' names, with their modules where the names alone are the same."""
    due, yours = type(expected), type(got)
    if due.__name__ != yours.__name__:
        return due.__name__, yours.__name__
    return f"{due.__module__}.{due.__qualname__}", f"{yours.__module__}.{yours.__qualname__}"


def _seed(seed: int) -> str:
    return f", seed={seed}" if seed else ""
