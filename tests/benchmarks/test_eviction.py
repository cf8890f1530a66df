"""The benchmark of eviction at tiny sizes: a row says what was measured, and a worse result falls short."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import eviction, eviction_steps
from benchmarks.engine_cases import ModelShape
from benchmarks.eviction import CHOOSING, FULL, H2O_SUM, MEASURING, Curve, curve_rows
from benchmarks.eviction_model import Read, read_prompts, text_rows
from benchmarks.eviction_published import published_details, published_lines
from benchmarks.eviction_reset import second_text
from benchmarks.eviction_steps import Sizes, step_rows
from minikv.eviction.policies.literature import KeyDiff, StreamingLLM
from minikv.eviction.study.curves import Point, Setting
from minikv.eviction.study.suite import Score
from minikv.eviction.study.tasks import make_cases
from minikv.eviction.study.text_suite import same_tokens
from minikv.eviction.study.text_tasks import Text
from minikv.models import load

SHAPE = ModelShape("tiny", 2, 32, 48, 4, 2, 8, 64)


@pytest.fixture(scope="module")
def tiny():
    return load("tiny-gqa", device="cpu").model


def told(monkeypatch, chosen, measured, goals, kept=0.25):
    """The rows, if the policies had these shares of 400 questions on the documents of each seed."""
    setting = Setting(kept=kept)

    def curve(model, policies, settings, *, count, seed, scope):
        yield Point(FULL, Setting(kept=1.0), Score(400 * measured[FULL], 400))
        for name, share in (chosen if seed == CHOOSING else measured).items():
            if name != FULL:
                yield Point(name, setting, Score(400 * share, 400))

    monkeypatch.setattr(eviction, "curve", curve)
    return list(curve_rows(Curve("it", None, (setting,), "head", 4, (), goals)))


def test_the_best_policy_is_chosen_on_other_documents(monkeypatch):
    assert CHOOSING != MEASURING
    chosen = {H2O_SUM: 0.2, "random": 0.1, "A": 0.9, "B": 0.8}
    measured = {FULL: 1.0, H2O_SUM: 0.3, "random": 0.1, "A": 0.7, "B": 0.95}
    full, best = told(monkeypatch, chosen, measured, {0.25: 0.7})
    assert (full.ours, full.peer, full.holds) == (100, 100, True)
    assert best.claim.endswith("A")
    assert (best.ours, best.peer) == pytest.approx((70, 30))
    assert best.holds
    assert best.details["B"]["recall"] == 95
    assert best.details["A"]["95 %"] == [65.34, 74.28]
    assert not told(monkeypatch, chosen, measured, {0.25: 0.71})[1].holds


def test_without_a_goal_the_best_has_to_beat_random_clearly(monkeypatch):
    for random, holds in ((0.4, True), (0.47, False), (0.6, False)):
        measured = {FULL: 1.0, H2O_SUM: 0.3, "random": random, "A": 0.5}
        assert told(monkeypatch, measured, measured | {"A": 0.5}, {})[1].holds is (holds and random < 0.5)


def test_a_task_that_the_full_cache_cannot_do_is_said_to_be_one(monkeypatch):
    measured = {FULL: 0.5, H2O_SUM: 0.3, "random": 0.1}
    full, _ = told(monkeypatch, measured, measured, {})
    assert not full.holds
    assert full.details[FULL]["recall"] == 50


def test_what_is_told_is_what_is_measured(tiny, monkeypatch):
    monkeypatch.setattr(eviction, "CHOSEN_BY", {"random": "random", H2O_SUM: "h2o", "keydiff": KeyDiff()})
    settings = tuple(Setting(length=65, kept=kept) for kept in (0.5, 0.25))
    rows = list(curve_rows(Curve("tiny-gqa", tiny, settings, "head", 6, tuple(eviction.CHOSEN_BY))))
    assert len(rows) == 3
    assert rows[0].details[FULL]["recall"] > 90
    for row in rows[1:]:
        policy = row.claim.rpartition(": ")[2]
        assert row.ours == pytest.approx(row.details[policy]["recall"], abs=0.01)
        assert row.peer == pytest.approx(row.details[H2O_SUM]["recall"], abs=0.01)


def test_steps_are_timed_and_bytes_are_bounded(monkeypatch):
    times = iter([[1.0, 1.0, 1.0], [1.1, 1.0, 1.0], [1.2, 1.0, 1.0], *3 * [[9.0, 1.0, 1.0]]])

    def in_turn(runs, rounds, really=eviction_steps._in_turn):
        assert all(each > 0 for each in really(runs, rounds))
        return next(times)

    monkeypatch.setattr(eviction_steps, "_in_turn", in_turn)
    rows = list(step_rows(Sizes(SHAPE, 96, 1, most=1.1)))
    assert [row.holds for row in rows[::2]] == [True, True, False, True, True, True]
    assert all(row.holds for row in rows[1::2])
    for row in rows[1::2]:
        assert 0.5 * row.peer < row.ours <= row.peer


def test_storage_is_counted_and_not_the_view_on_it():
    whole = torch.zeros(1, 2, 64, 8)
    layer = SimpleNamespace(keys=whole[:, :, :4], values=torch.zeros(1, 2, 4, 8))
    assert eviction_steps.kv_storage_bytes(SimpleNamespace(layers=[layer])) == 4 * (2 * 64 * 8 + 2 * 4 * 8)


def test_scores_of_an_earlier_text_keep_its_tokens(tiny):
    first = make_cases("single", 12, length=97)
    second = make_cases("multikey", 12, seed=4, length=97)
    forgotten, reset = (second_text(tiny, first, second, "head", reset=done) for done in (False, True))
    assert reset.old < 0.45 < 0.6 < forgotten.old
    assert forgotten.score.asked == reset.score.asked == 12 * 12


class Words:
    """A tokenizer of the tiny models' words, "|" between context and question."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, text, add_special_tokens=True):
        ids = self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids
        return SimpleNamespace(input_ids=list(ids))

    def decode(self, ids, skip_special_tokens=True):
        return self.tokenizer.decode(ids)


