"""What a check keeps of a part that passes: text that runs on its own, and a sentence where there is none."""

import inspect
import json
import linecache
import sys
import threading

import pytest

from minikv.course import check, progress_file, run_check
from minikv.course.kept_file import MOST_BYTES
from minikv.course.lessons import find_exercise
from minikv.course.progress_file import VARIABLE
from minikv.course.your_engine.kept import KeptPart, KeptParts, PartsFile, keep_part, kept_parts, parts_path
from minikv.course.your_engine.load_parts import load_part
from minikv.errors import ConfigError

TASK = "09.1"  # slot_mapping(block_table, start, end, block_size)
PLAIN = """
def slot_mapping(block_table, start, end, block_size):
    blocks = [block_table[i // block_size] for i in range(start, end)]
    return [-1 if b < 0 else b * block_size + i % block_size for b, i in zip(blocks, range(start, end))]
"""
WITH_HELPERS = '''
import itertools
import os.path as where
from math import floor as whole_part, ceil

NO_BLOCK, NO_SLOT = -1, -1
SIZES = {"one": [1], "two": (1, 2)}
BIG = object()

class Place:
    """Where a token lies."""
    def __init__(self, token, block_size):
        self.block, self.offset = divmod(token, block_size)

def slot_in(block, offset, block_size):
    return NO_SLOT if block == NO_BLOCK else block * block_size + offset

def place_of(token, block_size: "BIG"):
    return Place(token, block_size)

def slot_mapping(block_table, start, end, block_size):
    """The slots."""
    BIG = SIZES["one"][0]  # hides the one outside
    places = [place_of(whole_part(i), block_size) for i in itertools.chain(range(start, end))]
    return [slot_in(block_table[p.block], p.offset, block_size) for p in places] * BIG
'''


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    place = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv(VARIABLE, str(place))
    progress_file._told.cache_clear()
    return place.with_name("progress.engine.json")


def cells(*texts: str, name: str = "slot_mapping"):
    """What a notebook has under ``name`` after these cells: the text of each is where IPython puts it."""
    space = {"__name__": "__main__"}
    for text in texts:
        file = f"/tmp/ipykernel_1/{abs(hash(text))}.py"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        exec(compile(text, file, "exec"), space)
    return space[name]


def passes(kept: KeptPart) -> bool:
    return run_check(find_exercise(TASK), load_part(TASK, kept)).passed


def kept_of(fn) -> KeptPart:
    check(TASK, fn)
    return kept_parts().parts[TASK]


@pytest.mark.parametrize("text", [PLAIN, WITH_HELPERS, "from __future__ import annotations\n" + WITH_HELPERS])
def test_what_is_kept_runs_on_its_own(text, capsys):
    kept = kept_of(cells(text))
    assert passes(kept)
    assert "Kept: slot_mapping is now yours" in capsys.readouterr().out
    assert kept.source.startswith("def slot_mapping(")


def test_needs_hold_what_is_used_and_nothing_else():
    kept = kept_of(cells(WITH_HELPERS))
    assert {"import itertools", "from math import floor as whole_part"} <= set(kept.needs.splitlines())
    for unused in ("os.path", "ceil", "BIG = "):
        assert unused not in kept.needs
    assert "NO_SLOT = -1" in kept.needs
    assert "class Place" in kept.needs


def test_a_real_ipython_cell_is_kept(path):
    shell_type = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    shell = shell_type()
    for text in (
        "import itertools\nclass Unused: pass",
        WITH_HELPERS,
        f"from minikv.course import check\ncheck('{TASK}', slot_mapping)",
    ):
        assert shell.run_cell(text).success
    assert passes(kept_parts().parts[TASK])


def test_a_function_of_a_file_is_kept_with_its_helpers(tmp_path, monkeypatch):
    (tmp_path / "my_answers_09.py").write_text(WITH_HELPERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import my_answers_09

    kept = kept_of(my_answers_09.slot_mapping)
    assert "import my_answers" not in kept.needs
    del sys.modules["my_answers_09"]
    assert passes(kept)


def test_another_name_and_a_second_pass_replace_the_first():
    first = kept_of(cells(PLAIN))
    kept_of(cells(PLAIN))
    assert kept_parts().parts[TASK] == first, "the same text keeps its day"
    renamed = kept_of(cells(PLAIN.replace("def slot_mapping", "def mine"), name="mine"))
    assert renamed.name == "mine"
    assert passes(renamed)


def closure():
    inner = cells(PLAIN)

    def slot_mapping(block_table, start, end, block_size):
        return inner(block_table, start, end, block_size)

    return slot_mapping


def nameless():
    inner = cells(PLAIN)
    return lambda block_table, start, end, block_size: inner(block_table, start, end, block_size)


USES_OBJECT = "TABLE = object()\n" + PLAIN.replace("    blocks =", "    TABLE\n    blocks =")


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (nameless, "lambda"),
        (closure, "function around it"),
        (lambda: cells(USES_OBJECT), "uses TABLE of the notebook, which is a object"),
        (lambda: _compiled(PLAIN), "source of slot_mapping is not to be had"),
    ],
)
def test_what_cannot_be_kept_is_said_and_counts_all_the_same(fn, said, capsys, path):
    check(TASK, fn())
    out = " ".join(capsys.readouterr().out.split())
    assert "The pass counts" in out
    assert said in out
    assert not path.exists()


