"""``python -m tools.vllm``: what it needs is said before anything is downloaded, and what it makes is made once."""

import platform
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools import vllm
from tools.environments import Environment


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which all is well, and what pip was asked for; nothing is installed."""
    done = []
    monkeypatch.setattr(vllm, "VLLM_FOLDER", tmp_path / ".venv-vllm")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(vllm, "PYTHONS", (sys.version_info[:2], sys.version_info[:2]))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100 * 2**30))
    monkeypatch.setattr(vllm, "unreachable", lambda: None)
    monkeypatch.setattr(Environment, "install", lambda self, *names: done.append(names))
    monkeypatch.setattr(Environment, "_uninstall", lambda self, *names: done.append(("without", *names)))
    monkeypatch.setattr(Environment, "_create", lambda self: self.folder.mkdir(exist_ok=True))
    return done


def test_it_says_how_large_it_is_and_is_made_once(machine, capsys):
    assert vllm.main([]) == 0
    assert machine == [*map(tuple, vllm.INSTALLS), ("without", *vllm.UNWANTED)]
    first, last = capsys.readouterr().out.splitlines()
    assert "3.5 GB" in first
    assert vllm.RELEASE in first
    assert "made in" in last
    assert vllm.main([]) == 0
    assert len(machine) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda patch: patch(sys, "platform", "darwin"), ("Linux", "darwin")),
        (lambda patch: patch(platform, "machine", lambda: "riscv64"), ("x86_64", "riscv64")),
        (lambda patch: patch(vllm, "PYTHONS", ((3, 1), (3, 2))), ("3.1 to 3.2", "--python")),
        (
            lambda patch: patch(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1.26 * 2**30)),
            ("5.0 GiB", "1.3 GiB"),
        ),
        (lambda patch: patch(vllm, "unreachable", lambda: "pip says: no route"), ("no route",)),
    ],
    ids=["system", "processor", "python", "disk", "network"],
)
def test_what_is_lacking_is_said_and_nothing_is_made(machine, monkeypatch, capsys, change, said):
    change(monkeypatch.setattr)
    assert vllm.main([]) == 1
    told = capsys.readouterr()
    assert all(word in told.err for word in said), told.err
    assert (machine, told.out) == ([], "")
    assert not vllm.VLLM_FOLDER.exists()


def test_a_python_that_is_not_there_and_a_failing_pip_are_told(machine, monkeypatch, capsys):
    assert vllm.main(["--python", "/no/such/python"]) == 1
    assert "/no/such/python" in capsys.readouterr().err

    def fails(self, *names):
        raise subprocess.CalledProcessError(1, ["pip", "install", *names])

    monkeypatch.setattr(Environment, "install", fails)
    assert vllm.main([]) == 1
    assert "could not be made" in capsys.readouterr().err


def answers(monkeypatch, *codes, said=""):
    """pip ends with these codes; the indexes that each call was given."""
    left, asked = list(codes), []

    def run(command, env, **options):
        assert "--dry-run" in command
        asked.append(env.get(vllm.INDEX, ""))
        return SimpleNamespace(returncode=left.pop(0), stderr=said)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_index_of_torch_is_used_where_the_others_do_not_have_it(monkeypatch):
    monkeypatch.setenv(vllm.INDEX, "https://mine")
    assert answers(monkeypatch, 0) is not None
    assert vllm.unreachable() is None
    assert Environment.variables()[vllm.INDEX] == "https://mine"
    asked = answers(monkeypatch, 1, 0)
    assert vllm.unreachable() is None
    assert asked == ["https://mine", f"https://mine {vllm.TORCH_INDEX}"]
    assert Environment.variables()[vllm.INDEX] == asked[1]


def test_without_a_network_the_last_words_of_pip_are_told(monkeypatch):
    monkeypatch.delenv(vllm.INDEX, raising=False)
    asked = answers(
        monkeypatch, 1, 1, said="WARNING: a retry\nERROR: No matching distribution found for torch"
    )
    assert "No matching distribution" in vllm.unreachable()
    assert asked == ["", vllm.TORCH_INDEX]
    assert vllm.INDEX not in Environment.variables()