@pytest.mark.parametrize("seen", [False, True])
def test_texts_are_answered_behind_an_eviction(seen):
    model, tokenizer = load("tiny-gqa", device="cpu")
    texts = [Text("ada paris the old cat sleeps ben oslo near a red door", "? ada", ("paris",))]
    policies = {"keydiff": KeyDiff(), "streaming": StreamingLLM()}
    read = Read((1.0, 0.3), policies, "head", 1, seen)
    full, *rows = text_rows("it", "words", model, Words(tokenizer), texts, read)
    assert (full.claim, full.ours, full.holds) == ("it: words, full cache", 100, True)
    assert [row.claim for row in rows] == [
        f"it: words, {policy}, {kept} % kept" for kept in (100, 30) for policy in policies
    ]
    assert [row.peer for row in rows] == [100] * 4
    assert [row.ours for row in rows[:2]] == [100, 100]
    assert rows[3].ours == 0  # the fact lies before the recent tokens


def test_what_the_full_cache_cannot_do_no_policy_can_hold():
    model, tokenizer = load("tiny-gqa", device="cpu")
    text = Text("the old cat sleeps near a red door", "? ada", ("zoe",))
    read = Read((1.0,), {"streaming": StreamingLLM()}, "head", 1, False)
    rows = list(text_rows("it", "words", model, Words(tokenizer), [text], read))
    assert [(row.ours, row.holds) for row in rows] == [(0, False), (0, False)]


def test_prompts_without_answers_are_compared_with_the_full_cache():
    model, tokenizer = load("tiny-gqa", device="cpu")
    read = Read((1.0,), {"h2o": "h2o"}, "head", 1, True)
    text = Text("ada paris the old cat sleeps ben oslo near a red door ? ada", "", ())
    (row,) = text_rows("it", "prompts", model, Words(tokenizer), [text], read)
    assert (row.ours, row.peer, row.holds) == (100, 100, True)
    assert same_tokens([1, 2, 9], [1, 2, 3, 4]) == 2


def test_a_file_of_prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    good = [
        {"prompt": "who?", "answers": ["ada"]},
        {"context": "ada", "question": "who?"},
        {"prompt": "什么？"},
    ]
    file.write_text("\n\n".join(json.dumps(line) for line in good), encoding="utf-8")
    assert read_prompts(file) == [
        Text("who?", "", ("ada",)),
        Text("ada", "who?", ()),
        Text("什么？", "", ()),
    ]
    for bad in ("who?", '{"question": "who?"}', "[1]", '{"prompt": "a", "answers": 3}'):
        file.write_text('{"prompt": "a"}\n' + bad, encoding="utf-8")
        with pytest.raises(SystemExit, match="line 2"):
            read_prompts(file)


def test_published_figures_are_marked_as_such():
    lines = published_lines()
    assert lines[0].startswith("published, not ours")
    assert next(line for line in lines if line.startswith("KeyDiff")).split()[1:] == ["85", "74", "65"]
    assert published_details()["KeyDiff"] == {"50 %": 85, "25 %": 74, "10 %": 65}
