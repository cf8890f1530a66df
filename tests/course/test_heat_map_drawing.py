"""What the heat-map draws, on traces made up from a seed: shades follow the scores, letters the kept sets."""

import numpy as np
import pytest

from minikv.course.widgets.heat_map_drawing import SHADES, draw_trace, reduced, roles_of, shades_of
from minikv.i18n import LANGUAGES
from minikv.models.recall import WORDS, Question
from minikv.units import format_bytes
from tests.course.traces import made_up_trace

SEEDS = range(12)


def traces():
    for seed in SEEDS:
        yield made_up_trace(seed, heads=1 + seed % 3, scope=("head", "layer")[seed % 2], prompt=1 + seed)


def rows(trace):
    """Every layer, head and step of a trace, and its roles."""
    for layer in range(len(trace.layers)):
        for head in [None, *range(trace.heads)]:
            for step in range(trace.steps):
                yield layer, head, step, roles_of(trace, layer, head, step)


def test_every_token_has_the_role_that_the_kept_set_gives_it():
    for trace in traces():
        for layer, head, step, roles in rows(trace):
            heads = range(trace.heads) if head is None else [head]
            seen, budget = trace.prompt + step, trace.budget
            for token, role in enumerate(roles):
                kept = any(trace.kept[layer, each, step, token] for each in heads)
                scored = any(not np.isnan(trace.scores[layer, each, step, token]) for each in heads)
                assert (role in "SHR") == kept
                assert (role == ".") == (token >= seen)
                assert (role == "x") == (scored and not kept)
                assert (role == "-") == (token < seen and not scored)
                if role == "S":
                    assert token < budget.n_sink
                if role == "R":
                    assert seen - budget.n_recent <= token
                if role == "H":
                    assert budget.n_sink <= token < seen - budget.n_recent


def test_a_token_that_is_gone_never_comes_back():
    for trace in traces():
        for layer in range(len(trace.layers)):
            for head in [None, *range(trace.heads)]:
                gone = set()
                for step in range(trace.steps):
                    roles = roles_of(trace, layer, head, step)
                    assert all(roles[token] == "-" for token in gone)
                    gone |= {token for token, role in enumerate(roles) if role in "x-"}


@pytest.mark.parametrize("by_rank", [False, True])
def test_a_higher_score_never_has_a_lower_shade(by_rank):
    for trace in traces():
        for layer, head, step, roles in rows(trace):
            scores = trace.scores[layer, :, step]
            row = reduced(scores) if head is None else scores[head]
            shades = shades_of(row, roles, by_rank=by_rank)
            assert all((shade in "-.") == (role in "-.") for shade, role in zip(shades, roles, strict=True))
            assert all(shade == role for shade, role in zip(shades, roles, strict=True) if role in "-.")
            here = [(row[token], int(shade)) for token, shade in enumerate(shades) if shade not in "-."]
            assert [shade for _, shade in sorted(here)] == sorted(shade for _, shade in here)
            if len({score for score, _ in here}) > 1:
                drawn = [shade for _, shade in here]
                if not by_rank:
                    assert (min(drawn), max(drawn)) == (0, SHADES - 1)
                sizes = np.bincount(drawn, minlength=SHADES)
                assert not by_rank or sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("scores", "by_score", "by_rank"),
    [
        ([1, 1, 1], "444", "444"),
        ([0.0], "4", "4"),
        ([0, 1], "08", "26"),
        ([-np.inf, 0, 1, np.inf], "0088", "1357"),
        ([np.inf, np.inf], "88", "44"),
        ([0, 9, 4.5, 9], "0848", "1636"),
    ],
)
def test_shades_at_the_ends(scores, by_score, by_rank):
    row = np.array(scores, np.float32)
    assert shades_of(row, "H" * len(row), by_rank=False) == by_score
    assert shades_of(row, "H" * len(row), by_rank=True) == by_rank


def test_the_mean_is_over_the_heads_that_hold_a_token():
    nan = np.nan
    scores = np.array([[1, nan, nan, 2], [3, 5, nan, 2]], np.float32)
    np.testing.assert_array_equal(reduced(scores), np.array([2, 5, nan, 2], np.float32))


def test_the_sentences_say_the_numbers_of_the_trace():
    for trace in traces():
        view = draw_trace(trace, (), WORDS.__getitem__, "en")
        assert list(view["maps"]) == [str(layer) for layer in trace.layers]
        for layer, name in enumerate(trace.layers):
            heads = view["maps"][str(name)]
            assert list(heads) == ["all", *(str(head) for head in range(trace.heads) if trace.heads > 1)]
            for head, drawn in heads.items():
                for step in range(trace.steps):
                    said, roles = drawn["status"][step], drawn["roles"][step]
                    resident = trace.kept[layer, 0 if head == "all" else int(head), step].sum()
                    assert f"{resident} of {trace.prompt + step} tokens" in said
                    assert f"capacity {trace.capacity[layer]} = {trace.budget.n_sink} " in said
                    assert format_bytes(int(trace.bytes_held[step])) in said
                    assert "No question asked yet." in said
                    if head == "all" and trace.heads > 1:
                        union = trace.kept[layer, :, step].any(0).sum()
                        assert f"{union} different ones" in said
                    else:
                        counts = [roles.count(letter) for letter in "SHR"]
                        assert "{} sinks, {} heavy hitters, {} recent".format(*counts) in said
                    assert len(drawn["values"][step]) == sum(role in "SHRx" for role in roles)


def test_answers_are_counted_from_the_step_that_asks():
    trace = made_up_trace(5, prompt=8)
    right = Question(11, 3, "ada", "paris", int(trace.predicted[4]))
    wrong = Question(15, 2, "ben", "oslo", int(trace.predicted[8] + 1) % 196)
    before = Question(7, 1, "eva", "rome", 70)  # the prompt's own last logits: nothing had been evicted
    view = draw_trace(trace, (wrong, before, right), WORDS.__getitem__, "en")
    said = view["maps"]["0"]["all"]["status"]
    assert all("No question asked yet." in sentence for sentence in said[:4])
    assert all("Asked so far: 1, right: 1." in sentence for sentence in said[4:8])
    assert all("Asked so far: 2, right: 1." in sentence for sentence in said[8:])
    assert f"got '{WORDS[trace.predicted[8]]}'" in said[-1]
    held = trace.kept[:, :, 7, 2].sum()
    assert f"{held} of 4 heads still held the answer's token" in said[-1], "what the forward could read"
    assert [step["source"] for step in view["steps"]] == [
        {4: 3, 8: 2}.get(step) for step in range(trace.steps)
    ]
    assert [step["right"] for step in view["steps"]] == [step == 4 for step in range(trace.steps)]


def test_both_languages_draw_the_same_rows():
    trace = made_up_trace(2)
    drawn = {lang: draw_trace(trace, (), WORDS.__getitem__, lang) for lang in LANGUAGES}
    for layer, heads in drawn["en"]["maps"].items():
        for head, english in heads.items():
            chinese = drawn["zh"]["maps"][layer][head]
            for key in ("score", "rank", "roles", "values"):
                assert english[key] == chinese[key]
            assert all(sentence.isascii() for sentence in english["status"])
            assert all("保留" in sentence for sentence in chinese["status"])
