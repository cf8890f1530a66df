"""show_source: the package's own lines, coloured for both themes, with their numbers and a link to them."""

import importlib
import inspect
import re
import subprocess
import sys
from html import unescape
from importlib.metadata import metadata
from pathlib import Path

import IPython.display
import pytest

import minikv
from minikv.course import my_engine, show_source
from minikv.course.show_source import _repository
from minikv.course.your_engine.parts import PARTS
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import text
from minikv.look import CODE_COLOURS
from minikv.nano import block_manager
from minikv.nano.block_manager import BlockManager, slot_mapping
from tools.project import read_project

ROOT = Path(minikv.__file__).parents[1]
FILE = "minikv/nano/block_manager.py"


@pytest.fixture
def shown(monkeypatch):
    """What a notebook cell shows: a bundle of forms each."""
    outputs = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **options: outputs.append(data))
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    return outputs


def lines_of(text: str) -> list[tuple[int, str]]:
    """The numbered lines of a text form."""
    rows = [re.fullmatch(r" *(\d+)(?:  (.*))?", line) for line in text.splitlines()[2:]]
    return [(int(row[1]), row[2] or "") for row in rows]


def code_in(html: str) -> list[str]:
    """The lines of all ``<pre>`` of an output, as they read when every fold is open."""
    blocks = re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL)
    return unescape(re.sub("<[^>]+>", "", "\n".join(blocks))).splitlines()


@pytest.mark.parametrize("thing", [BlockManager.allocate, BlockManager, slot_mapping, block_manager])
def test_the_lines_are_those_of_the_file(thing, capsys):
    show_source(thing)
    text = capsys.readouterr().out
    file = (ROOT / FILE).read_text(encoding="utf-8").splitlines()
    rows = lines_of(text)
    first, last = rows[0][0], rows[-1][0]
    assert text.splitlines()[0] == f"{FILE}:{first}-{last}"
    indent = len(file[first - 1]) - len(rows[0][1])
    assert [number for number, _ in rows] == list(range(first, last + 1))
    assert [line for _, line in rows] == [line[indent:].rstrip() for line in file[first - 1 : last]]
    assert len(rows) == len(inspect.getsource(thing).rstrip("\n").splitlines())


def test_a_notebook_gets_the_same_code_with_colours_and_a_link(shown):
    show_source(BlockManager.allocate)
    [data] = shown
    code = re.search(r"<pre[^>]*>(.*)</pre>", data["text/html"], re.DOTALL)[1]
    plain = data["text/plain"].splitlines()
    assert code_in(data["text/html"]) == plain[2:]
    assert {"keyword", "name", "comment", "number-of-line"} <= set(re.findall(r'class="([\w-]+)"', code))
    first, last = re.search(r":(\d+)-(\d+)", plain[0]).groups()
    assert f'href="{read_project().file(FILE)}#L{first}-L{last}"' in data["text/html"]
    assert "color:#" not in data["text/html"], "a colour that one of the themes cannot show"
    assert all(colour.startswith("var(--jp-") for colour in CODE_COLOURS.values())


def test_several_stand_in_one_output_in_their_order(shown):
    show_source(BlockManager.free, slot_mapping)
    [data] = shown
    heads = re.findall(rf"^{FILE}:\d+", data["text/plain"], re.MULTILINE)
    assert len(heads) == 2
    assert data["text/plain"].index("def free") < data["text/plain"].index("def slot_mapping")
    assert data["text/html"].count("<pre") == 2


