"""Tests an exercise the way learners will: with its known wrong answers, right ones, and the empty stub.

A lesson's test is then one call an exercise:

    assert_exercise(find_exercise("02.1"), right=[as_a_product, as_a_loop], sequences="lengths")
"""

import copy
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from minikv.course.check import HINT_LEVELS, Verdict, run_check
from minikv.course.compare import difference
from minikv.course.exercise import Exercise, Prediction
from minikv.course.report import hint_text, report
from minikv.i18n import LANGUAGES, text

SEEDS = (0, 1, 2)
first_seed_only = False  # True in `make test`: answers are checked with the seed that `check` has by default


class Case(dict):
    """The arguments of a case, and ``key``, the seed and the place that they were drawn at; a copy keeps it."""

    key: tuple[int, int]


@dataclass(frozen=True)
class Remembering(Exercise):
    """An exercise whose ``known`` functions answer each case once: ``answers`` has what they said.

    The function that is checked is not among them. So it runs on arguments that it could change, as a learner's does.
    """

    known: tuple[Callable, ...] = ()
    answers: dict = field(default_factory=dict)

    def draw(self, seed: int) -> list[dict[str, object]]:
        if ("cases", seed) not in self.answers:
            self.answers["cases", seed] = cases = [Case(case) for case in super().draw(seed)]
            for place, case in enumerate(cases):
                case.key = (seed, place)
        return self.answers["cases", seed]

    def call(self, fn: Callable, args: Mapping[str, object]) -> object:
        key = getattr(args, "key", None)
        if key is None or not any(fn is one for one in self.known):
            return super().call(fn, args)
        if (id(fn), key) not in self.answers:
            self.answers[id(fn), key] = super().call(fn, args)  # what raises is not remembered
        return copy.deepcopy(self.answers[id(fn), key])


def remembering(exercise: Exercise, answers: dict, checked: Callable) -> Exercise:
    """``exercise`` for a check of ``checked``, with the ``answers`` that the checks before have left."""
    given = {each.name: getattr(exercise, each.name) for each in fields(Exercise)}
    if exercise.shrink is not None:  # what it yields are other arguments, without the key of these
        given["shrink"] = lambda args: exercise.shrink(dict(args))
    ours = [exercise.reference, *(misconception.wrong for misconception in exercise.misconceptions)]
    return Remembering(**given, known=tuple(fn for fn in ours if fn is not checked), answers=answers)


