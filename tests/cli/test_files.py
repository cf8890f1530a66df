"""Files that a command writes, on a disk that fills up: no half line, no empty report, and the old report stays."""

import json
import os
import stat
import sys
from collections import deque

import pytest

from minikv.cli.files import EventFile, ReportFile
from minikv.engine.ext.events import Event, from_json
from minikv.errors import ConfigError
from tests.cli.inside import is_one_sentence

resource = pytest.importorskip("resource", reason="a limit on the size of files stands for a full disk")
LIMIT = 8192  # bytes
REPORT = json.dumps({"old": "an hour's work"})


@pytest.fixture
def full_disk(monkeypatch):
    """No file becomes larger than ``LIMIT`` bytes."""
    # Python would keep half of a module, and read it ever after
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def arrivals(count):
    return [Event("arrive", float(number), f"request {number}", 0, 7) for number in range(count)]


@pytest.mark.usefixtures("full_disk")
def test_an_event_file_ends_with_a_whole_line(tmp_path):
    path = tmp_path / "events.jsonl"
    with pytest.raises(ConfigError, match="cannot be written"), EventFile(str(path)) as file:
        deque(map(file, arrivals(1000)))
    written = path.read_text()
    assert written.endswith("\n")
    found = [from_json(line) for line in written.splitlines()]
    assert found == arrivals(1000)[: len(found)]
    assert LIMIT - 200 < len(written) <= LIMIT


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("there", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("size", [1, LIMIT + 1], ids=["small", "too large"])
def test_a_report_is_whole_or_what_was_there_stays(there, size, tmp_path):
    path = tmp_path / "report.json"
    if there:
        path.write_text(REPORT)
    new = "x" * size
    if size > LIMIT:
        with pytest.raises(ConfigError, match="cannot be written"), ReportFile(str(path)) as file:
            file.write(new)
    else:
        with ReportFile(str(path)) as file:
            file.write(new)
    kept = {} if size > LIMIT and not there else {"report.json": REPORT if size > LIMIT else new}
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == kept


def test_a_run_without_a_report_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), ReportFile(str(tmp_path / "report.json")):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_report_keeps_a_link_and_the_rights_of_what_it_replaces(tmp_path):
    (tmp_path / "real").write_text(REPORT)
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    with ReportFile(str(tmp_path / "link")) as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640


def test_a_pipe_is_written_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with ReportFile(str(tmp_path / "pipe")) as file:
        file.write("new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.usefixtures("full_disk")
def test_a_plot_that_the_disk_cannot_take_costs_no_older_one(tmp_path, terminal, load_file):
    path = tmp_path / "plot" / "hits.html"
    path.parent.mkdir()
    path.write_text("an older plot")
    done = terminal("simulate", load_file, "--hit-rate", "--sweep", "num_blocks=4,8", "--plot", str(path))
    assert done.code == 2
    assert done.err.startswith("minikv: ")
    assert path.read_text() == "an older plot"
    assert [one.name for one in path.parent.iterdir()] == ["hits.html"]


NO_HOME = "~no-such-user-of-minikv/a"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", NO_HOME, "--gpu", "H200"),
        ("check-log", NO_HOME),
        ("simulate", NO_HOME),
        ("simulate", "{load}", "--write", NO_HOME),
        ("simulate", "{load}", "--hit-rate", "--sweep", "num_blocks=4,8", "--plot", NO_HOME),
        ("generate", "x", "--model", NO_HOME),
        ("generate", "x", "--events", NO_HOME),
        ("generate", "x", "--profile", NO_HOME),
        ("watch", NO_HOME),
        ("watch", NO_HOME, "--once"),
        ("lab", "--copy-only", "--folder", NO_HOME),
        ("progress", "--export", NO_HOME),
        ("progress", "--import", NO_HOME),
    ],
    ids=" ".join,
)
def test_a_home_that_nobody_has_is_one_sentence(arguments, lang, terminal, load_file, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIKV_PROGRESS", str(tmp_path / "progress.json"))
    done = terminal(*(argument.format(load=load_file) for argument in arguments), "--lang", lang)
    assert is_one_sentence(done), done
    assert NO_HOME in done.err