def _compiled(text):
    space = {"__name__": "__main__"}
    exec(compile(text, "<nowhere>", "exec"), space)
    return space["slot_mapping"]


def test_a_file_that_was_edited_after_its_import_is_not_kept(tmp_path, monkeypatch, capsys):
    place = tmp_path / "edited_09.py"
    place.write_text(PLAIN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import edited_09

    place.write_text(PLAIN.replace("-1 if", "-2 if"), encoding="utf-8")
    linecache.clearcache()
    check(TASK, edited_09.slot_mapping)
    assert "has changed since it was run" in " ".join(capsys.readouterr().out.split())
    del sys.modules["edited_09"]


def test_a_triton_kernel_is_kept_by_the_function_inside():
    pytest.importorskip("triton")
    from minikv.course.your_engine.source import source_of
    from minikv.nano.attention import paged_decode_kernel

    source = source_of(paged_decode_kernel)
    assert source.name == "paged_decode_kernel"
    assert source.text.startswith("@triton.jit\ndef paged_decode_kernel(")
    assert {"import triton", "import triton.language as tl"} <= set(source.needs.splitlines())


def test_keeping_runs_nothing_of_the_learners(path):
    marks = []

    class Loud:
        def __getattribute__(self, name):
            marks.append(name)
            raise RuntimeError

    keep_part(TASK, Loud(), "en")
    assert not marks
    assert not path.exists()


def test_off_and_other_exercises_keep_nothing(path, monkeypatch):
    keep_part("09.4", cells(PLAIN), "en")
    monkeypatch.setenv(VARIABLE, "off")
    check(TASK, cells(PLAIN))
    assert parts_path() is None
    assert kept_parts() == KeptParts()
    assert not path.exists()


def test_a_wrong_answer_keeps_what_was_there(path):
    kept = kept_of(cells(PLAIN))
    check(TASK, cells(PLAIN.replace("* block_size", "* 2")))
    assert kept_parts().parts == {TASK: kept}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": true, "parts": {}}',
        '{"format": 1, "parts": {"09.1": {"name": "a b"}}}',
        '{"format": 1, "parts": {"09.1": 3}}',
    ],
)
def test_a_damaged_file_is_refused_and_kept_aside_by_the_next_check(content, path, capsys):
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        kept_parts()
    assert caught.value.code == "parts_damaged"
    check(TASK, cells(PLAIN))
    assert "begins anew" in " ".join(capsys.readouterr().out.split())
    assert path.with_name(f"{path.name}.damaged").read_text(encoding="utf-8") == content
    assert list(kept_parts().parts) == [TASK]


@pytest.mark.parametrize(
    ("content", "code"),
    [('{"format": 2, "parts": []}', "progress_newer"), (" " * (MOST_BYTES + 1), "file_too_large")],
)
def test_a_newer_or_endless_file_stays_and_the_pass_counts(content, code, path, capsys):
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        kept_parts()
    assert caught.value.code == code
    check(TASK, cells(PLAIN))
    assert "could not be kept" in " ".join(capsys.readouterr().out.split())
    assert path.read_text(encoding="utf-8") == content


def test_parts_of_a_newer_minikv_stay(path):
    path.parent.mkdir()
    other = dict(name="f", source="def f(): ...", needs="", since="2027-01-01T00:00:00Z", version="9")
    path.write_text(json.dumps({"format": 1, "parts": {"19.1": other}}), encoding="utf-8")
    kept_of(cells(PLAIN))
    assert kept_parts().parts["19.1"] == KeptPart(**other)


def test_notebooks_that_keep_at_once_lose_nothing(path):
    def keep(number):
        part = KeptPart("f", f"def f(): return {number}", "", "2026-01-01T00:00:00Z", "1")
        PartsFile(path, wait_s=60).change(lambda kept: kept.after(f"{number}.1", part))

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(kept_parts().parts) == {f"{number}.1" for number in range(8)}


def test_the_source_that_is_kept_is_the_text_of_the_function():
    fn = cells(PLAIN)
    assert kept_of(fn).source == inspect.getsource(fn)
