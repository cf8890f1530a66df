"""The leaderboard: runs that several processes add, a file that somebody damaged, and no file at all."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minikv.course.capstone import Leaderboard, Plan, serve
from minikv.course.capstone.board import VARIABLE, BoardFile, board_path, entry_of
from minikv.course.capstone.entries import Entry, entries_as_json, parse_entries
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError, ConfigError
from tests.course.capstone_world import small_task

WRITERS, TURNS = 3, 15
WRITE = """
import sys
from dataclasses import replace
from pathlib import Path
from minikv.course.capstone.board import BoardFile
file, own, turns = BoardFile(Path(sys.argv[1]), wait_s=60), sys.argv[2], int(sys.argv[3])
entry = file.read()[0]
sys.stdin.read(1)  # all begin together
for turn in range(turns):
    file.change(lambda runs: (*runs, replace(entry, label=f"{own}.{turn}")))
"""


@pytest.fixture(scope="module")
def task():
    return small_task(1, requests=3)


@pytest.fixture(scope="module")
def run(task):
    eviction = EvictionConfig("keydiff", budget=16, n_recent=16, prefill_chunk=16)
    return serve(task, Plan(block_size=4, max_num_seqs=4, eviction=eviction, label="mine"))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "board.json"


def entry(**changes) -> Entry:
    plain = Entry(
        task="tiny-gqa, seed 0 #abcdef",
        model="tiny-gqa",
        device="cpu",
        label="",
        plan={"kv_dtype": "int8"},
        score=50.0,
        seconds=1.0,
        floor_seconds=0.5,
        quality=1.0,
        bar=0.9,
        held_bytes=4096,
        kv_bytes=8192,
        steps=3,
        preemptions=0,
        versions={"minikv": "0.1.0"},
    )
    return replace(plain, **changes)


def test_what_is_added_is_there_for_the_next_notebook(path, task, run):
    standing = Leaderboard(path).add(task, run)
    assert (standing.rank, standing.count, standing.aside) == (1, 1, None)
    (kept,) = Leaderboard(path).entries(task)
    assert kept == entry_of(run)
    assert (kept.task, kept.score, kept.seconds) == (task.id, run.score, run.seconds)
    assert kept.plan["eviction"]["policy"] == "keydiff"
    assert set(kept.versions) == {"minikv", "torch", "transformers"}
    assert Leaderboard(path).add(task, run).count == 1, "an equal run is kept once"
    for lang in ("en", "zh"):
        table = Leaderboard(path).table(lang)
        for said in ("mine", "keydiff", f"{run.score:.1f}", f"{run.seconds:.4f}", task.id):
            assert said in table
        assert f"{run.score:.1f}" in standing.text(lang)


def test_the_highest_score_stands_first(path):
    scores = [(10.0, 5.0), (70.0, 1.0), (0.0, 0.5), (70.0, 1.0), (0.0, 0.7)]
    runs = [entry(score=score, seconds=s, label=str(n)) for n, (score, s) in enumerate(scores)]
    runs.append(entry(task="another", score=99.0))
    BoardFile(path).change(lambda _: tuple(runs))
    board = Leaderboard(path)
    assert [each.label for each in board.entries()] == ["", "1", "3", "0", "2", "4"]
    lines = board.table("en").splitlines()
    assert len(lines) == 1 + len(runs)
    assert board.table("en", most=2).splitlines()[-1].startswith("and 4")


def test_a_run_of_another_task_is_refused(path, task, run):
    with pytest.raises(ArgumentError) as refused:
        Leaderboard(path).add(small_task(2), run)
    assert refused.value.code == "capstone_other_task"
    assert not path.exists()


def test_processes_that_write_at_once_lose_nothing(path):
    BoardFile(path).change(lambda _: (entry(label="first"),))
    command = [sys.executable, "-c", WRITE, str(path)]
    writers = [
        subprocess.Popen([*command, str(number), str(TURNS)], stdin=subprocess.PIPE)
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.stdin.write(b".")
        writer.stdin.close()
    assert [writer.wait(timeout=300) for writer in writers] == [0] * WRITERS
    labels = [each.label for each in BoardFile(path).read()]
    assert labels[0] == "first"
    assert sorted(labels[1:]) == sorted(
        f"{number}.{turn}" for number in range(WRITERS) for turn in range(TURNS)
    )


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"format": 1}', b'{"format": 1, "runs": [{}]}'])
def test_a_damaged_file_is_kept_aside_and_said(path, task, run, content):
    path.parent.mkdir(parents=True)
    for number in (1, 2):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            Leaderboard(path).table()
        assert refused.value.code == "board_damaged"
        assert path.read_bytes() == content, "reading changes nothing"
        standing = Leaderboard(path).add(task, run)
        aside = path.with_name(path.name + (".damaged" if number == 1 else ".damaged2"))
        assert standing.aside == aside
        assert aside.read_bytes() == content
        assert aside.name in standing.text("en")
        assert aside.name in standing.text("zh")
        assert len(Leaderboard(path).entries()) == 1


def test_the_file_of_a_newer_minikv_stays_as_it_is(path, task, run):
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 2, "runs": 5}')
    for call in (lambda: Leaderboard(path).add(task, run), Leaderboard(path).table):
        with pytest.raises(ConfigError) as refused:
            call()
        assert refused.value.code == "board_newer"
    assert path.read_text() == '{"format": 2, "runs": 5}'


def test_whoever_waits_too_long_gives_up(path):
    file = BoardFile(path, wait_s=0)
    with file._locked(), pytest.raises(ConfigError) as refused:
        file.change(lambda runs: (*runs, entry()))
    assert refused.value.code == "board_busy"
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", 5),
        ("device", "two\nlines"),
        ("label", "x" * 201),
        ("plan", []),
        ("plan", {"eviction": {"policy": {"name": {}}}}),
        ("plan", {"block_size": float("nan")}),
        ("score", -1.0),
        ("score", True),
        ("seconds", float("inf")),
        ("held_bytes", 1.5),
        ("steps", -1),
        ("preemptions", 2**63),
        ("versions", {"minikv": 1}),
    ],
)
def test_what_minikv_would_not_have_written_is_damage(name, value):
    written = {"format": 1, "runs": [asdict(entry()) | {name: value}]}
    with pytest.raises(ConfigError) as refused:
        parse_entries(json.dumps(written).encode(), "board.json")
    assert refused.value.code == "board_damaged"
    assert f"runs[0].{name}" in refused.value.text("en")


def test_what_is_written_is_read():
    runs = (entry(), entry(label="zwei ≤ 2", plan={"eviction": {"policy": "h2o", "budget": 3}}, score=0))
    assert parse_entries(entries_as_json(runs).encode(), "board.json") == runs


def test_off_writes_nothing(tmp_path, monkeypatch, task, run):
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for word in ("off", "OFF"):
        monkeypatch.setenv(VARIABLE, word)
        board = Leaderboard()
        assert board.path is None
        assert "No run" in board.table("en")
        assert board.add(task, run).rank == 1
        assert board.add(task, run).count == 1
        for lang in ("en", "zh"):
            assert "mine" in board.table(lang)
            assert VARIABLE in board.table(lang)
        assert Leaderboard().entries() == ()
    assert list(tmp_path.iterdir()) == []


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert board_path({}, "linux") == tmp_path / ".local" / "share" / "minikv" / "leaderboard.json"
    assert board_path({VARIABLE: "mine.json"}, "linux") == Path("mine.json")
    assert board_path({VARIABLE: "off"}, "linux") is None

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError) as refused:
        board_path({}, "linux")
    assert refused.value.code == "board_no_home"


def test_what_builds_and_tests_notebooks_records_nothing(tmp_path):
    import tools.gpu.run
    from tools.notebooks.execute import kernel_environment

    assert os.environ[VARIABLE] == "off", "of every test"
    assert tools.gpu.run.environment(tmp_path)[VARIABLE] == "off"
    assert kernel_environment(tmp_path)[VARIABLE] == "off"
