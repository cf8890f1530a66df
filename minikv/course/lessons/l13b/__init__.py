"""Lesson 13b: fewer and cheaper steps.

Exercises: ``prompt_lookup, draft_step``.
"""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l13b.draft_step import ROLLBACK, Scroll, decode_step, next_token
from minikv.course.lessons.l13b.prompt_lookup import LOOKUP

BLOCK_SIZE = 16  # of the prediction


def _steps(tokens: int, drafts: int, right: int) -> int:
    """Return the steps for ``tokens`` new tokens, if the first ``right`` of the ``drafts`` of each step are right."""
    scroll, newest, made, steps = Scroll([1, 2], BLOCK_SIZE), 3, 0, 0
    while made < tokens:
        text: list[int] = [*scroll.tokens, newest]
        for place in range(drafts):
            said = next_token(text)
            text.append(said if place < right else said + 1)
        new = decode_step(scroll, newest, text[-drafts:], scroll.forward)
        newest, made, steps = new[-1], made + len(new), steps + 1
    return steps


LESSON = Lesson(
    exercises=(LOOKUP, ROLLBACK),
    predictions=(
        Prediction(
            "lookup_steps",
            lambda rng: {
                "tokens": rng.randint(300, 900),
                "drafts": rng.randint(6, 8),
                "right": rng.randint(2, 5),
            },
            how="({tokens} + {right}) // ({right} + 1)",
            unit="steps",
            answer=_steps,
        ),
    ),
    questions=("why_the_same_text",),
)
