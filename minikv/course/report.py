"""A verdict in words: plain text, in English or Chinese. The sentences stand in ``messages/course.toml``."""

from minikv.course.check import HINT_LEVELS, Verdict
from minikv.course.compare import shown
from minikv.course.exercise import Exercise
from minikv.i18n import text


def report(exercise: Exercise, verdict: Verdict, *, name: str, hint: int, seed: int, lang: str) -> str:
    """The lines that ``check`` prints. ``name`` is what the learner calls the function."""

    def say(key: str, **values: object) -> str:
        return text(f"course.{key}", lang, **values)

    head = dict(id=exercise.id, cases=verdict.num_cases, failed=verdict.num_failed, seed=seed)
    match verdict.kind:
        case "passed":
            return say("passed", **head)
        case "not_attempted":
            return say("not_attempted", id=exercise.id)
        case "not_a_function":
            return say("not_a_function", id=exercise.id, kind=type(verdict.got).__name__)
        case "bad_signature":
            theirs = ", ".join(verdict.names)
            return say("bad_signature", id=exercise.id, yours=theirs, due=", ".join(exercise.signature))
    lines = [say(verdict.kind, limit_s=exercise.limit_s, argument=verdict.argument, **head)]
    lines += _table(verdict, say)
    if verdict.kind == "raised" and verdict.error is not None:
        lines.append(_error(verdict, say))
    if verdict.printed:
        lines += [say("printed"), *(f"    | {line}" for line in verdict.printed.splitlines())]
    note = _note(verdict, say)
    if note:
        lines.append(note)
    if verdict.kind in ("mutated", "timed_out"):  # the first line said it; hints are about the answer
        return "\n".join(lines)
    lines.append(say("hint", level=hint, text=hint_text(exercise, verdict, hint, lang)))
    if hint < HINT_LEVELS[-1]:
        lines.append(say("next_hint", id=exercise.id, name=name, level=hint + 1, seed=_seed(seed)))
    return "\n".join(lines)


def hint_text(exercise: Exercise, verdict: Verdict, level: int, lang: str) -> str:
    """The hint of ``level`` (1 to 3) for this verdict: the misconception's own, else the exercise's."""
    owner = exercise.name if verdict.misconception is None else f"{exercise.name}.{verdict.misconception}"
    return text(f"lesson_{exercise.lesson}.{owner}.hint{level}", lang)


def _table(verdict: Verdict, say) -> list[str]:
    rows = [(name, shown(value)) for name, value in verdict.case.items()]
    if verdict.kind == "wrong":
        rows += [(say("expected"), shown(verdict.expected)), (say("yours"), shown(verdict.got))]
    width = max((_columns(name) for name, _ in rows), default=0)
    return [
        f"    {name}{' ' * (width - _columns(name))} = {_indent(value, width + 7)}" for name, value in rows
    ]


def _columns(name: str) -> int:
    """Terminal columns: a Chinese character takes two."""
    return sum(2 if ord(char) > 0x2E80 else 1 for char in name)


def _indent(value: str, columns: int) -> str:
    return value.replace("\n", "\n" + " " * columns)


def _error(verdict: Verdict, say) -> str:
    error = verdict.error
    assert error is not None
    sentence = f"{error.kind.__name__}: {error.message}" if error.message else error.kind.__name__
    if error.line:
        return say("error_at_line", error=sentence, line=error.line, source=error.source)
    return say("error", error=sentence)


def _note(verdict: Verdict, say) -> str:
    kinds = dict(expected=type(verdict.expected).__name__, got=type(verdict.got).__name__)
    match verdict.differs:
        case "none" | "generator" | "length" | "keys":
            return say(f"differs_{verdict.differs}")
        case "type" if isinstance(verdict.got, float) and verdict.got == verdict.expected:
            return say("differs_whole", got=shown(verdict.got))
        case "type":
            return say("differs_type", **kinds)
        case "shape" | "dtype" as what if hasattr(verdict.expected, what):
            due, yours = getattr(verdict.expected, what), getattr(verdict.got, what)
            if what == "shape":
                due, yours = tuple(due), tuple(yours)
            return say(f"differs_{what}", expected=due, got=yours)
    return ""


def _seed(seed: int) -> str:
    return f", seed={seed}" if seed else ""
