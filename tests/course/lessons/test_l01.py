"""Lesson 01: its exercises, predictions and questions, the toy model that stands for a decoder, and its claims."""

import math

import numpy as np
import pytest
import torch

from minikv.course.check import run_check
from minikv.course.lessons import find_exercise
from minikv.course.lessons.l01 import LESSON
from minikv.course.lessons.l01.decode_loop import ToyModel
from minikv.course.lessons.l01.flops import crossing, per_pair, per_token, uncached_step
from minikv.errors import ArgumentError
from minikv.models import load, recall_prompt
from minikv.plan import find_model
from minikv.plan.flops import crossing_length, flop_cost, step_flops
from tests.course.mutants import assert_exercise, assert_prediction, assert_question


def attend_with_numpy(query, keys, values):
    scores = np.array(keys) @ np.array(query) / len(query) ** 0.5
    weights = np.exp(scores) / np.exp(scores).sum()
    return (weights @ np.array(values)).tolist()


def attend_in_float32(query, keys, values):
    q, k, v = (torch.tensor(rows) for rows in (query, keys, values))
    return torch.softmax(k @ q / len(q) ** 0.5, dim=0) @ v


def attend_as_an_array(query, keys, values):
    return np.array(attend_with_numpy(query, keys, values))


def attend_by_hand(query, keys, values):
    total, out = 0.0, [0.0] * len(values[0])
    for key, value in zip(keys, values, strict=True):
        score = sum(a * b for a, b in zip(query, key, strict=True))
        weight = math.exp(score / math.sqrt(len(query)))
        total += weight
        out = [o + weight * v for o, v in zip(out, value, strict=True)]
    return [o / total for o in out]


def step_by_matrices(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    shapes = [(hidden, heads * head_dim), (heads * head_dim, hidden)]
    shapes += [(hidden, kv_heads * head_dim)] * 2 + [(hidden, intermediate)] * 2 + [(intermediate, hidden)]
    scores_and_mix = 2 * (2 * num_tokens * head_dim * num_tokens)
    layer = sum(2 * num_tokens * rows * columns for rows, columns in shapes) + heads * scores_and_mix
    return layers * layer + 2 * hidden * vocab


def step_by_width(num_tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab):
    width = head_dim * (2 * heads + 2 * kv_heads) + 3 * intermediate
    return 2 * (layers * num_tokens * (hidden * width + 2 * num_tokens * heads * head_dim) + hidden * vocab)


def crossing_by_search(layers, hidden, heads, kv_heads, head_dim, intermediate):
    n = 1
    while n * 2 * heads * head_dim <= hidden * (2 * head_dim * (heads + kv_heads) + 3 * intermediate):
        n += 1
    return n


def crossing_without_layers(layers, hidden, heads, kv_heads, head_dim, intermediate):
    projected = hidden * (2 * head_dim * (heads + kv_heads) + 3 * intermediate)
    return math.floor(projected / (2 * heads * head_dim)) + 1


def generate_in_two_parts(model, prompt, num_new):
    new = [model(prompt, range(len(prompt)))]
    while len(new) < num_new:
        new.append(model([new[-1]], [len(prompt) + len(new) - 1]))
    return new


def generate_with_a_position(model, prompt, num_new):
    token, position, new = model(prompt, list(range(len(prompt)))), len(prompt), []
    for left in range(num_new, 0, -1):
        new.append(token)
        if left > 1:
            token = model((token,), (position,))
            position += 1
    return new


def generate_with_tensors(model, prompt, num_new):
    new = torch.empty(num_new, dtype=torch.long)
    fed, positions = torch.tensor(prompt), torch.arange(len(prompt))
    for step in range(num_new):
        fed = torch.tensor(model(fed, positions))
        new[step], positions = fed, positions[-1:] + 1
    return new


def generate_with_generators(model, prompt, num_new):
    new = [model((token for token in prompt), (i for i, _ in enumerate(prompt)))]
    for position in range(len(prompt), len(prompt) + num_new - 1):
        new.append(model(new[-1], position))
    return new


def held_by_steps(prompt_tokens, new_tokens):
    held = prompt_tokens
    for _ in range(new_tokens - 1):
        held += 1
    return held


def held_by_range(prompt_tokens, new_tokens):
    return len(range(1, prompt_tokens + new_tokens))


ANSWERS = {
    "01.1": [attend_with_numpy, attend_by_hand, attend_in_float32, attend_as_an_array],
    "01.2": [step_by_matrices, step_by_width],
    "01.3": [crossing_by_search, crossing_without_layers],
    "01.4": [
        generate_in_two_parts,
        generate_with_a_position,
        generate_with_tensors,
        generate_with_generators,
    ],
    "01.5": [held_by_steps, held_by_range],
}


@pytest.mark.parametrize("id", ANSWERS)
def test_exercise(id):
    def generate(model, prompt, num_new):
        raise NotImplementedError

    stub = generate if id == "01.4" else None
    assert_exercise(find_exercise(id), right=ANSWERS[id], stub=stub)


def test_every_exercise_has_answers():
    assert [exercise.id for exercise in LESSON.exercises] == list(ANSWERS)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda prediction: prediction.key)
