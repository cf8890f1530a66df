"""What the READMEs and the guide show is what the program prints, and what they link to is there."""

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tools.notebooks.course import open_course
from tools.notebooks.minutes import lesson_minutes

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh.md")
GUIDES = ("docs/guide.md", "docs/guide.zh.md")
MOST_LINES = 120


@pytest.mark.parametrize("name", READMES)
def test_the_console_example_is_real_output(name):
    block = re.search(r"```console\n\$ minikv ([^\n]*)\n(.*?)\n```", (ROOT / name).read_text(), re.DOTALL)
    command, shown = block.groups()
    done = subprocess.run(
        [sys.executable, "-m", "minikv", *shlex.split(command)],
        capture_output=True,
        check=True,
        env={**os.environ, "COLUMNS": "90"},
    )
    assert [line.rstrip() for line in done.stdout.decode().rstrip().splitlines()] == shown.splitlines()


@pytest.mark.parametrize("name", GUIDES)
def test_the_python_example_says_what_it_gives(name):
    code = re.search(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)[1]
    values: dict = {}
    exec(code, values)
    said = re.findall(r"^(spec\.\w+\([^)]*\)) +# (\d+)", code, re.MULTILINE)
    assert len(said) == 2
    for call, number in said:
        assert eval(call, values) == int(number)


@pytest.mark.parametrize("name", GUIDES)
def test_the_cache_example_says_what_it_gives(name):
    code = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)[1]
    values: dict = {}
    checked = 0
    for line in re.findall(r"^(?:\S.*|)(?:\n +.*)*", code, re.MULTILINE):
        said = re.fullmatch(r"(\S.*?) +# (\d+|True|\[[\d, ]+]|torch\.Size.*)", line)
        if said:
            assert str(eval(said[1], values)) == said[2]
            checked += 1
        else:
            exec(line, values)
    assert checked == 4


@pytest.mark.parametrize("name", GUIDES)
def test_the_allocation_example_says_what_it_gives(name):
    """In a process of its own: the report looks at everything that is alive."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)[2]
    told = re.sub(r"^([a-z][\w.()]*) +# (.+)$", r"assert str(\1) == '\2', \1", code, flags=re.MULTILINE)
    assert told.count("assert ") == 3
    program, shown = re.subn(
        r"^print\(found\.verdict\('(en|zh)'\)\)$",
        "print(*map(found.verdict, ('en', 'zh')), sep='\\f')",
        ast.unparse(ast.parse(told)),
        flags=re.MULTILINE,
    )
    assert shown == 1
    for verdict in output_of(program).split("\f"):
        assert "kept[0].past_key_values" in verdict
        assert "32.13 KiB" in verdict


@cache
def output_of(program: str) -> str:
    """The pages differ in comments and in the language of the verdict, so one process answers for both."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize(
    ("place", "first", "count"), [(3, "first.text", 2), (4, "answer.text", 1), (5, "eviction.capacity", 3)]
)
def test_the_example_of_a_model_says_what_it_gives(name, place, first, count):
    code = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)[place]
    program, _, said = code.partition(f"\n{first}")
    values: dict = {}
    exec(program, values)
    lines = re.findall(r"^(.+?)  # (.+)$", first + said, re.MULTILINE)
    assert len(lines) == count
    for call, value in lines:
        assert str(eval(call, values)) == value


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"blob/main/([^)]+)", text):
        assert (ROOT / path).exists(), path


def test_both_list_the_same_lessons_and_the_real_number_of_architectures():
    from minikv.plan.spec.architectures import ARCHITECTURES

    texts = [(ROOT / name).read_text() for name in READMES]
    lessons = [set(re.findall(r"notebooks/\w\w/(\w+)\.ipynb\)", text)) for text in texts]
    built = {path.stem for path in (ROOT / "notebooks" / "en").glob("*.ipynb")}
    assert lessons[0] == lessons[1] == built
    assert all(f" {len(ARCHITECTURES)} " in text for text in texts)


def test_both_say_how_many_architectures_the_engine_runs():
    """Those that tests/models and, with recurrent layers, tests/engine compare with generate(), token for token."""
    from tests.cache.test_paged_architectures import COMPRESSED, INDEXED, RECURRENT
    from tests.models.test_adapter import MODELS, OTHERS

    compared = [*MODELS, *OTHERS, *RECURRENT, *INDEXED, *COMPRESSED]
    for name in READMES:
        assert f" {len(compared)} " in (ROOT / name).read_text()


@pytest.mark.parametrize("name", READMES)
def test_the_parts_take_the_minutes_of_their_lessons(name):
    course = open_course(ROOT)
    minutes = {meta.stem: lesson_minutes(course, meta) for meta in course.lessons}
    rows = re.findall(r"^\| [^|]+ \| (\[\w+]\(.*\)) \| (\d+) \|$", (ROOT / name).read_text(), re.MULTILINE)
    assert len(rows) == 9
    for links, said in rows:
        lessons = re.findall(r"\[(\w+)]\(notebooks/\w\w/((\w+?)_\w+)\.ipynb\)", links)
        assert all(number == begin for number, _, begin in lessons)
        assert sum(minutes[stem] for _, stem, _ in lessons) == int(said), lessons


@pytest.mark.parametrize("name", READMES)
def test_it_is_read_in_a_minute_or_two(name):
    assert len((ROOT / name).read_text().splitlines()) <= MOST_LINES
