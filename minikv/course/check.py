"""Judges a learner's function against an exercise: passed, or the smallest counterexample and a hint.

``run_check`` decides and returns a ``Verdict``; ``check`` prints it in the learner's language.
"""

import copy
import dis
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, cast

from minikv.course import guard, moved
from minikv.course.compare import difference, size
from minikv.course.exercise import Exercise, Misconception
from minikv.course.lessons import find_exercise
from minikv.course.progress_file import record_attempt
from minikv.course.say import say, say_folded
from minikv.course.your_engine.kept import keep_part
from minikv.errors import ArgumentError
from minikv.i18n import text

HINT_LEVELS = (1, 2, 3)
_MAX_SHRINK_STEPS = 200
_DIAGNOSIS_S = 60.0  # for our own wrong answers, and for a second comparison of the learner's answer


@dataclass(frozen=True)
class Verdict:
    """The result of a check. The fields after ``num_failed`` describe the smallest failing case.

    kind is one of:
      "passed"          every case
      "not_attempted"   the stub as it was: NotImplementedError, or a body of ``...``
      "not_a_function"  the object cannot be called
      "bad_signature"   ``names`` are the learner's argument names, ``due`` the right ones
      "wrong"           ``expected`` and ``got`` differ; ``differs`` says how (see compare.difference)
      "raised"          ``error``: exception type, message, the learner's own line
      "timed_out"       no answer within ``Exercise.limit_s`` seconds for all cases together
      "mutated"         it changed its argument ``argument``, whatever its answer
    """

    kind: str
    num_cases: int = 0
    num_failed: int = 0
    case: Mapping[str, object] = field(default_factory=dict)
    expected: object = None
    got: object = None
    differs: str = ""
    error: guard.Raised | None = None
    argument: str = ""
    misconception: str | None = None
    names: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    printed: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


@dataclass(frozen=True)
class _Trial:
    """One case, the reference's answer, and the outcome of the function under test."""

    args: dict[str, object]
    expected: object
    outcome: guard.Outcome
    printed: str
    mutated: str  # the first argument that was changed, or ""
    differs: str | None

    @property
    def failed(self) -> bool:
        return not isinstance(self.outcome, guard.Returned) or bool(self.mutated) or self.differs is not None


def run_check(exercise: Exercise, fn: object, *, seed: int = 0) -> Verdict:
    """Run ``fn`` on the cases of ``seed``. Any behaviour of ``fn`` gives a verdict; only Ctrl-C is raised.

    The same time limit covers the comparison of its result; an object that cannot be compared is a wrong answer. A
    function that ends the process (``os._exit``) or fills it (a fork bomb) is not stopped: see ``guard``.
    """
    if fn is ...:
        return Verdict("not_attempted")
    if not callable(fn):
        return Verdict("not_a_function", got=fn)
    names, due = _guarded(lambda: _argument_names(fn), exercise.limit_s, None), _due_names(exercise)
    if names is not None and due is not None and not _fits(names, due):
        return Verdict("bad_signature", names=names, due=due)
    end = time.monotonic() + exercise.limit_s
    trials: list[_Trial] = []
    for args in exercise.draw(seed):
        trials.append(_try(exercise, fn, args, end - time.monotonic()))
        if isinstance(trials[-1].outcome, guard.TimedOut):
            break
    failed = [trial for trial in trials if trial.failed]
    if not failed:
        return Verdict("passed", num_cases=len(trials))
    if all(_is_stub_answer(fn, trial.outcome) for trial in trials):
        return Verdict("not_attempted", num_cases=len(trials), num_failed=len(failed))
    misconception, explained = _guarded(lambda: _diagnose(exercise, trials), _DIAGNOSIS_S, (None, []))
    smallest = min(explained or failed, key=lambda trial: size(trial.args))
    if exercise.shrink is not None and misconception is None:
        smallest = _shrink(exercise, fn, smallest, end)
    verdict = _describe(smallest)
    return replace(verdict, num_cases=len(trials), num_failed=len(failed), misconception=misconception)


