"""Appendix B: bugs of other projects, and for each the property that would have caught it. B.1: ``bookkeeping.py``."""

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.lb.bookkeeping import BOOKS
from minikv.course.lessons.lb.prefix_bugs import CHUNK, NAMESPACE

LATENT = 576  # elements of a token in an MLA layer: 512 of the latent, 64 of the rope key


def _stale_end(tokens: int, cached: int, block_size: int = 256) -> int:
    """Return the end of a range that begins behind the cached prefix but was planned as if there were none."""
    manager = BlockManager(2 * -(-tokens // block_size), block_size)
    text = list(range(tokens))
    manager.allocate("before", text[:cached])
    manager.commit("before")
    return manager.allocate("now", text).num_cached + tokens


def _addressable(page: int) -> int:
    """Return the pages that lie entirely below 2**31 elements, of one layer of MLA."""
    return 2**31 // (page * LATENT)


LESSON = Lesson(
    exercises=(BOOKS, CHUNK, NAMESPACE),
    predictions=(
        Prediction(
            "stale_end",
            lambda rng: {"cached": 256 * rng.randint(1, 3), "tokens": 1000 + rng.randint(1, 250)},
            how="{cached} + {tokens}",
            unit="tokens",
            answer=_stale_end,
        ),
        Prediction(
            "addressable",
            lambda rng: {"page": 16 * rng.choice([30, 49, 64])},
            how="2**31 // ({page} * 576)",
            unit="blocks",
            answer=_addressable,
        ),
    ),
    questions=("why_not_the_sum", "why_nothing_changes", "why_silence"),
)
