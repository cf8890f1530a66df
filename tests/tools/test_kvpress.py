"""``python -m tools.kvpress``: what it needs is said before anything is downloaded, and what it makes is made once."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from tools import kvpress
from tools.environments import Environment


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which all is well, and what pip was asked for; nothing is installed."""
    done = []
    monkeypatch.setattr(kvpress, "FOLDER", tmp_path / ".venv-kvpress")
    monkeypatch.setattr(kvpress, "unreachable", lambda *what: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100 * 2**30))
    monkeypatch.setattr(Environment, "install", lambda self, *names: done.append(names))
    monkeypatch.setattr(Environment, "_create", lambda self: self.folder.mkdir(exist_ok=True))
    return done


def test_it_says_how_large_it_is_and_is_made_once(machine, capsys):
    assert kvpress.main([]) == 0
    assert machine == [*map(tuple, kvpress.INSTALLS)]
    assert "2 GB" in capsys.readouterr().out
    assert kvpress.main([]) == 0
    assert len(machine) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("lacking", ["disk", "network"])
def test_what_is_lacking_is_said_and_nothing_is_made(machine, monkeypatch, capsys, lacking):
    if lacking == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1.26 * 2**30))
    else:
        monkeypatch.setattr(kvpress, "unreachable", lambda what, installs: f"{what}: no route")
    assert kvpress.main([]) == 1
    said = capsys.readouterr()
    assert {"disk": "1.3 GiB free", "network": "kvpress 0.5.5: no route"}[lacking] in said.err
    assert (machine, said.out) == ([], "")


def test_a_failing_pip_is_told(machine, monkeypatch, capsys):
    def fails(self, *names):
        raise subprocess.CalledProcessError(1, ["pip", "install", *names])

    monkeypatch.setattr(Environment, "install", fails)
    assert kvpress.main([]) == 1
    assert "could not be made" in capsys.readouterr().err