def test_prediction(prediction):
    names = {"step_flops": step_flops, "crossing_length": crossing_length}
    assert_prediction(prediction, "01", names)


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "01")


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-2-7B", "Qwen3-8B"])
def test_the_exercises_count_as_the_planner_does(name):
    config = find_model(name).config
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    sizes = (config["num_hidden_layers"], hidden, heads, config.get("num_key_value_heads") or heads)
    sizes += (head_dim, config["intermediate_size"])
    cost = flop_cost(name)
    assert (per_token(*sizes), per_pair(sizes[0], heads, head_dim)) == (cost.per_token, cost.per_pair)
    assert crossing(*sizes) == crossing_length(name)
    assert uncached_step(77, *sizes, config["vocab_size"]) == step_flops(name, 77, cached=False).total


def test_half_of_the_crossings_are_ties():
    cases = find_exercise("01.3").draw(0)
    ties = [c for c in cases if per_token(**c) % per_pair(c["layers"], c["heads"], c["head_dim"]) == 0]
    assert len(cases) // 2 <= len(ties) < len(cases)


def test_the_toy_model_depends_on_tokens_positions_and_order():
    def after(*fed):
        model = ToyModel(3)
        return [model(tokens, positions) for tokens, positions in fed][-1]

    whole = after(([5, 8, 2], [0, 1, 2]))
    assert after(([5, 8], [0, 1]), ([2], [2])) == whole
    assert after(([5, 8, 2], [0, 1, 3])) != whole
    assert after(([8, 5, 2], [0, 1, 2])) != whole
    assert after(([5, 8, 2], [0, 1, 2]), ([5, 8, 2], [0, 1, 2])) != whole


@pytest.mark.parametrize("tokens", [[5.0], torch.tensor([[5, 8]]), torch.tensor([0.5]), None, "58", [[5]]])
def test_the_toy_model_says_what_it_takes(tokens):
    model = ToyModel(3)
    with pytest.raises(ArgumentError) as error:
        model(tokens, [0])
    assert error.value.code == "toy_not_ints"
    assert model.calls == [] == model.cache


def test_the_toy_model_wants_a_position_for_each_token():
    with pytest.raises(ArgumentError) as error:
        ToyModel(3)([5, 8], iter([0]))
    assert (error.value.code, error.value.values) == ("toy_lengths", {"tokens": 2, "positions": 1})


@pytest.mark.parametrize(
    "change", [lambda out: [out], lambda out: out[:-1], lambda out: out * 1.001, lambda out: out.half()]
)
def test_attention_in_float32_must_still_be_right(change):
    wrong = run_check(
        find_exercise("01.1"), lambda query, keys, values: change(attend_in_float32(query, keys, values))
    )
    assert wrong.kind == "wrong"


def test_half_a_square_is_explained_too():
    def half(**sizes):
        pair = per_pair(sizes["layers"], sizes["heads"], sizes["head_dim"])
        return uncached_step(**sizes) - sizes["num_tokens"] ** 2 * pair // 2

    names = find_exercise("01.2").signature
    verdict = run_check(find_exercise("01.2"), lambda *args: half(**dict(zip(names, args, strict=True))))
    assert verdict.misconception == "without_values"


@pytest.mark.parametrize(
    "change", [lambda new: new[0], lambda new: [float(t) for t in new], lambda new: None]
)
def test_a_loop_that_returns_no_list_of_ints_is_wrong(change):
    verdict = run_check(find_exercise("01.4"), lambda *args: change(generate_in_two_parts(*args)))
    assert verdict.kind in ("wrong", "raised")
    assert verdict.differs != "type", "both are dicts, so the note would say nothing"


@pytest.fixture(scope="module")
def tiny():
    return load("tiny-gqa", dtype="fp32", device="cpu")


def share_right(tiny, length, late):
    """The share of right answers to 40 prompts that the lesson does not show, each fed in two pieces.

    ``length(words, answer)`` is that of the first piece; the second is fed ``late`` positions too late.
    """
    (model, tokenizer), right = tiny, 0
    for seed in range(500, 540):
        asked = recall_prompt(seed, facts=8, context=64)
        ids = tokenizer(asked.text, return_tensors="pt").input_ids
        first = length(["<bos>", *asked.text.split()], asked.answer)
        cache = model(ids[:, :first], use_cache=True).past_key_values
        positions = torch.arange(first, ids.shape[1])[None] + late
        logits = model(ids[:, first:], position_ids=positions, past_key_values=cache).logits
        right += tokenizer.decode(logits[0, -1].argmax()) == asked.answer
    return right / 40


def test_a_late_piece_does_not_show_where_nothing_is_cut_apart(tiny):
    assert [share_right(tiny, lambda words, answer: len(words) - 2, late) for late in range(4)] == [1.0] * 4


def test_a_late_piece_shows_where_a_name_and_its_city_are_cut_apart(tiny):
    shares = [share_right(tiny, lambda words, answer: words.index(answer), late) for late in range(4)]
    assert shares[0] == 1.0
    assert shares[1] > 0.8, "one position is mostly forgiven"
    assert max(shares[2:]) < 0.1, "more than one is not"