def check(id: str, fn: object, hint: int = 1, seed: int = 0, *, lang: str = "en") -> None:
    """Print, in ``lang``, whether ``fn`` solves the exercise ``id`` ("02.1"). A notebook folds a long case.

    ``hint`` is the level of the hint after a wrong answer: 1 mistake, 2 broken invariant, 3 where to look.
    Another ``seed`` draws other cases. An id that has moved ("11.3") is judged as the new one, which is printed first.
    An attempt is recorded on this machine (``minikv progress``), the function is not; of a part of nano that passes,
    the source is kept for ``my_engine``. Raises ``UnknownNameError`` for an unknown id and ``ArgumentError`` for an id
    that is no text and for an unknown hint level.
    """
    from minikv.course.report import full_report

    exercise = find_exercise(id)
    if hint not in HINT_LEVELS:
        raise ArgumentError("unknown_hint_level", hint=hint)
    if id in moved.EXERCISES:
        say(text("course.moved_exercise", lang, old=id, new=exercise.id), lang)
    verdict = run_check(exercise, fn, seed=seed)
    how: dict[str, Any] = dict(hint=int(hint), seed=seed, lang=lang)
    said = _guarded(lambda: full_report(exercise, verdict, name=_name(fn), **how), exercise.limit_s, None)
    if said is None:  # an answer or an error that cannot be shown in time is left out
        bare = replace(verdict, got=_Unshown(), differs="", error=None)
        said = full_report(exercise, bare, name="fn", **how)
    say_folded(said.text, said.html, lang)
    # The verdict is printed already, so that the learner does not wait for its record.
    if verdict.num_cases and verdict.kind != "not_attempted":
        record_attempt(exercise.id, verdict.passed, seed, lang)
    if verdict.passed:
        keep_part(exercise.id, fn, lang)


class _Unshown:
    def __repr__(self) -> str:
        return "…"


def _name(fn: object) -> str:
    name = getattr(fn, "__name__", "")
    return name if type(name) is str and name.isidentifier() else "fn"  # a lambda has no name to print


def _guarded(fn: Callable[[], Any], limit_s: float, otherwise: Any) -> Any:
    """``fn()``, which touches an object of the learner's; ``otherwise`` where that raises or does not end."""
    outcome, _ = guard.call(fn, limit_s)
    return outcome.value if isinstance(outcome, guard.Returned) else otherwise


def _try(exercise: Exercise, fn: Callable, args: dict, limit_s: float) -> _Trial:
    expected = exercise.call(exercise.reference, copy.deepcopy(args))
    given = copy.deepcopy(args)

    def judged() -> tuple[object, str | None, str]:
        got = exercise.call(fn, given)
        mutated = next((name for name in args if difference(args[name], given[name])), "")
        return got, _judge(exercise, expected, got), mutated

    outcome, printed = guard.call(judged, limit_s)
    if not isinstance(outcome, guard.Returned):
        return _Trial(args, expected, outcome, printed, "", None)
    value, differs, mutated = cast(tuple[object, str | None, str], outcome.value)
    return _Trial(args, expected, guard.Returned(value), printed, mutated, differs)


def _judge(exercise: Exercise, expected: object, got: object) -> str | None:
    if exercise.equal is None:
        return difference(expected, got)
    try:
        return None if exercise.equal(expected, got) else "value"
    except BaseException as error:
        if guard.passes(error):
            raise
        return "type"  # the learner's object does not have what `equal` looks at


def _describe(trial: _Trial) -> Verdict:
    known = Verdict("wrong", case=trial.args, expected=trial.expected, printed=trial.printed)
    match trial.outcome:
        case guard.TimedOut():
            return replace(known, kind="timed_out")
        case guard.Raised() as error:
            return replace(known, kind="raised", error=error)
        case guard.Returned(value) if trial.differs is not None:
            return replace(known, got=value, differs=trial.differs)
        case guard.Returned(value):
            return replace(known, kind="mutated", got=value, argument=trial.mutated)


