"""Every rule of ``check`` has a sample that breaks it, and it alone, and a line that says the way out."""

import json
from pathlib import Path

import pytest

from tools.notebooks.check import check
from tools.project import read_project

LESSON = Path("notebooks/src/01_second.py")
EN = Path("notebooks/en/01_second.ipynb")
ZH = Path("notebooks/zh/01_second.ipynb")


def edit(root: Path, path: Path, old: str, new: str) -> None:
    text = (root / path).read_text(encoding="utf-8")
    assert old in text
    (root / path).write_text(text.replace(old, new, 1), encoding="utf-8")


def edit_notebook(root: Path, change, path: Path = EN) -> None:
    notebook = json.loads((root / path).read_text(encoding="utf-8"))
    change(notebook, {cell["id"]: cell for cell in notebook["cells"]})
    (root / path).write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")


def only_line(root: Path, *parts: str) -> None:
    lines = check(root)
    assert len(lines) == 1, lines
    for part in parts:
        assert part in lines[0]


def line_with(root: Path, *parts: str) -> None:
    lines = check(root)
    assert any(all(part in line for part in parts) for line in lines), lines


def test_the_built_sample_has_no_problem(built):
    assert check(built) == []


# ---- sources


def test_a_lesson_of_more_than_an_hour(built):
    folder = built / "minikv/course/lessons/l01"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("A = Exercise(minutes=61)\n")
    line_with(built, "01_second.py: takes 65 minutes, 5 more than a lesson may", "split it in two")


def test_a_changed_en_cell_makes_its_zh_sibling_stale(built):
    edit(built, LESSON, "# How much?", "# How many bytes?")
    line_with(
        built, "01_second.py [question zh, line 21]", "one changed without the other", "hash notebooks/src"
    )


def test_a_zh_cell_without_a_hash(built):
    edit(built, LESSON, ' src="37e706fa"', "")
    line_with(built, "[question zh, line 21]", 'src is "" but the en text is "37e706fa"')


def test_a_link_to_a_file_that_is_not_there(built):
    edit(
        built,
        LESSON,
        "# $$bytes",
        "# [x](repo:minikv/course/data/glossary.toml) [y](repo:docs/none.md) $$bytes",
    )
    line_with(built, "[formula, line", "links to docs/none.md, which is not there")
    assert not [line for line in check(built) if "links to minikv/course/data/glossary.toml" in line]


def test_the_address_of_the_repository_is_not_spelled_out(built):
    edit(
        built,
        LESSON,
        "# $$bytes",
        f"# [x]({read_project().file('minikv/course/data/glossary.toml')}) $$bytes",
    )
    line_with(built, "[formula, line", "the repository's address is spelled out", "Write [text](repo:PATH)")


def test_a_missing_sibling(built):
    edit(built, LESSON, '# %% key="bytes" lang="zh"\nnum_bytes = 2 * 4 * 8  # K 与 V\nprint(num_bytes)\n', "")
    line_with(built, "[bytes en, line", "its zh sibling is missing", 'Add key="bytes" lang="zh"')


def test_code_that_differs(built):
    edit(built, LESSON, "8  # K 与 V", "9  # K 与 V")
    line_with(built, "[bytes zh, line", "the code differs from the en cell", "labels alone")


def test_tags_that_differ(built):
    edit(built, LESSON, '# %% key="bytes" lang="zh"', '# %% key="bytes" lang="zh" tags="timing"')
    line_with(built, "[bytes zh, line", "the code differs from the en cell")


def test_prose_in_a_shared_cell(built):
    edit(built, LESSON, "# $$bytes", "# 公式：\n# $$bytes")
    line_with(built, "[formula, line", "prose without a language")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [("到底占多少", "一个令牌占多少", "[question zh, line 21]"), ("要多少字节", "令牌多大", "[meta zh]")],
)
def test_a_forbidden_word(built, old, new, place):
    edit(built, LESSON, old, new)
    line_with(built, place, 'the glossary does not allow "令牌"', "Write: token")


def test_a_forbidden_word_in_code_or_a_quotation_is_free(built):
    edit(built, LESSON, "到底占多少", "有人写“令牌”或 `令牌`")
    assert not any("glossary" in line for line in check(built))


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("!ls", "!ls is not"),
        ("%%capture\n1", "%%capture is not"),
        ("%pip install x", "%pip is not"),
        ("%%time\n1", "%%time"),
    ],
)
def test_shell_and_magics(built, code, what):
    edit(built, LESSON, 'show(None, text="64 bytes")', code)
    line_with(built, "01_second.py [widget, line", what, "plain Python")