def folds(html: str) -> dict[str, list[str]]:
    """The summary of each closed fold -> its lines."""
    found = re.findall(r"<details><summary[^>]*>(.*?)</summary>(.*?)</details>", html, re.DOTALL)
    return {unescape(summary): code_in(inside) for summary, inside in found}


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (BlockManager.append, ["append"]),
        (BlockManager.publish, []),
        (BlockManager, ["allocate", "append", "free"]),
        (block_manager, ["block_digest", "slot_mapping", "allocate", "append", "free"]),
        (MiniKVError, []),
    ],
    ids=["a part", "a method beside it", "its class", "its module", "another file"],
)
def test_what_the_learner_writes_is_folded_with_its_lines(thing, names, shown):
    show_source(thing)
    [data] = shown
    assert code_in(data["text/html"]) == data["text/plain"].splitlines()[2:]
    inside = [[line.split() for line in lines] for lines in folds(data["text/html"]).values()]
    assert [re.search(r"def (\w+)", " ".join(lines[0]))[1] for lines in inside] == names
    for name, lines in zip(names, inside, strict=True):
        show_source(getattr(BlockManager, name, None) or getattr(block_manager, name))
        assert lines == [line.split() for line in shown[-1]["text/plain"].splitlines()[2:]]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_part_is_folded_in_its_file_and_its_exercise_named_in_the_lessons_language(
    lang, shown, monkeypatch
):
    pytest.importorskip("triton")
    monkeypatch.setattr(my_engine, "lang", lang)  # as start("09", lang) does
    modules = dict.fromkeys(f"minikv.nano.{part.module}" for part in PARTS)
    show_source(*(importlib.import_module(module) for module in modules))
    asked = [text("course.write_it_first", lang, name=part.name, id=part.task) for part in PARTS]
    assert sorted(folds(shown[-1]["text/html"])) == sorted(asked)


def test_what_a_decorator_wraps_and_a_kernel_of_triton_are_shown_with_it(capsys):
    attention = pytest.importorskip("minikv.nano.attention")
    from minikv.nano.runner import forward

    show_source(forward)
    assert lines_of(capsys.readouterr().out)[0][1] == "@torch.inference_mode()"
    if attention.triton is None:
        pytest.skip("no Triton here")
    show_source(attention.paged_decode_kernel)
    rows = lines_of(capsys.readouterr().out)
    assert rows[0][1] == "@triton.jit"
    assert rows[1][1].startswith("def paged_decode_kernel(")


def of_the_learner():
    """In this file, which is not the package's."""


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (of_the_learner, "of_the_learner"),
        (inspect, "inspect"),
        (len, "len"),
        (12, "int"),
        ("minikv", "str"),
        (Path, "Path"),
        (None, "NoneType"),
    ],
    ids=["a function", "a module", "a builtin", "a number", "a text", "a class", "nothing"],
)
def test_what_is_not_ours_is_refused_by_its_name_and_nothing_is_shown(thing, said, shown, capsys):
    with pytest.raises(MiniKVError) as refused:
        show_source(BlockManager.free, thing)
    assert refused.value.code == "not_ours_to_show"
    assert said in refused.value.text("zh")
    assert (shown, capsys.readouterr().out) == ([], "")


def test_a_call_without_an_object_is_refused():
    with pytest.raises(ArgumentError):
        show_source()


def test_the_link_is_that_of_pyproject_and_of_the_installed_package(monkeypatch, tmp_path):
    """Beside a checkout its pyproject.toml counts, and not one of another project that minikv lies in."""
    assert _repository() == read_project().repository
    assert f"Source, {_repository()}" in metadata("minikv").get_all("Project-URL")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n', encoding="utf-8")
    monkeypatch.setattr(sys.modules["minikv.course.show_source"], "PACKAGE", tmp_path / "minikv")
    assert _repository.__wrapped__() == read_project().repository


def test_a_language_or_a_machine_changes_nothing_in_it():
    code = "from minikv.course import show_source; from minikv.nano import block_manager; show_source(block_manager)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True
        )
        for env in ({"LANG": "C", "PYTHONIOENCODING": "utf-8"}, {"LANG": "zh_CN.UTF-8", "PYTHONUTF8": "1"})
    ]
    assert runs[0].stdout == runs[1].stdout
    assert str(ROOT).encode() not in runs[0].stdout
