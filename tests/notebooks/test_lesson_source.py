"""Reading a source: what it gives, and that each mistake is named with its line."""

import re
from pathlib import Path

import pytest

from tools.notebooks.course import Target, open_course
from tools.notebooks.source import SourceError, read_meta, read_source

SAMPLES = Path(__file__).with_name("samples")
META = """# %% [meta]
# number = "02"
# slug = "x"
# rooms = []
# title = {en = "T", zh = "题"}
# t4 = {en = "A", zh = "同"}
"""


def write(folder: Path, text: str, name: str = "02_x.py") -> Path:
    path = folder / "notebooks" / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_keep_order_language_and_text():
    source = read_source(SAMPLES / "notebooks/src/01_second.py")
    assert [(c.key, c.lang) for c in source.cells] == [
        ("question", "en"), ("question", "zh"), ("formula", ""), ("bytes", "en"), ("bytes", "zh"),
        ("widget", ""), ("clock", ""),
    ]  # fmt: skip
    assert source.cells[0].text == "## The question\n\nOne token costs memory.\nHow much?"
    assert source.cells[-1].text == "import time\n\nprint(time.perf_counter_ns())"
    assert source.cells[-1].tags == ("timing",)
    assert [c.lang for c in source.in_language("zh")] == ["zh", "", "zh", "", ""]


def test_meta_is_read_without_the_rest_of_the_file(tmp_path):
    path = write(tmp_path, META + "# %% what is this\n")
    assert read_meta(path).stem == "02_x"
    with pytest.raises(SourceError, match="cell header not understood"):
        read_source(path)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = 1\n" + META, 1, "text before the first cell"),
        (META + '# %% key="a"\n1\n' + META, 9, "[meta] is not the first cell"),
        (META + '# %% [raw] key="a"\n1\n', 7, "unknown cell kind [raw]"),
        (META + "# %%\n1\n", 7, 'key "" cannot be a cell id'),
        (META + '# %% key="minikv-x"\n1\n', 7, 'key "minikv-x" cannot be a cell id'),
        (META + '# %% key="a" colour="red"\n1\n', 7, "unknown attribute colour"),
        (META + '# %% key="a" lang="fr"\n1\n', 7, 'unknown language "fr"'),
        (META + '# %% key="a" tags="raises-exception"\n1\n', 7, 'tag "raises-exception" is not allowed'),
        (META + '# %% key="a"\n\n', 7, 'cell "a" is empty'),
        (META + '# %% [markdown] key="a"\n# one\ntwo\n', 9, "markdown line without"),
        (META + '# %% key="a"\n1\n# %% key="a"\n2\n', 9, 'key "a" is used before (line 7)'),
        (
            META + '# %% [markdown] key="a" lang="en"\n# 1\n# %% key="b"\n1\n'
            '# %% [markdown] key="a" lang="zh"\n# 1\n',
            11,
            'key "a" is used before',
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, text, line, message):
    with pytest.raises(SourceError) as caught:
        read_source(write(tmp_path, text))
    assert str(caught.value).startswith(f"notebooks/src/02_x.py:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('# slug = "x"\n', "", "has no slug"),
        ('# slug = "x"\n', '# slug = "x"\n# pages = 3\n', "has unknown pages"),
        ('# slug = "x"\n', '# slug = "x"\n# minutes = 5\n', "has unknown minutes"),
        (', zh = "题"', "", "[title] lacks a language"),
        ('slug = "x"', 'slug = "y"', "says 02_y"),
        ('slug = "x"', "slug = x", "is not TOML"),
        ("# %% [meta]", '# %% key="a"', "no [meta] cell"),
    ],
)
def test_meta_must_be_complete(tmp_path, old, new, message):
    assert old in META
    with pytest.raises(SourceError) as caught:
        read_meta(write(tmp_path, META.replace(old, new)))
    assert message in str(caught.value)


def test_numbers_come_before_letters_whatever_the_file_system_says(tmp_path):
    for number in ("A", "10", "02", "00", "B"):
        write(tmp_path, META.replace('"02"', f'"{number}"'), f"{number}_x.py")
    course = open_course(tmp_path)
    assert [m.number for m in course.lessons] == ["00", "02", "10", "A", "B"]
    assert [m and m.number for m in course.neighbours("lesson", "10_x")] == ["02", "A"]
    assert course.neighbours("lesson", "00_x")[0] is None
    assert course.neighbours("lesson", "B_x")[1] is None


def test_targets_can_be_chosen_by_number_or_name(sample):
    course = open_course(sample)
    assert len(course.targets()) == 2 + 6
    assert course.targets(("01",)) == course.targets(("01_second",))
    assert {t.kind for t in course.targets(("00",))} == {"lesson"}
    assert Target("exercise", "zh", "01_second").path == Path("exercises/zh/01_second.ipynb")
    with pytest.raises(LookupError, match="02"):
        course.targets(("02",))


def test_the_examples_of_the_manual_are_the_format(tmp_path):
    manual = Path(__file__).resolve().parents[2] / "docs/lessons.md"
    lesson, exercise = re.findall(r"```python\n(.*?)```", manual.read_text(encoding="utf-8"), re.DOTALL)
    path = write(tmp_path, lesson, "02_how_many_bytes.py")
    assert read_meta(path).rooms == ("plan.spec",)
    assert [cell.key for cell in read_source(path).cells] == ["question", "question", "formula", "bars"]
    assert [cell.key for cell in read_source(write(tmp_path, exercise)).cells] == ["stub"]


def test_exercises_without_a_lesson_are_refused(sample):
    (sample / "notebooks/src/01_second.py").unlink()
    with pytest.raises(SourceError, match="these exercises have no lesson"):
        open_course(sample)