def test_a_tag_that_nbval_would_obey(built):
    edit(built, LESSON, 'tags="timing"', 'tags="raises-exception"')
    only_line(built, "notebooks/src/01_second.py:", 'tag "raises-exception" is not allowed')


def test_a_need_that_is_no_lesson(built):
    edit(built, LESSON, 'needs = ["00"]', 'needs = ["07"]')
    line_with(built, "[meta]", 'needs "07", which is no lesson')


def test_a_broken_source_is_one_line_and_the_others_are_still_checked(built):
    edit(built, LESSON, '# %% key="widget"', "# %% widget")
    edit_notebook(
        built,
        lambda nb, cells: cells["sum"].update(execution_count=None),
        Path("notebooks/en/00_first.ipynb"),
    )
    lines = check(built)
    assert len(lines) == 2
    assert "cell header not understood" in "".join(lines)
    assert "never ran" in "".join(lines)


def test_a_solution_that_cannot_be_taken_out(built):
    edit(built, Path("solutions/src/01_second.py"), "    ### END SOLUTION\n", "")
    only_line(built, "solutions/src/01_second.py:", 'cell "stub": BEGIN SOLUTION without END SOLUTION')


# ---- notebooks


def test_a_changed_source_makes_both_languages_stale(built):
    edit(built, LESSON, "text=", "text =")
    lines = check(built)
    assert len(lines) == 2
    assert all("stale: notebooks/src/01_second.py or the tool changed" in line for line in lines)
    assert all("Run: python -m tools.notebooks build 01" in line for line in lines)


def test_a_notebook_edited_by_hand(built):
    edit(built, EN, "One token costs memory.", "One token costs nothing.")
    only_line(built, f"{EN} [question]", "not what its source gives", "Edit the source")


def test_a_cell_added_by_hand(built):
    edit_notebook(built, lambda nb, cells: nb["cells"].append(cells["formula"] | {"id": "more"}))
    only_line(built, f"{EN}:", "its cells are not those of its source")


def test_a_new_lesson_makes_its_neighbours_header_stale(built):
    text = (built / "notebooks/src/00_first.py").read_text(encoding="utf-8")
    new = text.replace('"00"', '"02"').replace('"first"', '"third"')
    (built / "notebooks/src/02_third.py").write_text(new, encoding="utf-8")
    line_with(built, f"{EN} [minikv-header]", "not what its source gives")
    line_with(built, "notebooks/zh/02_third.ipynb: not built", "build 02")


def test_a_package_change_is_no_problem(built):
    (built / "minikv/new.py").write_text("x = 1\n")
    assert check(built) == []


def test_a_notebook_without_a_source(built):
    (built / EN).rename(built / "notebooks/en/09_gone.ipynb")
    line_with(built, "notebooks/en/09_gone.ipynb: no source gives this notebook", "Delete it")
    line_with(built, f"{EN}: not built")


def test_a_cell_that_never_ran(built):
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(execution_count=None, outputs=[]))
    only_line(built, f"{EN} [bytes]", "the cell never ran")


def test_a_solution_that_its_own_check_refused(built):
    path = Path("solutions/zh/01_second.ipynb")

    def late(nb, cells):
        cells["stub"]["outputs"][0]["text"] = ["01.1：5 秒内没有结果。"]

    edit_notebook(built, late, path)
    only_line(built, f"{path} [stub]", "the check of 01.1 did not pass")


def test_a_committed_error(built):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "x", "traceback": ["x"]}
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(outputs=[error]))
    only_line(built, f"{EN} [bytes]", "its output is an error, ValueError")


def test_saved_widget_state(built):
    edit_notebook(built, lambda nb, cells: nb["metadata"].update(widgets={"state": {}}))
    only_line(built, str(EN), "widget state is saved")


def test_a_notebook_that_is_too_big(built):
    output = {"output_type": "stream", "name": "stdout", "text": "x" * 300_000}
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(outputs=[output]))
    only_line(built, str(EN), "more than 300,000")


@pytest.mark.parametrize("folder", ["home", "root", "tmp", "work", "Users"])
def test_a_path_of_the_machine(built, folder):
    output = {"output_type": "stream", "name": "stderr", "text": [f"warning in '/{folder}/a/x.py'\n"]}
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(outputs=[output]))
    only_line(built, f"{EN} [bytes]", "names a path of this machine")


