"""``minikv watch`` on the terminal: the bars, the present state and the end, and one sentence for every bad input."""

import pytest

from minikv.cli import watch_run
from minikv.cli.watch_run import Watched
from minikv.cli.watch_view import BAR_WIDTH, PLAIN
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
    assert "kind 1" in shown


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_once_prints_the_present_state_and_leaves(lang, file, terminal):
    done = terminal("watch", str(file), "--once", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert "33.3 %" in done.out
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
