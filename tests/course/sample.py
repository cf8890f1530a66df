"""A small lesson "99", there only for the tests of ``check``, and what ``check`` prints of a function."""

import math

from minikv.course import Exercise, Lesson, Misconception, Prediction, check


def said(capsys, fn, id="99.1", **options):
    check(id, fn, **options)
    return capsys.readouterr().out


def blocks_needed(lengths, block_size):
    return sum(-(-length // block_size) for length in lengths)


def draw_lengths(rng):
    cases = []
    for number in range(40):
        block_size = rng.choice([4, 8, 16])
        edge = block_size * rng.randint(1, 2 + number)
        lengths = [edge + rng.choice([-1, 0, 1]) for _ in range(rng.randint(2, 2 + number // 8))]
        cases.append((lengths, block_size))
    return cases


BLOCKS = Exercise(
    id="99.1",
    name="blocks_needed",
    signature=("lengths", "block_size"),
    cases=draw_lengths,
    reference=blocks_needed,
    misconceptions=(
        Misconception("rounds_down", lambda lengths, block_size: sum(n // block_size for n in lengths)),
        Misconception("shares_blocks", lambda lengths, block_size: -(-sum(lengths) // block_size)),
        Misconception("divides", lambda lengths, block_size: sum(n / block_size for n in lengths) / 0),
    ),
    limit_s=0.5,
)

MEAN = Exercise(
    id="99.2",
    name="mean",
    signature=("lengths",),
    cases=lambda rng: [{"lengths": [rng.randint(1, 99) for _ in range(2 + i % 5)]} for i in range(30)],
    reference=lambda lengths: math.fsum(lengths) / len(lengths),
)

RELEASE = Exercise(
    id="99.3",
    name="release",
    signature=("table",),
    cases=lambda rng: [(rng.sample(range(50), 2 + i),) for i in range(30)],
    reference=lambda table, free: free.extend(reversed(table)),
    drive=lambda fn, table: _released(fn, table),
)


def _released(fn, table):
    free = []
    fn(table, free)
    return free


LESSON = Lesson(
    exercises=(BLOCKS, MEAN, RELEASE),
    predictions=(
        Prediction(
            "one_token",
            lambda rng: {"layers": rng.choice([28, 32, 36, 40]), "model": rng.choice(["a", "b"])},
            how="2 * {layers} * 8 * 128 * 2",
            unit="bytes",
            answer=lambda layers, model: 2 * layers * 8 * 128 * 2,
        ),
        Prediction("speed", lambda rng: {}, how="10 / 3", unit="ms", answer=lambda: 10 / 3, tolerance=1.25),
    ),
    questions=("why_two",),
)


def both(en, zh):
    return {"en": en, "zh": zh}


def hints(owner):
    return {f"{owner}.hint{n}": both(f"{owner}: hint {n}", f"{owner}：第 {n} 条提示") for n in (1, 2, 3)}


SENTENCES = {
    **hints("blocks_needed"),
    **hints("blocks_needed.rounds_down"),
    **hints("blocks_needed.shares_blocks"),
    **hints("blocks_needed.divides"),
    **hints("mean"),
    **hints("release"),
    "one_token.question": both("{layers} layers of {model}: how much?", "{model} 有 {layers} 层：多少？"),
    "speed.question": both("How fast?", "多快？"),
    "why_two.question": both("Why two?", "为什么是 2？"),
    "why_two.answer": both("One K and one V.", "一个 K，一个 V。"),
    "why_two.rubric": both("K is kept\nV is kept\n", "保留 K\n保留 V\n"),
    "greeting": both("Hello {name}", "你好，{name}"),
}