def test_an_address_and_a_picture_are_no_paths_of_the_machine(built):
    data = {"text/plain": ["https://a.org/home/b, a/tmp/b"], "image/png": "AA/tmp/home//tmp/\n"}
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    for path in (EN, ZH):
        edit_notebook(built, lambda nb, cells: cells["bytes"].update(outputs=[output]), path)
    assert check(built) == []


def test_a_tag_in_the_notebook(built):
    edit_notebook(built, lambda nb, cells: cells["bytes"]["metadata"].update(tags=["raises-exception"]))
    line_with(built, f"{EN} [bytes]", "tag raises-exception would hide a failure")


def test_a_magic_in_the_notebook(built):
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(source="!ls"))
    line_with(built, f"{EN} [bytes]", "!ls is not Python")


@pytest.mark.parametrize(
    ("link", "name"), [("https://colab", "Colab badge"), ("../zh/01_second", "language switch")]
)
def test_a_missing_header_link(built, link, name):
    def change(notebook, cells):
        source = "".join(cells["minikv-header"]["source"])
        cells["minikv-header"]["source"] = source.replace(link, "x")

    edit_notebook(built, change)
    line_with(built, f"{EN} [minikv-header]", f"no {name} in the header")


def test_a_file_that_is_no_notebook(built):
    (built / EN).write_text("<<<<<<< ours")
    only_line(built, str(EN), "not JSON", "build 01")


# ---- the two notebooks of a lesson


def say(root: Path, path: Path, key: str, *lines: str) -> None:
    """Let a cell of the notebook have printed these lines."""
    output = {"output_type": "stream", "name": "stdout", "text": [line + "\n" for line in lines]}
    edit_notebook(root, lambda nb, cells: cells[key].update(outputs=[output]), path)


def test_another_number_in_one_language(built):
    say(built, ZH, "bytes", "65")
    only_line(built, f"{ZH} [bytes]", "other numbers than the en notebook's: 64, 65", "build 01")


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("one of 1,024 tokens, 2 rows of 16", "1,024, 1, 2, 16"),
        ("64 bytes, layout (1, 16, 8)", "64（1，16，8）"),
        ("it&#x27;s 3.50 GiB", "3.50 GiB"),
    ],
)
def test_the_same_numbers_in_other_words(built, english, chinese):
    say(built, EN, "bytes", english)
    say(built, ZH, "bytes", chinese)
    assert check(built) == []


@pytest.mark.parametrize(("english", "chinese"), [("3.5", "3.6"), ("64 64", "64"), ("1,024", "1024")])
def test_a_number_is_whole_and_counted(built, english, chinese):
    say(built, EN, "bytes", english)
    say(built, ZH, "bytes", chinese)
    only_line(built, f"{ZH} [bytes]", "other numbers")


def test_a_measured_cell_has_its_own_numbers_but_no_foreign_words(built):
    say(built, ZH, "clock", "12345")
    assert check(built) == []
    say(built, ZH, "clock", "旧的话")
    only_line(built, f"{ZH} [clock]", '"旧的话", which no message')


def test_an_output_of_another_kind_in_one_language(built):
    output = {"output_type": "display_data", "data": {"text/plain": ["64"]}, "metadata": {}}
    edit_notebook(built, lambda nb, cells: cells["bytes"].update(outputs=[output]), ZH)
    only_line(built, f"{ZH} [bytes]", "['text/plain'], those of the en notebook ['stdout']")


def test_chinese_words_are_those_that_the_package_says_now(built):
    messages = built / "minikv/messages.toml"
    messages.write_text('zh = "共 {count} 个{what}，{which}的注意力"\nother = "块"\nlast = "受限"', "utf-8")
    for said in ("共 2 个块，受限的注意力", "3 个受限", "块"):
        say(built, ZH, "bytes", "64", said)
        assert check(built) == [], said
    for said, run in (
        ("总共 2 个块", "总共"),
        ("个受限块", "个受限块"),
        ("注意", "注意"),
        ("块受限", "块受限"),
    ):
        say(built, ZH, "bytes", "64", said)
        only_line(built, f"{ZH} [bytes]", f'"{run}", which no message of the package does')


def test_chinese_words_that_both_notebooks_show_or_the_cell_holds_need_no_message(built):
    for path in (EN, ZH):
        say(built, path, "bytes", "64 模型写的")
    assert check(built) == []
