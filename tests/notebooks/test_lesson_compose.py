"""Composing: header, footer, setup, links, languages, determinism. No kernel."""

import os.path
import re

import nbformat
import pytest

from tools.notebooks.compose import compose, to_text
from tools.notebooks.course import Target, open_course
from tools.notebooks.source import SourceError
from tools.project import ROOT, read_project


def composed(root, kind, lang, stem="01_second"):
    course = open_course(root)
    target = Target(kind, lang, stem)
    return compose(course, target, course.read(target))


def by_id(notebook):
    return {cell.id: cell for cell in notebook.cells}


def test_every_notebook_is_valid_and_composing_twice_gives_the_same_bytes(sample):
    course = open_course(sample)
    for target in course.targets():
        texts = {to_text(compose(course, target, course.read(target))) for _ in range(2)}
        assert len(texts) == 1
        nbformat.validate(nbformat.reads(texts.pop(), as_version=4))


def test_chinese_is_joined_and_stays_readable_in_the_file(sample):
    notebook = composed(sample, "lesson", "zh")
    assert by_id(notebook)["question"].source == "## 问题\n\n一个 token 要占显存。到底占多少？"
    assert "一个 token 要占显存。" in to_text(notebook)


def test_shared_cells_are_in_both_and_own_cells_in_one(sample):
    en, zh = (by_id(composed(sample, "lesson", lang)) for lang in ("en", "zh"))
    assert list(en) == list(zh)
    assert en["formula"] == zh["formula"]
    assert en["bytes"].source != zh["bytes"].source
    assert en["clock"].metadata == {"tags": ["timing", "nbval-ignore-output"]}


def test_setup_starts_the_lesson_in_its_language(sample):
    for lang in ("en", "zh"):
        source = by_id(composed(sample, "lesson", lang))["minikv-setup"].source
        assert source.endswith(f'start("01", lang="{lang}")')
        assert f'    %pip install -qqq "{read_project().requirement}"\n' in source


def test_header_says_where_the_reader_is(sample):
    text = by_id(composed(sample, "lesson", "en"))["minikv-header"].source
    assert f"]({read_project().colab('notebooks/en/01_second.ipynb')})" in text
    assert "[中文](../zh/01_second.ipynb)" in text
    seen, _, folded = text.partition("<details><summary>Before you start</summary>\n\n")
    title, links, place = seen.strip().split("\n\n")
    assert links.endswith(
        "about 5 minutes, exercises included · [Exercises](../../exercises/en/01_second.ipynb)"
    )
    assert place == "← [00 · A first lesson](00_first.ipynb) · **01**"
    assert title == "# 01 · How many bytes?"
    assert folded.endswith("\n\n</details>")
    assert "| Needs | [00 · A first lesson](00_first.ipynb) |" in text
    spec = "minikv/plan/spec/cache_spec.py"
    assert f"| In the package | [`{spec}`]({read_project().file(spec)}) |" in text
    assert "| On a free Colab T4 | Runs in seconds. |" in text
    assert "| On paper | The first exercise. |" in text
    assert "solutions" not in text  # a lesson does not lead to them
    without = by_id(composed(sample, "lesson", "en", "00_first"))["minikv-header"].source
    assert "· about 5 minutes\n" in without


def test_a_chinese_header_says_what_to_do_where_colab_cannot_be_reached(sample):
    for kind, link in (("lesson", "00_first.ipynb"), ("exercise", "../../notebooks/zh/00_first.ipynb")):
        text = by_id(composed(sample, kind, "zh"))["minikv-header"].source
        [row] = [line for line in text.splitlines() if line.startswith("| 打不开 Colab？ |")]
        assert f"[第 00 课]({link})" in row
        assert "打不开" not in by_id(composed(sample, kind, "en"))["minikv-header"].source


def test_the_section_that_a_chinese_header_names_is_in_lesson_00():
    lesson = (ROOT / "notebooks/src/00_start_here.py").read_text(encoding="utf-8")
    assert "# ## 卡住了怎么办" in lesson
    assert "| 打不开 Colab 或 GitHub |" in lesson


def test_the_header_loads_nothing_from_outside(sample):
    """A badge picture would be a request from the browser of every reader."""
    course = open_course(sample)
    for target in course.targets():
        assert "![" not in compose(course, target, course.read(target)).cells[0].source


def test_exercises_lead_to_solutions_and_lesson(sample):
    text = by_id(composed(sample, "exercise", "zh"))["minikv-header"].source
    assert text.startswith("# 01 · 练习：要多少字节？\n")
    assert "(../../solutions/zh/01_second.ipynb)" in text
    assert "(../../notebooks/zh/01_second.ipynb)" in text


def test_every_relative_link_points_at_a_notebook_of_the_course(sample):
    course = open_course(sample)
    paths = {target.path.as_posix() for target in course.targets()}
    for target in course.targets():
        cells = compose(course, target, course.read(target)).cells
        links = re.findall(r"\]\((?!https:)([^)]+)\)", cells[0].source + cells[-1].source)
        assert links
        for link in links:
            assert os.path.normpath(target.path.parent / link) in paths


def test_footer_leads_to_the_next_lesson_and_the_last_one_home(sample):
    assert (
        "**Next: [01 · How many bytes?](01_second.ipynb)**"
        in composed(sample, "lesson", "en", "00_first").cells[-1].source
    )
    assert "](00_first.ipynb)" in composed(sample, "lesson", "en").cells[-1].source


def test_solutions_never_reach_the_exercises(sample):
    exercise, solution = (by_id(composed(sample, kind, "en")) for kind in ("exercise", "solution"))
    assert "    raise NotImplementedError\n" in exercise["stub"].source
    assert "K and V, one byte an element." in exercise["stub"].source
    assert "return 2 * layers" not in to_text(composed(sample, "exercise", "en"))
    assert "return 2 * layers" in solution["stub"].source
    assert "why" not in exercise
    assert solution["why"].source == "There are two: K and V."
    assert "SOLUTION" not in to_text(composed(sample, "solution", "en"))


def test_a_solutions_file_may_say_its_own_paper(sample):
    path = sample / "solutions/src/01_second.py"
    meta = '# %% [meta]\n# paper = {en = "All of them.", zh = "全部。"}\n\n'
    path.write_text(meta + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert "All of them." in composed(sample, "exercise", "en").cells[0].source
    assert "The first exercise." in composed(sample, "lesson", "en").cells[0].source


def test_a_pipe_in_a_header_text_does_not_split_its_table(sample):
    path = sample / "notebooks/src/01_second.py"
    path.write_text(path.read_text(encoding="utf-8").replace("Runs in", "a|b in"), encoding="utf-8")
    assert "a\\|b in" in composed(sample, "lesson", "en").cells[0].source


def test_an_impossible_stub_names_its_cell(sample):
    path = sample / "solutions/src/01_second.py"
    extra = '\n# %% key="top"\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n'
    path.write_text(path.read_text(encoding="utf-8") + extra, encoding="utf-8")
    with pytest.raises(SourceError, match='cell "top": a solution outside a function'):
        composed(sample, "exercise", "en")


def test_a_file_of_the_repository_is_linked_by_its_address(sample):
    path = sample / "notebooks/src/01_second.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace(
            "## The question", "## See [the words](repo:minikv/course/data/glossary.toml#x) `](repo:x`"
        )
    )
    cell = by_id(composed(sample, "lesson", "en"))["question"]
    assert (
        f"[the words]({read_project().file('minikv/course/data/glossary.toml#x')}) `](repo:x`" in cell.source
    )