def assert_exercise(
    exercise: Exercise,
    *,
    right: Sequence[Callable],
    sequences: str | None = None,
    stub: Callable | None = None,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Everything that a lesson promises of an exercise.

    right      at least two right answers, written differently; neither is the reference.
    sequences  the argument that holds one entry a sequence: each seed must draw at least two in some case.
    stub       what the learner starts from, where it is no plain function (``Exercise.drive``).
    """
    assert_cases(exercise, sequences, seeds)
    if first_seed_only:
        seeds = seeds[:1]
    answers: dict = {}
    assert_right(exercise, [exercise.reference, *right], seeds, answers)
    bodies = {getattr(fn, "__code__", fn) for fn in [exercise.reference, *right]}
    assert len(right) >= 2, "give two right answers"
    assert len(bodies) == len(right) + 1, "two of the right answers are the same code"
    assert_mutants(exercise, seeds, answers)
    assert_hints(exercise)
    for empty in [stub] if stub else stubs(exercise):
        assert run_check(remembering(exercise, answers, empty), empty).kind == "not_attempted"
    assert_no_constant(exercise, answers)


def assert_cases(exercise: Exercise, sequences: str | None, seeds: Sequence[int]) -> None:
    """At least 30 cases, the same for the same seed, others for another, two sequences if any."""
    for seed in seeds:
        cases = exercise.draw(seed)
        assert len(cases) >= 30
        assert difference(cases, exercise.draw(seed)) is None, "the cases must depend on rng alone"
        if sequences is not None:
            assert max(len(case[sequences]) for case in cases) >= 2, "no case has two sequences"
    for a, b in itertools.combinations(seeds, 2):
        assert difference(exercise.draw(a), exercise.draw(b)), f"seeds {a} and {b} draw the same cases"


def assert_right(exercise: Exercise, right: Sequence[Callable], seeds: Sequence[int], answers: dict) -> None:
    for answer, seed in itertools.product(right, seeds):
        verdict = run_check(remembering(exercise, answers, answer), answer, seed=seed)
        assert verdict.passed, f"{answer} with seed {seed}: {verdict}"


def assert_mutants(exercise: Exercise, seeds: Sequence[int], answers: dict) -> None:
    """Every misconception fails under every seed, as itself, and each language prints its own three hints."""
    for misconception, seed in itertools.product(exercise.misconceptions, seeds):
        wrong = misconception.wrong
        verdict = run_check(remembering(exercise, answers, wrong), wrong, seed=seed)
        assert verdict.kind in ("wrong", "raised"), f"{misconception.name} with seed {seed}: {verdict.kind}"
        assert verdict.misconception == misconception.name, f"taken for {verdict.misconception}, seed {seed}"
        for lang, level in itertools.product(LANGUAGES, HINT_LEVELS):
            own = text(f"lesson_{exercise.lesson}.{exercise.name}.{misconception.name}.hint{level}", lang)
            said = report(exercise, verdict, name="fn", hint=level, seed=seed, lang=lang)
            assert own in said


def assert_hints(exercise: Exercise) -> None:
    """No two hints of an exercise, generic ones included, are the same sentence."""
    for lang in LANGUAGES:
        hints = [
            hint_text(exercise, Verdict("wrong", misconception=name), level, lang)
            for name in [None, *(m.name for m in exercise.misconceptions)]
            for level in HINT_LEVELS
        ]
        assert len(set(hints)) == len(hints)


def stubs(exercise: Exercise) -> list[Callable]:
    """The empty function as the exercise notebook may give it."""
    arguments = ", ".join(exercise.signature)
    bodies = ("...", "pass", '"""What to do."""', "return ...", "raise NotImplementedError", "return 2 * ...")
    made = []
    for body in bodies:
        namespace: dict = {}
        exec(f"def stub({arguments}):\n    {body}", namespace)
        made.append(namespace["stub"])
    return made


def assert_no_constant(exercise: Exercise, answers: dict) -> None:
    """Answering every case like the first must fail: the cases have more than one answer."""
    if exercise.drive is None:
        first = exercise.call(exercise.reference, exercise.draw(0)[0])

        def constant(*args: object) -> object:
            return first

        assert not run_check(remembering(exercise, answers, constant), constant).passed


def assert_prediction(
    prediction: Prediction,
    lesson: str,
    names: Mapping[str, object] | None = None,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """The line shown as the way to the answer, run with ``names`` in reach, gives the answer; the question
    can be asked in both languages and does not contain it."""
    for seed in seeds:
        values = prediction.ask(seed)
        assert values == prediction.draw(random.Random(f"{prediction.key}/{seed}"))
        answer = prediction.answer(**values)
        assert difference(answer, eval(prediction.how.format(**values), dict(names or {}))) is None
        for lang in LANGUAGES:
            question = text(f"lesson_{lesson}.{prediction.key}.question", lang, **values)
            assert question.strip()
            assert f"{answer:,}" not in question
            assert text(f"course.unit.{prediction.unit}", lang)


def assert_question(key: str, lesson: str) -> None:
    """Question, model answer and rubric stand in both languages; the rubrics are equally long."""
    points = set()
    for lang in LANGUAGES:
        assert text(f"lesson_{lesson}.{key}.question", lang).strip()
        assert text(f"lesson_{lesson}.{key}.answer", lang).strip()
        points.add(len(text(f"lesson_{lesson}.{key}.rubric", lang).strip().splitlines()))
    assert len(points) == 1
    assert points.pop() >= 2
