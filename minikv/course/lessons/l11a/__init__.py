"""Lesson 11a: continuous batching. Exercises: ``admission, batch_arrays, nano_scheduler, longest_operations``."""

from minikv.blocks import BlockManager
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l11a.admission import ADMIT_QUEUE, CHUNKS
from minikv.course.lessons.l11a.batch_arrays import BATCH_ARRAYS
from minikv.course.lessons.l11a.load import Ask, run_batches, run_load
from minikv.course.lessons.l11a.longest_operations import LONGEST
from minikv.course.lessons.l11a.nano_scheduler import ADMIT, PACK
from minikv.engine import SamplingParams, Scheduler

BLOCK_SIZE = 16  # of the predictions


def _asks(prompts: list[int], new: list[int], arrival: int = 0) -> list[Ask]:
    """Return requests of these lengths that share no prefix."""
    ends = [sum(prompts[: place + 1]) for place in range(len(prompts))]
    return [
        Ask(tuple(range(end - length, end)), count, arrival)
        for end, length, count in zip(ends, prompts, new, strict=True)
    ]


def _static_steps(first: list[int], second: list[int]) -> int:
    asks = _asks([8] * 8, [*first, *second])
    return run_batches(asks, 4, num_blocks=64, max_num_seqs=4, max_batched_tokens=64).steps


def _answers(rng) -> list[int]:
    """Draw four lengths, one of them at least 12 and none above 19."""
    return rng.sample([*rng.sample(range(2, 11), 3), rng.randint(12, 19)], 4)


def _admitted(blocks: int, prompt: int) -> int:
    most, queue = blocks * BLOCK_SIZE, 1 + blocks * BLOCK_SIZE // prompt
    scheduler = Scheduler(BlockManager(blocks, BLOCK_SIZE), max_num_seqs=most, max_batched_tokens=most)
    for number, ask in enumerate(_asks([prompt] * queue, [2] * queue)):
        scheduler.add(number, ask.prompt, SamplingParams(max_tokens=ask.new))
    return len(scheduler.schedule().items)


def _first_token_step(decodes: int, prompt: int, budget: int) -> int:
    """Return the step of a prompt's first token. It arrives before step 1; ``decodes`` sequences decode from step 0."""
    talk = -(-prompt // (budget - decodes)) + 2
    asks = _asks([2] * decodes, [talk] * decodes)
    late = Ask(tuple(range(10_000, 10_000 + prompt)), 1, arrival=1)
    ran = run_load([*asks, late], prompt + 99, max_num_seqs=decodes + 1, max_batched_tokens=budget)
    return ran.first[-1]


LESSON = Lesson(
    exercises=(ADMIT_QUEUE, CHUNKS, BATCH_ARRAYS, ADMIT, PACK, LONGEST),
    predictions=(
        Prediction(
            "static_steps",
            lambda rng: {"first": _answers(rng), "second": _answers(rng)},
            how="max({first}) + max({second})",
            unit="steps",
            answer=_static_steps,
        ),
        Prediction(
            "admitted",
            lambda rng: {"blocks": rng.randint(700, 999), "prompt": 16 * rng.randint(3, 9)},
            how="({blocks} - {prompt} // 16) // ({prompt} // 16 + 1) + 1",
            unit="sequences",
            answer=_admitted,
        ),
        Prediction(
            "first_token",
            lambda rng: {
                "decodes": rng.randint(8, 24),
                "prompt": rng.randint(1500, 4000),
                "budget": rng.choice([64, 128]),
            },
            how="({prompt} + {budget} - {decodes} - 1) // ({budget} - {decodes})",
            unit="steps",
            answer=_first_token_step,
        ),
    ),
    questions=("why_continuous", "why_chunks"),
)
