"""The parts of a lesson: exercises, predictions and questions, and how to write them.

A lesson is a Python package and a table of sentences:

    minikv/course/lessons/l02/              the exercises, their right answers and the known wrong ones
    minikv/messages/lesson_02.toml          every sentence, in both languages

The package's ``__init__.py`` ends with one name, ``LESSON``; a long exercise has a file of its own beside it, named
after its content:

    def per_token(layers, kv_heads, head_dim, dtype_bytes):
        return 2 * layers * kv_heads * head_dim * dtype_bytes

    LESSON = Lesson(
        exercises=(
            Exercise(
                id="02.1",
                minutes=3,
                name="per_token",
                signature=("layers", "kv_heads", "head_dim", "dtype_bytes"),
                cases=lambda rng: [(rng.randint(2, 80), rng.randint(2, 16), 64, 2) for _ in range(40)],
                reference=per_token,
                misconceptions=(
                    Misconception("forgot_v", lambda *args: per_token(*args) // 2),
                ),
            ),
        ),
        predictions=(
            Prediction(
                "llama_token",
                lambda rng: {"layers": rng.choice([28, 32])},
                how="2 * {layers} * 8 * 128 * 2",
                unit="bytes",
                answer=lambda layers: per_token(layers, 8, 128, 2),
            ),
        ),
        questions=("why_two",),
    )

The sentences are TOML tables with a quoted, flat key (the dots belong to the key) and one text a language:

    ["per_token.hint1"]              the exercise's own three hints, when no known wrong answer matches:
    ["per_token.hint2"]              1 the mistake, 2 the broken invariant, 3 where to look
    ["per_token.hint3"]
    ["per_token.forgot_v.hint1"]     the same three for the misconception "forgot_v"
    ["llama_token.question"]         a prediction's question; {placeholders} are the drawn values
    ["why_two.question"]             a question to explain
    ["why_two.answer"]               its model answer
    ["why_two.rubric"]               its points, one a line, as many lines in one language as in the other

Each has ``en = "..."`` and ``zh = "..."``; a literal brace is doubled. A hint has no placeholders: the
counterexample is printed above it. Test a lesson with ``tests/course/mutants.py``.

Cases: at least 30, from small to large, drawn from ``rng`` and nothing else; at least two sequences, no
dimension of 1 unless that is the point, lengths on, below and above block multiples.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Case = Sequence | Mapping


@dataclass(frozen=True)
class Misconception:
    """A known wrong answer, with its own three hints.

    ``wrong`` takes the reference's arguments. A function has this misconception if it answers like ``wrong`` on every
    case on which ``wrong`` and the reference differ, and is right on all the others. ``wrong`` must end, and not change
    its input.

    At least one case must be its own: wrong there, with an answer that no other misconception gives, so that this case
    tells which hint is due. ``within`` names exceptions to this rule: misconceptions of which it is a special case, and
    those with the same choice where there are few choices (a unit, a victim, None).
    """

    name: str
    wrong: Callable
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write, and how to judge it.

    id              "02.1": the lesson's number, a dot, a number of its own. A moved exercise's is never given again.
    minutes         what a learner fresh from the lesson needs, reading the task included: an estimate.
    name            the key of its hints.
    signature       the names of the arguments, in order.
    cases           ``cases(rng)``: the arguments to try, each a tuple in order or a dict by name.
    reference       the right answer. Ints are compared exactly, floats to 1e-9, arrays with shape and dtype.
    misconceptions  the known wrong answers; a learner's is the one that explains most of the failures.
    equal           ``equal(expected, got) -> bool`` instead of the comparison above.
    drive           ``drive(fn, *args)`` instead of ``fn(*args)``, where the learner writes a class or a
                    function that changes its arguments: use it, return the observable result.
                    (``signature`` then names the values that ``cases`` draws, and ``reference`` is driven
                    alike: if it is a function, the learner's must have its argument names. Stubs raise
                    NotImplementedError.)
    shrink          ``shrink(args: dict) -> iterable of smaller dicts``: valid cases to try for a smaller
                    counterexample. Not needed when ``cases`` starts small.
    limit_s         seconds for all cases together.
    """

    id: str
    name: str
    signature: tuple[str, ...]
    cases: Callable[[random.Random], Sequence[Case]]
    reference: Callable
    misconceptions: tuple[Misconception, ...] = ()
    equal: Callable[[object, object], bool] | None = None
    drive: Callable | None = None
    shrink: Callable[[dict], Iterable[dict]] | None = None
    limit_s: float = 5.0
    minutes: int = 0

    @property
    def lesson(self) -> str:
        """The number of the lesson it belongs to: "02"."""
        return self.id.partition(".")[0].lower()

    def draw(self, seed: int) -> list[dict[str, object]]:
        """The cases of ``seed``, each a dict by argument name in the signature's order."""
        drawn = self.cases(random.Random(f"{self.id}/{seed}"))
        return [_by_name(self.signature, case) for case in drawn]

    def call(self, fn: Callable, args: Mapping[str, object]) -> object:
        """``fn`` on one case, as the check calls it."""
        values = [args[name] for name in self.signature]
        return fn(*values) if self.drive is None else self.drive(fn, *values)


@dataclass(frozen=True)
class Refused:
    """What ``Exercise.drive`` records for a call that raised ``kind``, where refusing can be the right answer.

    The report says in words what should be raised.
    """

    kind: type[Exception]


def _by_name(signature: tuple[str, ...], case: Case) -> dict[str, object]:
    if isinstance(case, Mapping):
        return {name: case[name] for name in signature}
    return dict(zip(signature, case, strict=True))


@dataclass(frozen=True)
class Prediction:
    """A number to guess before its computation is shown.

    key        the question is the lesson's sentence ``<key>.question``, filled with the drawn values.
    draw       ``draw(rng)``: the values of the question, by name; ``{}`` where there is nothing to draw.
    how        one line of Python that gives the answer, filled with the same values ({model!r}).
    unit       a unit of ``messages/course.toml``: "bytes", "tokens", "GiB", "times", ...
    answer     ``answer(**values)`` computes the number; it is never typed in.
    tolerance  "exact", or a ratio: 1.25 accepts guesses from answer / 1.25 to answer * 1.25.
    """

    key: str
    draw: Callable[[random.Random], dict[str, object]]
    how: str
    unit: str
    answer: Callable[..., int | float]
    tolerance: float | str = "exact"

    def ask(self, seed: int) -> dict[str, object]:
        """The values that ``seed`` draws."""
        return self.draw(random.Random(f"{self.key}/{seed}"))


@dataclass(frozen=True)
class Lesson:
    """The data of a lesson for ``check``, ``predict`` and ``explain``. ``questions`` are keys to explain."""

    exercises: tuple[Exercise, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    questions: tuple[str, ...] = ()
