"""Appendix D: what its cells show is what its text says, and its sources have addresses."""

import inspect
import json
import re
from pathlib import Path

import pytest

from minikv import LLM, SamplingParams
from minikv.course.lessons import find_lesson
from minikv.i18n import LANGUAGES
from minikv.plan import plan_memory
from minikv.plan.other_engines import OPTIONS
from tests.course.mutants import assert_prediction, assert_question

LESSON = find_lesson("d")
ROOT = Path(__file__).parents[3]


def cells(lang):
    path = ROOT / "notebooks" / lang / "D_other_engines.ipynb"
    return {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def shown(lang, key):
    return "".join("".join(output["data"]["text/plain"]) for output in cells(lang)[key]["outputs"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_engine_has_its_word_its_formula_and_its_source(lang):
    text = "".join(cells(lang)["formula"]["source"])
    for option in OPTIONS.values():
        assert f"`{option}`" in text
    for project in ("vllm-project/vllm", "sgl-project/sglang", "NVIDIA/TensorRT-LLM"):
        assert re.search(rf"https://github.com/{project}/blob/[0-9a-f]{{40}}/", text), (
            "a commit, not a branch"
        )


@pytest.mark.parametrize("lang", LANGUAGES)
def test_at_95_percent_one_engine_refuses_and_another_promises_too_much(lang):
    rows, notes = {}, []
    for line in shown(lang, "parted").splitlines()[1:]:
        fraction, *rest = line.split()
        if fraction == "0.95":
            rows[rest[0]] = rest[1:]
        elif fraction != "0.9":
            notes.append(line)
    [refused] = [option for option, row in rows.items() if row[0] == "-"]
    [short] = [option for option, row in rows.items() if row[0] != "-" and float(row[-1]) < 0]
    assert (refused, short) == ("gpu_memory_utilization", "mem_fraction_static")
    [note] = notes
    assert refused in note
    assert "0.91" in note, "what would be free"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_only_one_engine_gives_the_second_the_same_as_the_first(lang):
    pairs = {}
    for line in shown(lang, "two_on_one").splitlines()[1:]:
        option, first, second = line.split()
        pairs[option] = (float(first), float(second))
    assert [option for option, (a, b) in pairs.items() if a == b] == ["gpu_memory_utilization"]
    assert [option for option, (a, b) in pairs.items() if b < 0] == ["utilization"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_log_line_is_that_of_the_issue(lang):
    said = shown(lang, "printed")
    assert "290,864" in said
    assert said.count("33.04") == 2
    tokens = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]{6,}", said)]
    assert tokens[0] == 290_864
    assert round(tokens[1] / tokens[0], 1) == 3.7


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "d")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "d")


# The tables of words ---------------------------------------------------------------------------------------

CALLS = {"LLM": LLM, "SamplingParams": SamplingParams, "plan_memory": plan_memory}


def table_rows(lang):
    """What is code in each row of the tables, one list a row."""
    lines = "".join(cells(lang)["words"]["source"]).splitlines()
    return [re.findall(r"`([^`]+)`", line) for line in lines if line.startswith("|")]


@pytest.mark.parametrize("name", CALLS)
def test_every_keyword_that_the_tables_name_is_one_of_ours(name):
    calls = [code for row in table_rows("en") for code in row if code.startswith(f"{name}(")]
    named = {keyword for call in calls for keyword in re.findall(r"(\w+)=", call)}
    assert named
    assert named <= set(inspect.signature(CALLS[name]).parameters)


def test_both_languages_have_the_same_five_tables():
    assert table_rows("en") == table_rows("zh")
    assert sum(row == [] for row in table_rows("en")) >= 10  # a head and a rule for each of the five
