"""start, predict, explain and t: what they print, in both languages."""

import math
import subprocess
import sys

import numpy as np
import pytest

from minikv.course import Course, start
from minikv.course.start import error_lines
from minikv.errors import ArgumentError, UnknownNameError
from tests.course.mutants import assert_prediction, assert_question
from tests.course.sample import LESSON

pytestmark = pytest.mark.usefixtures("lesson_99")


@pytest.fixture(params=["en", "zh"])
def lang(request):
    return request.param


def test_the_course_imports_nothing_heavy():
    code = (
        "import sys, minikv.course; "
        "heavy = {'torch', 'numpy', 'plotly', 'ipywidgets', 'anywidget', 'IPython'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_start_gives_five_words_that_return_nothing_but_t(lang, capsys):
    course = start("99", lang=lang)
    assert isinstance(course, Course)
    check, predict, explain, show, t = course
    assert check("99.1", ...) is None
    assert predict("speed", ...) is None
    assert explain("why_two") is None
    assert show({"a": 1}, text="a picture") is None
    assert t("greeting", name="minikv") == {"en": "Hello minikv", "zh": "你好，minikv"}[lang]
    assert "a picture" in capsys.readouterr().out
    assert all(word.__doc__ for word in course)


def test_a_lesson_or_language_that_is_not_there():
    with pytest.raises(UnknownNameError, match="no lesson '98'"):
        start("98")
    with pytest.raises(ArgumentError):
        start("99", lang="fr")
    assert "通过" not in start("99", lang="zh_CN.UTF-8").t("greeting", name="")


def test_two_languages_live_side_by_side(capsys):
    english, chinese = start("99", lang="en"), start("99", lang="zh")
    english.check("99.1", ...)
    chinese.check("99.1", ...)
    english.check("99.1", ...)
    lines = capsys.readouterr().out.splitlines()
    assert ["尚未作答" in line for line in lines] == [False, True, False]


def test_the_sample_predictions_and_questions_hold_what_lessons_promise():
    for prediction in LESSON.predictions[:1]:
        assert_prediction(prediction, "99")
    assert_question("why_two", "99")


def test_without_a_guess_the_answer_stays_hidden(lang, capsys):
    start("99", lang=lang).predict("one_token", ...)
    out = capsys.readouterr().out
    values = LESSON.predictions[0].ask(0)
    assert str(values["layers"]) in out
    assert 'predict("one_token"' in out
    assert f"{LESSON.predictions[0].answer(**values):,}" not in out


def test_a_guess_is_judged_and_then_answered(lang, capsys):
    predict = start("99", lang=lang).predict
    answer = LESSON.predictions[0].answer(**LESSON.predictions[0].ask(0))
    right, twice, half = {
        "en": ("Right", "is 2 times the answer", "the answer is 2 times"),
        "zh": ("正确：", "正确值的 2 倍", "它的 2 倍"),
    }[lang]
    for guess, sentence in [(answer, right), (np.int64(answer), right), (float(answer), right)]:
        predict("one_token", guess)
        out = capsys.readouterr().out
        assert sentence in out
        assert f"{answer:,}" in out
        assert "* 8 * 128 * 2" in out
    predict("one_token", 2 * answer)
    assert twice in capsys.readouterr().out
    predict("one_token", answer // 2)
    assert half in capsys.readouterr().out
    predict("one_token", answer + 1)
    assert {"en": "off by 1.", "zh": "相差 1。"}[lang] in capsys.readouterr().out
    predict("one_token", -5)
    assert f"{answer + 5:,}" in capsys.readouterr().out


def test_a_tolerance_accepts_what_is_within_the_ratio(capsys):
    predict = start("99").predict
    close = [(10 / 3, "Right"), (4, "Close"), (10 / 3 / 1.24, "Close")]
    far = [(5, "is 1.5 times the answer"), (10**7, "is 3,000,000 times the answer"), (0, "off by 3.333333")]
    for guess, sentence in close + far:
        predict("speed", guess)
        assert sentence in capsys.readouterr().out


@pytest.mark.parametrize("guess", ["131072", None, True, math.nan, math.inf, 1j, [1], object()])
def test_what_is_no_number_gets_an_answer_that_does_not_reveal(guess, lang, capsys):
    start("99", lang=lang).predict("one_token", guess)
    out = capsys.readouterr().out
    assert type(guess).__name__ in out
    assert f"{LESSON.predictions[0].answer(**LESSON.predictions[0].ask(0)):,}" not in out


def test_seeds_draw_other_values_and_the_same_again(capsys):
    predict = start("99").predict
    seen = []
    for seed in (0, 0, 1, 2, 3, 4, 5):
        predict("one_token", ..., seed=seed)
        seen.append(capsys.readouterr().out.splitlines()[0])
    assert seen[0] == seen[1]
    assert len(set(seen)) > 1
    predict("one_token", ..., seed=5)
    assert "seed=5" in capsys.readouterr().out


def test_explain_asks_first_and_reveals_on_request(lang, capsys):
    explain = start("99", lang=lang).explain
    answer = {"en": "One K and one V.", "zh": "一个 K，一个 V。"}[lang]
    explain("why_two")
    asked = capsys.readouterr().out
    assert answer not in asked
    assert 'explain("why_two", reveal=True)' in asked
    explain("why_two", reveal=True)
    revealed = capsys.readouterr().out
    assert answer in revealed
    assert revealed.count("[ ]") == 2


def test_unknown_keys_name_the_known_ones():
    course = start("99")
    with pytest.raises(UnknownNameError, match="one_token, speed"):
        course.predict("one_tokem", 3)
    with pytest.raises(UnknownNameError, match="why_two"):
        course.explain("why_three")


def test_an_error_is_said_in_the_learners_language(lang):
    t = start("99", lang=lang).t
    with pytest.raises(UnknownNameError) as caught:
        start("98")
    lines = error_lines(caught.value, caught.value.__traceback__, lang)
    assert t(caught.value) == caught.value.text(lang) == lines[1]
    assert lines[0] == "UnknownNameError [unknown_lesson]"
    assert 'start("98")' in lines[2]
