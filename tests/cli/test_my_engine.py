"""``minikv my-engine``: what it hands on, and one sentence for every bad input."""

import json

import pytest

from minikv.course.progress_file import VARIABLE
from minikv.course.your_engine import engine
from minikv.course.your_engine.kept import KeptPart, KeptParts, PartsFile, parts_path
from minikv.course.your_engine.race import Lane, Race
from minikv.extras import ENGINE
from tests.cli.inside import is_one_sentence

SOURCE = "def pack(self, step, seq, budget):\n    return 0  # of mine\n"


@pytest.fixture(autouse=True)
def parts(tmp_path, monkeypatch) -> PartsFile:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept" / "progress.json"))
    return PartsFile(parts_path())


def keep(parts: PartsFile, source: str = SOURCE, task: str = "11a.5") -> None:
    part = KeptPart("pack", source, "", "2026-11-23T10:15:00Z", "0.1.0")
    parts.change(lambda kept: KeptParts({**kept.parts, task: part}))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_exports_over_an_export_and_over_nothing_else(lang, parts, terminal, tmp_path):
    target = tmp_path / "mine.py"
    assert terminal("my-engine", "--export", str(target), "--lang", lang).code == 0
    assert "of mine" not in target.read_text()
    keep(parts)
    done = terminal("my-engine", "--export", str(target), "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert str(target) in done.out
    text = target.read_text()
    assert "# yours, since 2026-11-23, exercise 11a.5\n    def pack(" in text
    assert "Scheduler.pack" in text.partition('"""\n')[0]
    assert text.count("of mine") == 1
    other = tmp_path / "notes.py"
    other.write_text("# mine\n" + text)
    before = other.read_bytes()
    other.write_bytes(b"x" * 600 + before)
    for place in (other, tmp_path, tmp_path / "no" / "folder.py"):
        done = terminal("my-engine", "--export", str(place), "--lang", lang)
        assert is_one_sentence(done)
        assert str(place) in done.err
    assert other.read_bytes() == b"x" * 600 + before


def test_a_name_that_ends_a_string_makes_no_broken_file(terminal, tmp_path):
    target = tmp_path / 'a"""b\\x.py'
    assert terminal("my-engine", "--export", str(target)).code == 0
    compile(target.read_text(), "exported", "exec")


@pytest.mark.parametrize(
    "source", ["def pack(:", "def pack(self, step, seq, budget):\n\0", "from minikv import LLM"]
)
def test_a_part_that_cannot_be_exported_is_named(source, parts, terminal, tmp_path):
    keep(parts)
    content = json.loads(parts.path.read_text())
    field = "needs" if source.startswith("from") else "source"
    content["parts"]["11a.5"][field] = source
    parts.path.write_text(json.dumps(content))
    done = terminal("my-engine", "--export", str(tmp_path / "mine.py"))
    assert is_one_sentence(done)
    assert "11a.5" in done.err
    assert not (tmp_path / "mine.py").exists()


def test_it_races_with_the_parts_that_are_kept(parts, terminal, monkeypatch):
    keep(parts)
    seen = []

    def quick(kept, vllm):
        assert vllm is None
        seen.append(set(kept))
        return Race((Lane("nano", 0.5, 2**20),), 4, 100, 1, 0, tuple(kept), "cpu", 1.0)

    monkeypatch.setattr(engine, "run_race", quick)
    done = terminal("my-engine", "--race")
    assert (done.code, done.err) == (0, "")
    assert seen == [{"11a.5"}]
    assert "200" in done.out
    assert "1.00 MiB" in done.out
    assert "令牌" not in terminal("my-engine", "--race", "--lang", "zh").out
    assert "峰值" in terminal("my-engine", "--race", "--lang", "zh").out


def test_without_an_option_it_shows_the_table_of_parts(parts, terminal, monkeypatch):
    keep(parts)
    seen = {name: 0 for name in ("requests", "tokens", "steps", "hits", "chunks", "preemptions")}
    answer = {"calls": {"11a.5": 3}, "findings": {}, "effects": {}, "printed": {}, "differs": None}
    monkeypatch.setattr(engine, "run_child", lambda kept, lang: {**answer, "seen": seen, "total": seen})
    done = terminal("my-engine")
    assert (done.code, done.err) == (0, "")
    assert "Scheduler.pack" in done.out
    assert "1 of 15" in done.out


def test_bad_input_is_one_sentence(parts, terminal, tmp_path):
    for arguments in (("--race", "--export", str(tmp_path / "x.py")), ("--lang", "fr")):
        assert is_one_sentence(terminal("my-engine", *arguments))
    keep(parts)
    parts.path.write_text("{")
    for arguments in ((), ("--race",), ("--export", str(tmp_path / "x.py"))):
        done = terminal("my-engine", *arguments)
        assert is_one_sentence(done)
        assert str(parts.path) in done.err
    assert not (tmp_path / "x.py").exists()


def test_without_torch_it_names_the_extra_and_still_exports(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr("minikv.extras.installed", lambda name: None if name in ENGINE else "1")
    for arguments in ((), ("--race",)):
        done = terminal("my-engine", *arguments)
        assert is_one_sentence(done)
        assert "minikv[engine]" in done.err
    assert terminal("my-engine", "--export", str(tmp_path / "x.py")).code == 0
