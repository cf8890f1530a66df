"""Lesson 14: its exercises, predictions and questions do what a learner relies on, and agree with the package."""

import pytest
import torch

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l14.evicting_step import run_steps
from minikv.course.lessons.l14.peak_tokens import steps
from minikv.eviction import Budget, EvictingLayer, StreamingLLM
from minikv.eviction.hf.rules import LayerRules
from minikv.eviction.policies.select import select
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("14")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def peaks_with_a_list(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    limit = n_sink + n_recent + budget + evict_every
    steps = [chunk] * (prompt // chunk) + [prompt % chunk] * (prompt % chunk > 0) + [1] * (new - 1)
    tokens, inside, between = [], [], []
    for count in steps:
        tokens += range(count)
        inside.append(len(tokens))
        if len(tokens) >= limit:
            tokens = tokens[: limit - evict_every]
        between.append(len(tokens))
    return max(inside), max(between)


def peaks_recursively(prompt, new, n_sink, budget, n_recent, evict_every, chunk):
    capacity = n_sink + budget + n_recent

    def after(held, left):
        if left == 0:
            return held, held
        count = min(chunk, left - (new - 1)) if left > new - 1 else 1
        full = held + count
        stays = full if full < capacity + evict_every else capacity
        return full, stays, left - count

    held, left, seen, stayed = 0, prompt + new - 1, [0], [0]
    while left:
        full, held, left = after(held, left)
        seen.append(full)
        stayed.append(held)
    return [max(seen), max(stayed)]


def mass_in_loops(scores, probs):
    kv_heads, before = scores.shape
    group = probs.shape[0] // kv_heads
    result = torch.zeros(kv_heads, probs.shape[2], dtype=scores.dtype)
    result[:, :before] = scores
    for query_head, rows in enumerate(probs):
        for row in rows:
            result[query_head // group] += row
    return result


def mass_with_padding(scores, probs):
    new = probs.shape[2] - scores.shape[1]
    columns = torch.einsum("gqt->gt", probs)
    grouped = torch.stack([chunk.sum(0) for chunk in columns.chunk(len(scores))])
    return torch.nn.functional.pad(scores, (0, new)) + grouped


def choose_with_torch(score, valid, n_sink, n_recent, budget):
    real = torch.tensor(valid).nonzero().flatten()
    rated = torch.tensor(score, dtype=torch.float64)[real]
    rated[:n_sink] = torch.inf
    rated[max(0, len(real) - n_recent) :] = torch.inf
    best = rated.sort(descending=True, stable=True).indices[: n_sink + budget + n_recent]
    return real[best.sort().values].tolist()


def choose_by_dropping(score, valid, n_sink, n_recent, budget):
    kept = [column for column, real in enumerate(valid) if real]
    while len(kept) > n_sink + budget + n_recent:
        middle = kept[n_sink : len(kept) - n_recent]
        kept.remove(min(middle, key=lambda column: (score[column], -column)))
    return kept


def step_with_a_loop(layer, new_token, attend, choose, capacity, evict_every):
    key, value = new_token(layer.length)
    at = torch.full((len(key), 1), layer.length)
    layer.positions = torch.cat((layer.positions, at), dim=1)
    layer.keys = torch.cat((layer.keys, key.unsqueeze(1)), dim=1)
    layer.values = torch.cat((layer.values, value.unsqueeze(1)), dim=1)
    mass = attend(layer.keys)
    mass[:, :-1] += layer.scores
    layer.scores, layer.length = mass, layer.length + 1
    if layer.keys.shape[1] < capacity + evict_every:
        return
    kept = choose(layer.scores)
    for name in ("keys", "values", "scores", "positions"):
        rows = getattr(layer, name)
        setattr(layer, name, torch.stack([row[index] for row, index in zip(rows, kept, strict=True)]))


def step_in_its_own_buffer(layer, new_token, attend, choose, capacity, evict_every):
    """Grows by one as it is; after an eviction the survivors are copied."""
    heads, held, dim = layer.keys.shape
    key, value = new_token(layer.length)
    keys, values = (layer.keys.new_empty(heads, held + 1, dim) for _ in range(2))
    keys[:, :held], keys[:, held] = layer.keys, key
    values[:, :held], values[:, held] = layer.values, value
    positions = layer.positions.new_full((heads, held + 1), layer.length)
    positions[:, :held] = layer.positions
    scores = torch.nn.functional.pad(layer.scores, (0, 1)) + attend(keys)
    if held + 1 >= capacity + evict_every:
        head, kept = torch.arange(heads)[:, None], choose(scores)
        keys, values, scores, positions = (rows[head, kept] for rows in (keys, values, scores, positions))
    layer.keys, layer.values, layer.scores, layer.positions = keys, values, scores, positions
    layer.length += 1


def test_peaks():
    assert_exercise(EXERCISES["14.1"], right=[peaks_with_a_list, peaks_recursively])


def test_add_mass():
    assert_exercise(EXERCISES["14.2"], right=[mass_in_loops, mass_with_padding], sequences="scores")


def test_choose():
    assert_exercise(EXERCISES["14.3"], right=[choose_with_torch, choose_by_dropping])


def test_step():
    def stub(layer, new_token, attend, choose, capacity, evict_every):
        raise NotImplementedError

    right = [step_with_a_loop, step_in_its_own_buffer]
    assert_exercise(EXERCISES["14.4"], right=right, stub=stub, seeds=(0, 1))


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "14")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "14")


def test_the_peaks_are_bounded_by_the_budgets():
    for case in EXERCISES["14.1"].draw(5):
        sizes = Budget(*(case[name] for name in ("n_sink", "budget", "n_recent", "evict_every")))
        inside, between = REFERENCES["peaks"](**case)
        assert between <= sizes.peak_resident
        assert inside <= sizes.peak_resident + case["chunk"]
        if case["prompt"] + case["new"] > 2 * sizes.peak_resident + case["chunk"]:
            assert between == sizes.peak_resident or case["chunk"] > 1


def test_the_peaks_are_the_layers():
    """Those of a cache layer of the package that gets the same steps."""
    for case in EXERCISES["14.1"].draw(6)[:24]:
        sizes = Budget(*(case[name] for name in ("n_sink", "budget", "n_recent", "evict_every")))
        layer, inside, between = EvictingLayer(LayerRules(StreamingLLM(), sizes, "head")), 0, 0
        for tokens in steps(case["prompt"], case["new"], case["chunk"]):
            layer.update(torch.zeros(1, 2, tokens, 4), torch.zeros(1, 2, tokens, 4))
            inside = max(inside, layer.resident)
            layer.evict()
            between = max(between, layer.resident)
        assert REFERENCES["peaks"](**case) == (inside, between)


def test_no_attention_is_lost():
    for case in EXERCISES["14.2"].draw(5):
        scores, probs = case["scores"], case["probs"]
        gained = REFERENCES["add_mass"](scores, probs).sum(1) - scores.sum(1)
        queries, group = probs.shape[1], probs.shape[0] // len(scores)
        torch.testing.assert_close(gained, torch.full_like(gained, group * queries))


def test_the_choice_is_the_packages():
    """Where a row has no padding, or as much room as tokens; elsewhere select fills a batch's row with padding."""
    compared = 0
    for seed in range(4):
        for case in EXERCISES["14.3"].draw(seed):
            score, valid = torch.tensor([[case.pop("score")]]), torch.tensor([case.pop("valid")])
            due = REFERENCES["choose"](score[0, 0].tolist(), valid[0].tolist(), **case)
            ours = select(score, valid=valid, scope="head", **case)[0, 0]
            assert [column for column in ours.tolist() if valid[0, column]] == due
            compared += 1
    assert compared > 100


def test_a_layer_never_holds_more_than_its_peak():
    for case in EXERCISES["14.4"].draw(3):
        seen = run_steps(REFERENCES["step"], **case)
        most = case["n_sink"] + case["budget"] + case["n_recent"] + case["evict_every"] - 1
        assert max(len(each["tokens"][0]) for each in seen) <= most
        assert all(each["tokens"] == each["rotated_to"] == each["positions"] for each in seen)
