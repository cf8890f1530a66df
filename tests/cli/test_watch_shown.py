"""``minikv watch`` on the terminal: the bars, the present state and the end, and one sentence for every bad input."""

import os
from unittest.mock import Mock

import pytest

from minikv.cli import watch_run
from minikv.cli.watch_run import Watched
from minikv.cli.watch_view import BAR_WIDTH, PLAIN
from minikv.i18n import text
from tests.cli.inside import is_one_sentence
from tests.cli.watching import REST, RUN, age, lines, step, text_of


def test_a_bar_shows_used_cached_and_empty_blocks(file):
    watched = Watched(file)
    watched.read()
    shown = text_of(watched)
    assert "█" * (BAR_WIDTH * 3 // 8) + "▒" * (BAR_WIDTH // 8) + "·" * (BAR_WIDTH // 2) in shown
    assert "3 used, 1 cached, 4 empty of 8" in shown
    assert "#########+++............" in text_of(watched, PLAIN)
    watched.run.add(step(9, 20.0, used=(1, 0), cached=(0, 5000), total=(10_000, 5000)))
    shown = text_of(watched)
    assert "█" + "·" * (BAR_WIDTH - 1) in shown, "one block of many is seen"
    assert "▒" * BAR_WIDTH in shown
    assert "group 1" in shown


@pytest.mark.parametrize(("lang", "share"), [("en", "33.3 %"), ("zh", "33.3%")])
def test_once_prints_the_present_state_and_leaves(lang, share, file, terminal):
    done = terminal("watch", str(file), "--once", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert share in done.out
    assert file.name in "".join(done.out.split())  # a long path is folded, never cut
    assert ("序列" in done.out) == (lang == "zh")
    assert "GiB" in done.out


def test_a_file_whose_run_is_over_is_shown_and_left(file, terminal):
    file.write_text(lines(RUN + REST))
    age(file, 60)
    done = terminal("watch", str(file))
    assert (done.code, done.err) == (0, "")
    assert "over" in done.out
    assert done.out.endswith("\n")


def test_ctrl_c_is_the_usual_end(file, terminal, monkeypatch):
    def interrupted(watched, show, interval):
        watched.read()
        show(watched)
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_run, "follow", interrupted)
    done = terminal("watch", str(file))
    assert (done.code, done.err) == (0, "")
    assert "3 used" in done.out


@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_file_without_events_is_waited_for_in_so_many_words(lang, there, tmp_path, terminal, monkeypatch):
    path = tmp_path / "evnts.jsonl"
    if there:
        path.write_text("")
    monkeypatch.setattr(watch_run.time, "sleep", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(watch_run.follow, "__defaults__", (watch_run.time.sleep,))
    done = terminal("watch", str(path), "--lang", lang)
    assert done.code == 0
    assert done.err == text("cli.watch_waiting", lang, path=path) + "\n"


def test_after_ten_seconds_the_files_of_events_nearby_are_named(file, tmp_path):
    (tmp_path / "notes.txt").write_text("no events\n")
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "old.jsonl").write_text(lines(RUN))
    age(tmp_path / "old.jsonl", 60)
    said, now = [], [0.0]
    for name, near in (("evnts.jsonl", "events.jsonl, old.jsonl"), ("no/such/folder/x", None)):
        waiting = watch_run.Waiting(said.append, "en", lambda: now[0])
        watched = Watched(tmp_path / name)
        for now[0] in (0.0, 5.0, 9.9, 10.0, 20.0):
            watched.read()
            waiting.look(watched)
            assert len(said) == (1 if now[0] < 10 else 2)
        assert "Waiting for" in said[0]
        key = "cli.watch_near" if near else "cli.watch_none_near"
        assert said[1] == text(key, path=tmp_path / name, folder=(tmp_path / name).parent, files=near)
        said.clear()


def test_nothing_is_said_of_a_run_that_has_begun(file, tmp_path):
    said, now = [], [0.0]
    waiting = watch_run.Waiting(said.append, "en", lambda: now[0])
    watched = Watched(tmp_path / "later.jsonl")
    watched.read()
    waiting.look(watched)
    file.rename(tmp_path / "later.jsonl")
    now[0] = 11.0
    watched.read()
    waiting.look(watched)
    assert len(said) == 1
    begun = Watched(tmp_path / "later.jsonl")
    begun.read()
    watch_run.Waiting(said.append, "en", lambda: now[0]).look(begun)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{folder}/none.jsonl", "--once"], "none.jsonl"),
        (["{folder}", "--once"], "{folder}"),
        (["{folder}"], "{folder}"),
        (["a\0b", "--once"], "null"),
        (["{folder}/none.jsonl", "--interval", "0"], "--interval"),
        (["{folder}/none.jsonl", "--interval", "nan"], "--interval"),
        (["{folder}/none.jsonl", "--interval", "1e9"], "--interval"),
        (["{folder}/none.jsonl", "--lang", "fr"], "fr"),
    ],
)
def test_bad_input_is_one_sentence(arguments, names, terminal, tmp_path):
    done = terminal("watch", *(argument.format(folder=tmp_path) for argument in arguments))
    assert is_one_sentence(done), done
    assert names.format(folder=tmp_path) in done.err


def test_watching_makes_no_cuda_context_and_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; sys.argv = ['minikv', 'watch', 'none', '--once']\nfrom minikv.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 2\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
