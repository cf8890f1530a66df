"""Exercise 11c.1: the next token of every sequence of a step, greedy or drawn."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception
from minikv.nano.sequence import SamplingParams, Sequence

VOCABULARY = 8


def sample(logits, step):
    return _sample(logits, step)


def _sample(
    logits,
    step,
    *,
    drawn=lambda params: params.temperature > 0,
    params_of=lambda step, seq: seq.params,
    position=lambda start, end: end,
    shift=0,
    as_ints=True,
):
    """Call nano's ``sample``. Each keyword argument, changed, gives one wrong answer."""
    from minikv.nano.runner import draw

    tokens = logits.argmax(-1)
    tokens = tokens.tolist() if as_ints else tokens
    for row, (seq, start, end) in enumerate(step):
        params = params_of(step, seq)
        if drawn(params) and end == len(seq.tokens):
            tokens[row] = draw(logits[(row + shift) % len(step)], params, position(start, end))
    return tokens


def sampled_always_likeliest(logits, step):
    return logits.argmax(-1).tolist()


def sampled_for_the_last_alone(logits, step):
    """Returns one token instead of one for each sequence."""
    return sample(logits, step)[-1:]


def sample_step(fn, logits, rows):
    """Return the tokens of the rows that count: a chunk that does not end its prompt has no token."""
    import torch

    step = []
    for number, (length, start, end, temperature, top_p, seed) in enumerate(rows):
        params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed)
        step.append((Sequence(number, [0] * length, length, params), start, end))
    tokens = fn(torch.tensor(logits), step)
    if len(tokens) != len(step):
        return {"tokens": list(map(int, tokens)), "rows": len(step)}
    return [
        _plain(token) for token, (seq, _, end) in zip(tokens, step, strict=True) if end == len(seq.tokens)
    ]


def _plain(token: object) -> object:
    """Return ``token`` as an int that a set of ints finds: `seq.append` looks it up among the end tokens."""
    number = int(token)  # type: ignore[call-overload]
    return number if token in {number} else f"{type(token).__name__}({number})"


def draw_rows(rng) -> list[dict]:
    """Draw decodes, whole prompts, last chunks and others; temperature 0 and above, each row with its own seed."""
    cases = []
    for i in range(48):
        rows = []
        for kind in rng.sample(["decode", "prompt", "last", "chunk", "decode", "prompt"], 2 + i // 12):
            length = rng.randint(3, 20)
            start = {"decode": length - 1, "prompt": 0}.get(kind, rng.randint(1, length - 2))
            end = rng.randint(start, length - 2) + 1 if kind == "chunk" else length
            temperature = rng.choice([0, 0.7, 1.0, 1.5])
            rows.append((length, start, end, temperature, rng.choice([1.0, 0.9, 0.5]), rng.randint(0, 99)))
        logits = [[round(rng.uniform(-2, 2), 2) for _ in range(VOCABULARY)] for _ in rows]
        cases.append({"logits": logits, "rows": rows})
    return cases


SAMPLE = Exercise(
    id="11c.1",
    minutes=5,
    name="sample",
    signature=("logits", "rows"),
    cases=draw_rows,
    reference=sample,
    drive=sample_step,
    misconceptions=(
        Misconception("always_likeliest", sampled_always_likeliest),
        Misconception("always_drawn", partial(_sample, drawn=lambda params: True)),
        Misconception("first_params", partial(_sample, params_of=lambda step, seq: step[0][0].params)),
        Misconception("other_row", partial(_sample, shift=1)),
        Misconception("drawn_by_start", partial(_sample, position=lambda start, end: start)),
        Misconception("tensors", partial(_sample, as_ints=False)),
        Misconception("last_alone", sampled_for_the_last_alone),
    ),
)
