"""The list of what goes stale: its files and commands are there, and a check that passes gets its day."""

import datetime
import importlib.util
import shutil
import subprocess

import pytest

from tools.project import ROOT
from tools.stale import LIST, NEEDS, main, read_checks, write_day

CHECKS = read_checks()
TODAY = datetime.date.today()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_an_entry_names_files_that_are_there_and_commands_that_are_ours(check):
    assert check.needs in NEEDS
    assert check.days > 0
    assert check.what.endswith(".")
    assert check.ran is None or check.ran <= TODAY
    assert check.files
    for file in check.files:
        assert (ROOT / file).exists(), file
    for words in check.commands:
        if words[0] == "make":
            assert subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True).returncode == 0
        elif words[0] == "python":
            assert words[1] == "-m"
            assert importlib.util.find_spec(words[2]) is not None
            for file in words[3:]:
                assert not file.startswith("tests/") or (ROOT / file).is_file(), file
        else:
            assert words[0] == "npm"
    assert check.commands or check.check.endswith(".")


def test_what_goes_stale_by_others_is_on_the_list():
    files = {file for check in CHECKS for file in check.files}
    assert {
        "minikv/plan/data/models", "minikv/plan/data/gpus.json", "minikv/plan/data/config_defaults.json",
        "docs/names.md", "constraints-colab.txt", "constraints.txt", "tools/site/npm/package.json",
    } <= files  # fmt: skip


def test_a_day_is_written_and_nothing_else_changes(tmp_path):
    path = shutil.copy(LIST, tmp_path / "stale.toml")
    day = datetime.date(2031, 2, 3)
    for check in CHECKS:
        write_day(check.name, day, path)
    written = read_checks(path)
    assert {check.ran for check in written} == {day}
    for before, after in zip(CHECKS, written, strict=True):
        assert (before.name, before.what, before.check, before.days) == (
            after.name, after.what, after.check, after.days,
        )  # fmt: skip
    once = path.read_text()
    write_day(CHECKS[-1].name, day, path)
    write_day(CHECKS[0].name, day, path)
    assert path.read_text() == once


def test_what_passes_gets_its_day_and_what_fails_keeps_its_own(tmp_path, capsys):
    path = tmp_path / "stale.toml"
    entry = (
        '[{0}]\nwhat = "W {0}."\nfiles = ["x"]\ncheck = "{1}"\nneeds = "{2}"\ndays = 5\nran = 2020-01-01\n\n'
    )
    path.write_text(
        entry.format("good", "python -m a", "nothing")
        + entry.format("bad", "python -m b", "nothing")
        + entry.format("far", "make c", "network")
        + entry.format("seen", "Look.", "person")
    )
    ran = []

    def runs(check):
        ran.append(check.name)
        return check.name != "bad"

    def days():
        return {check.name: check.ran == TODAY for check in read_checks(path)}

    assert main(["--list"], path, runs) == 0
    assert ran == []
    assert main([], path, runs) == 1
    assert ran == ["good", "bad"]
    assert days() == {"good": True, "bad": False, "far": False, "seen": False}
    out = capsys.readouterr().out
    assert "failed: bad" in out
    assert "Look." in out
    assert main(["--network", "far"], path, runs) == 0
    assert main(["--compared", "seen"], path, runs) == 0
    assert days() == {"good": True, "bad": False, "far": True, "seen": True}
