"""Lesson 02b: its exercises judge as they promise, and they agree with CacheSpec on real models."""

import math

import pytest

from minikv.course import find_exercise, find_lesson, run_check
from minikv.course.lessons.l02b import rank_heads, windowed_bytes
from minikv.course.report import report
from minikv.i18n import LANGUAGES, text
from minikv.plan import CacheSpec, find_model
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON = find_lesson("02b")
MODELS = (
    "Llama-3.1-8B",
    "Llama-2-70B",
    "Qwen3-0.6B",
    "Qwen3-32B",
    "Mixtral-8x7B",
    "Gemma-2-9B",
    "gpt-oss-20b",
)


def by_cases(kv_heads, tp):
    if kv_heads % tp == 0:
        return kv_heads // tp
    if tp % kv_heads == 0:
        return 1
    raise ValueError("a rank would hold part of a head")


def by_counting(kv_heads, tp):
    """Each rank asks for the heads of its share of a common multiple; all must get whole heads."""
    shares = math.lcm(kv_heads, tp)
    held = [
        {unit * kv_heads // shares for unit in range(r * shares // tp, (r + 1) * shares // tp)}
        for r in range(tp)
    ]
    if sum(map(len, held)) > max(kv_heads, tp):
        raise ValueError
    return len(held[0])


def with_two_loops(lengths, windows, token_bytes):
    total = 0
    for length in lengths:
        for window in windows:
            kept = length
            if window is not None and kept >= window:
                kept = window - 1
            total += kept * token_bytes
    return total


def by_kinds(lengths, windows, token_bytes):
    full, sliding = windows.count(None), [w - 1 for w in windows if w is not None]
    return token_bytes * (full * sum(lengths) + sum(min(n, w) for n in lengths for w in sliding))


def by_scanning(num_bytes, windows, token_bytes):
    if None not in windows and with_two_loops([max(windows)], windows, token_bytes) <= num_bytes:
        return math.inf
    tokens = 0
    while with_two_loops([tokens + 1], windows, token_bytes) <= num_bytes:
        tokens += 1
    return tokens


def by_halving(num_bytes, windows, token_bytes):
    low, high = 0, num_bytes // token_bytes + 1
    if by_kinds([high], windows, token_bytes) <= num_bytes:
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        if by_kinds([middle], windows, token_bytes) <= num_bytes:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize(
    ("id", "right", "sequences"),
    [
        ("02b.1", [with_two_loops, by_kinds], "lengths"),
        ("02b.2", [by_scanning, by_halving], None),
        ("02b.3", [by_cases, by_counting], None),
    ],
)
def test_exercise(id, right, sequences):
    assert_exercise(find_exercise(id), right=right, sequences=sequences)


def test_every_exercise_is_tested_above():
    assert [exercise.id for exercise in LESSON.exercises] == [f"02b.{n}" for n in range(1, 4)]


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda prediction: prediction.key)
def test_prediction(prediction):
    assert_prediction(prediction, "02b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "02b")


def test_a_rank_that_refuses_with_another_error_is_not_right():
    def raises_a_type_error(kv_heads, tp):
        if kv_heads % tp and tp % kv_heads:
            raise TypeError
        return max(1, kv_heads // tp)

    assert run_check(find_exercise("02b.3"), raises_a_type_error).kind == "raised"


@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_can_only_be_raised(seed):
    def says_so(kv_heads, tp):
        return "raises ValueError" if kv_heads % tp and tp % kv_heads else max(1, kv_heads // tp)

    def returns_the_error(kv_heads, tp):
        return ValueError() if kv_heads % tp and tp % kv_heads else max(1, kv_heads // tp)

    for wrong in (says_so, returns_the_error):
        verdict = run_check(find_exercise("02b.3"), wrong, seed=seed)
        assert (verdict.kind, verdict.differs) == ("wrong", "type")


def test_a_float_is_not_a_number_of_heads_and_the_report_says_so():
    def with_a_float(kv_heads, tp):
        return float(rank_heads.kv_heads_per_rank(kv_heads, tp))  # 3.0 for 3

    exercise = find_exercise("02b.3")
    verdict = run_check(exercise, with_a_float)
    assert (verdict.kind, verdict.differs) == ("wrong", "type")
    assert text("course.differs_whole", "en", got=repr(verdict.got)) in report(
        exercise, verdict, name="fn", hint=1, seed=0, lang="en"
    )


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_refusal_is_asked_for_in_words_not_by_the_name_of_a_class(lang):
    def answers_always(kv_heads, tp):
        return max(1, kv_heads // tp) if kv_heads % tp == 0 or tp % kv_heads == 0 else 7

    def refuses_always(kv_heads, tp):
        raise ValueError

    exercise = find_exercise("02b.3")
    for fn, key in ((answers_always, "differs_refusal_due"), (refuses_always, "differs_refused")):
        said = report(exercise, run_check(exercise, fn), name="fn", hint=1, seed=0, lang=lang)
        assert text(f"course.{key}", lang, error="ValueError") in said
        assert text("course.refused", lang, error="ValueError") in said
        assert "Refused" not in said


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_asks_for_infinity_and_for_one_byte_too_little(seed):
    cases = [case for case in find_exercise("02b.2").draw(seed) if None not in case["windows"]]
    spare = []
    for case in cases:
        full = by_kinds([max(case["windows"])], case["windows"], case["token_bytes"])
        spare.append(case["num_bytes"] - full)
        assert math.isinf(windowed_bytes.max_tokens(**case)) == (spare[-1] >= 0)
    assert all(spare.count(near) >= 2 for near in (-1, 0, 1))


def test_the_cases_of_the_windows_stand_on_both_sides_of_them():
    for exercise in ("02b.1", "02b.2"):
        cases = find_exercise(exercise).draw(0)
        below = above = 0
        for case in cases:
            lengths = case.get("lengths") or [windowed_bytes.max_tokens(**case)]
            window = min(w for w in case["windows"] if w)
            below += any(length < window - 1 for length in lengths)
            above += any(length > window - 1 for length in lengths)
        assert below >= 5
        assert above >= 5


@pytest.mark.parametrize("name", MODELS)
def test_the_references_agree_with_the_spec(name):
    """What a learner writes is what CacheSpec computes: same bytes, same inverse, same heads a rank."""
    config, spec = find_model(name).config, CacheSpec.from_config(name)
    kv_heads = config["num_key_value_heads"]
    token_bytes = spec.layers[0].token_bytes
    windows = [None if layer.window is None else layer.window + 1 for layer in spec.layers]
    for length in (1, 126, 127, 128, 129, 4095, 4096, 5000):
        expected = spec.bytes_for(length)
        assert windowed_bytes.bytes_for([length], windows, token_bytes) == expected
        assert windowed_bytes.max_tokens(expected, windows, token_bytes) == spec.max_tokens(expected)
        assert windowed_bytes.max_tokens(expected - 1, windows, token_bytes) == spec.max_tokens(expected - 1)
    for tp in (kv_heads, 2 * kv_heads):
        rank = CacheSpec.from_config(name, tp=tp)
        assert rank_heads.kv_heads_per_rank(kv_heads, tp) == rank.layers[0].kv_heads
