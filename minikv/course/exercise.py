"""What a lesson brings: exercises, predictions and questions. How to write one stands here.

A lesson is a Python package and a table of sentences:

    minikv/course/lessons/l02/              what is asked, what is right, which wrong answers we know
    minikv/messages/lesson_02.toml          every sentence, in both languages

The package's ``__init__.py`` ends with one name, ``LESSON``; a long exercise has a file of its own beside it, named
after its content:

    def per_token(layers, kv_heads, head_dim, dtype_bytes):
        return 2 * layers * kv_heads * head_dim * dtype_bytes

    LESSON = Lesson(
        exercises=(
            Exercise(
                id="02.1",
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
    ["per_token.hint2"]              1 the symptom, 2 the broken invariant, 3 where to look
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
    """A wrong answer that we know, and that has its own three hints.

    ``wrong`` takes what the reference takes. A learner whose function answers like ``wrong`` on every case on
    which ``wrong`` and the reference differ, and is right on all the others, holds this misconception. ``wrong``
    must end, and not change its input.

    Some case must be its own: wrong there, with an answer that no other misconception gives, so that this one case
    tells which hint is due. ``within`` names the others that are left out of this: those of which it is a special
    case, and those that pick the same one where there is little to pick from (a unit, a victim, None).
    """

    name: str
    wrong: Callable
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write, and how to judge it.

    id              "02.1": the lesson's number, a dot, the exercise's place in it.
    name            the key of its hints.
    signature       the names of the arguments, in order.
    cases           ``cases(rng)``: the arguments to try, each a tuple in order or a dict by name.
    reference       the right answer. Ints are compared exactly, floats to 1e-9, arrays with shape and dtype.
    misconceptions  the wrong answers we know; a learner's is the one that explains most of the failures.
    equal           ``equal(expected, got) -> bool`` instead of the comparison above.
    drive           ``drive(fn, *args)`` instead of ``fn(*args)``, where the learner writes a class or a
                    function that is to change what it is given: use it, return what can be observed.
                    (``signature`` is then what ``cases`` draws, and ``reference`` is driven alike: where it
                    is a function, its argument names are those that the learner's must have. Stubs raise
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


def _by_name(signature: tuple[str, ...], case: Case) -> dict[str, object]:
    if isinstance(case, Mapping):
        return {name: case[name] for name in signature}
    return dict(zip(signature, case, strict=True))


@dataclass(frozen=True)
class Prediction:
    """A number to guess before anything is shown.

    key        the question is the lesson's sentence ``<key>.question``, filled with the drawn values.
    draw       ``draw(rng)``: the values of the question, by name; ``{}`` where there is nothing to draw.
    how        one line of Python that gives the answer, filled with the same values ({model!r}).
    unit       a unit of ``messages/course.toml``: "bytes", "tokens", "GiB", "times", ...
    answer     ``answer(**values)`` computes the number; nobody types it.
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
    """All that ``check``, ``predict`` and ``explain`` know of a lesson. ``questions`` are keys to explain."""

    exercises: tuple[Exercise, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    questions: tuple[str, ...] = ()
