"""Lesson 11b: when the blocks run out. Exercises: ``cheapest_victim, youngest_victim, engine_step``."""

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l11b.cheapest_victim import CHEAPEST_VICTIM
from minikv.course.lessons.l11b.engine_step import STEP
from minikv.course.lessons.l11b.youngest_victim import CHOOSE_VICTIM

BLOCK_SIZE = 16  # of the prediction


def _lost(computed: int, shared: int) -> int:
    tokens = list(range(computed))
    manager = BlockManager(computed, BLOCK_SIZE)
    manager.allocate("runs", [*tokens[: shared * BLOCK_SIZE], -1])
    manager.commit("runs")
    manager.allocate("victim", tokens)
    manager.commit("victim")
    manager.free("victim")
    rest = manager.stats().pools[0].free * BLOCK_SIZE
    manager.allocate("others", list(range(computed, computed + rest)))
    return computed - manager.match([*tokens, -1]).num_tokens


LESSON = Lesson(
    exercises=(CHEAPEST_VICTIM, CHOOSE_VICTIM, STEP),
    predictions=(
        Prediction(
            "lost_tokens",
            lambda rng: {
                "computed": 16 * rng.randint(80, 120) + rng.randint(1, 15),
                "shared": rng.randint(20, 70),
            },
            how="{computed} - 16 * {shared}",
            unit="tokens",
            answer=_lost,
        ),
    ),
    questions=("why_younger", "whose_hits"),
)
