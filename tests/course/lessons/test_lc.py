"""Appendix C: every question has its call, its answer in figures, and a lesson that exists."""

import json
import re
from pathlib import Path

import pytest

from minikv.course.lessons import find_lesson
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec, plan_memory
from tests.course.mutants import assert_prediction, assert_question

LESSON = find_lesson("c")
ROOT = Path(__file__).parents[3]
QUESTION = re.compile(r"^### (\d+)\. .*[?？]", re.MULTILINE)
LINK = re.compile(r"\]\((\w+)\.ipynb\)")


def cells(lang):
    path = ROOT / "notebooks" / lang / "C_faq.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def shown(cell):
    return "".join("".join(output["data"]["text/plain"]) for output in cell["outputs"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_questions_are_numbered_and_each_is_answered_by_the_next_cell(lang):
    numbers = []
    for asked, answer, read in zip(cells(lang), cells(lang)[1:], cells(lang)[2:], strict=False):
        found = QUESTION.findall("".join(asked["source"])) if asked["cell_type"] == "markdown" else []
        if found:
            numbers.append(int(found[0]))
            assert len(found) == 1
            assert answer["cell_type"] == "code"
            assert re.search(r"\d", shown(answer)), "the answer is a number"
            assert LINK.search("".join(read["source"])), "and a lesson explains it"
    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 <= len(numbers) <= 15


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_lessons_that_it_points_to_exist(lang):
    text = "".join("".join(cell["source"]) for cell in cells(lang) if cell["cell_type"] == "markdown")
    linked = set(LINK.findall(text))
    known = {path.stem for path in (ROOT / "notebooks" / "src").glob("*.py")}
    assert len(linked) >= 10
    assert linked <= known


def test_what_the_prose_says_of_the_numbers_is_so():
    """Seventh, ninth, 9 tokens: words that no cell computes."""
    most = {u: plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB", utilization=u).max_tokens for u in (0.9, 1.0)}
    assert round(most[0.9] / (most[1.0] - most[0.9])) == 7
    budget = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB")
    assert round(budget.max_batch(500) / budget.max_batch(500 + 4_096)) == 9
    assert 1_001 - 1_000 // 16 * 16 == 9
    gemma = CacheSpec.from_config("Gemma-3-27B")
    assert 0.99 < gemma.bytes_for(1_024) / (1_024 * gemma.block_bytes(1)) <= 1


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    names = {"plan_memory": plan_memory, "CacheSpec": CacheSpec}
    assert_prediction(prediction, "c", names)


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "c")