def _diagnose(exercise: Exercise, trials: list[_Trial]) -> tuple[str | None, list[_Trial]]:
    """The misconception that fails where the learner fails, with the same answers, and the cases that it explains.

    Of several the one that explains most cases.
    """
    best: tuple[str | None, list[_Trial]] = (None, [])
    for misconception in exercise.misconceptions:
        explained = _explained(exercise, misconception, trials)
        if len(explained) > len(best[1]):
            best = (misconception.name, explained)
    return best


def _explained(exercise: Exercise, misconception: Misconception, trials: list[_Trial]) -> list[_Trial]:
    explained = []
    for trial in trials:
        wrong = _untimed(exercise, misconception.wrong, trial.args)
        if isinstance(wrong, guard.Returned) and _judge(exercise, trial.expected, wrong.value) is None:
            if trial.failed:
                return []  # the misconception is right here, and the learner is not: its hint would mislead
            continue
        if not _same(exercise, wrong, trial.outcome):
            return []
        explained.append(trial)
    return explained


def _untimed(exercise: Exercise, fn: Callable, args: dict) -> guard.Outcome:
    """``fn`` on one case, without a time limit: for functions of our own."""
    try:
        return guard.Returned(exercise.call(fn, copy.deepcopy(args)))
    except Exception as error:
        return guard.Raised(type(error), str(error), 0, "")


def _same(exercise: Exercise, wrong: guard.Outcome, learners: guard.Outcome) -> bool:
    match wrong, learners:
        case guard.Returned(a), guard.Returned(b):
            return _judge(exercise, a, b) is None
        case guard.Raised(kind=a), guard.Raised(kind=b):
            return a is b
    return False


def _shrink(exercise: Exercise, fn: Callable, trial: _Trial, end: float) -> _Trial:
    """Take the first smaller case that still fails, and repeat from it."""
    assert exercise.shrink is not None
    for _ in range(_MAX_SHRINK_STEPS):
        for args in exercise.shrink(copy.deepcopy(trial.args)):
            if size(args) >= size(trial.args) or time.monotonic() > end:
                continue
            smaller = _try(exercise, fn, args, end - time.monotonic())
            if smaller.failed and type(smaller.outcome) is type(trial.outcome):
                trial = smaller
                break
        else:
            return trial
    return trial


def _due_names(exercise: Exercise) -> tuple[str, ...] | None:
    """The names that the learner's arguments must have; None where the learner writes a class."""
    if exercise.drive is None:
        return exercise.signature
    names = _argument_names(exercise.reference) if inspect.isfunction(exercise.reference) else None
    return None if names is None else tuple(name.removesuffix("=") for name in names)


def _argument_names(fn: Callable) -> tuple[str, ...] | None:
    """The arguments, those with a default marked ``=``; None where ``*args`` takes all or the signature is unknown."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    optional = [p.name for p in by_position if p.default is not p.empty]
    return (*required, *(f"{name}=" for name in optional))


def _fits(names: tuple[str, ...], due: tuple[str, ...]) -> bool:
    """Whether the due names come first and in order; the others must have a default."""
    bare = tuple(name.removesuffix("=") for name in names)
    return bare[: len(due)] == due and all(name.endswith("=") for name in names[len(due) :])


def _is_stub_answer(fn: Callable, outcome: guard.Outcome) -> bool:
    match outcome:
        case guard.Raised(kind=kind, message=message):
            half_filled = kind is TypeError and "ellipsis" in message  # `2 * ...`
            return issubclass(kind, NotImplementedError) or half_filled
        case guard.Returned(value):
            return value is ... or (value is None and _does_nothing(fn))
    return False


def _does_nothing(fn: Callable) -> bool:
    """Whether the body is only ``pass``, ``...`` or a docstring: its bytecode returns a constant."""
    if type(fn) is not FunctionType:
        return False
    return {i.opname for i in dis.get_instructions(fn.__code__)} <= {
        "RESUME",
        "NOP",
        "LOAD_CONST",
        "RETURN_CONST",
        "RETURN_VALUE",
    }
