"""An environment with another project: what it needs is said before anything is downloaded, and it is made once."""

import os
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tools import kvpress, vllm
from tools.environments import INDEX, TORCH_INDEX, Environment, Peer


@pytest.fixture(params=[kvpress.PEER, vllm.PEER], ids=["kvpress", "vllm"])
def peer(request, tmp_path, monkeypatch):
    """A peer that lacks nothing here."""
    monkeypatch.setattr(Peer, "unreachable", lambda self: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100 * 2**30))
    return replace(request.param, folder=tmp_path / ".venv-peer", lacks=lambda environment: None)


@pytest.fixture(autouse=True)
def done(monkeypatch):
    """What pip was asked for; nothing is installed."""
    done = []
    monkeypatch.setattr(Environment, "install", lambda self, *names: done.append(names))
    monkeypatch.setattr(Environment, "_uninstall", lambda self, *names: done.append(("without", *names)))
    monkeypatch.setattr(Environment, "_create", lambda self: self.folder.mkdir(exist_ok=True))
    return done


def test_it_says_how_large_it_is_and_is_made_once(peer, done, capsys):
    assert peer.main([], "") == 0
    unwanted = [("without", *peer.unwanted)] if peer.unwanted else []
    assert done == [*map(tuple, peer.installs), *unwanted]
    first, last = capsys.readouterr().out.splitlines()
    assert peer.size in first
    assert peer.name in first
    assert "made in" in last
    assert peer.main([], "") == 0
    assert len(done) == len(peer.installs) + len(unwanted)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("lacking", ["disk", "network", "wheel"])
def test_what_is_lacking_is_said_and_nothing_is_made(peer, done, monkeypatch, capsys, lacking):
    if lacking == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1.26 * 2**30))
    elif lacking == "network":
        monkeypatch.setattr(Peer, "unreachable", lambda self: f"{self.name}: no route")
    else:
        peer = replace(peer, lacks=lambda environment: "no wheel")
    assert peer.main([], "") == 1
    told = capsys.readouterr()
    said = {"disk": (f"{peer.needed_gib} GiB", "1.3 GiB free"), "network": (f"{peer.name}: no route",)}
    assert all(word in told.err for word in said.get(lacking, ("no wheel",)))
    assert (done, told.out) == ([], "")
    assert not peer.folder.exists()


def test_a_python_that_is_not_there_and_a_failing_pip_are_told(peer, monkeypatch, capsys):
    assert peer.main(["--python", "/no/such/python"], "") == 1
    assert "/no/such/python" in capsys.readouterr().err

    def fails(self, *names):
        raise subprocess.CalledProcessError(1, ["pip", "install", *names])

    monkeypatch.setattr(Environment, "install", fails)
    assert peer.main([], "") == 1
    assert "could not be made" in capsys.readouterr().err


def answers(monkeypatch, *codes, said=""):
    """pip ends with these codes; the indexes that each call was given."""
    left, asked = list(codes), []

    def run(command, env, **options):
        assert "--dry-run" in command
        asked.append(env.get(INDEX, ""))
        return SimpleNamespace(returncode=left.pop(0), stderr=said)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_index_of_torch_is_used_where_the_others_do_not_have_it(monkeypatch):
    monkeypatch.setenv(INDEX, "https://mine")
    answers(monkeypatch, 0)
    assert vllm.PEER.unreachable() is None
    assert os.environ[INDEX] == "https://mine"
    asked = answers(monkeypatch, 1, 0)
    assert vllm.PEER.unreachable() is None
    assert asked == ["https://mine", f"https://mine {TORCH_INDEX}"]
    assert os.environ[INDEX] == asked[1]


def test_without_a_network_the_last_words_of_pip_are_told(monkeypatch):
    monkeypatch.delenv(INDEX, raising=False)
    asked = answers(
        monkeypatch, 1, 1, said="WARNING: a retry\nERROR: No matching distribution found for torch"
    )
    told = kvpress.PEER.unreachable()
    assert "No matching distribution" in told
    assert kvpress.RELEASE in told
    assert asked == ["", TORCH_INDEX]
    assert INDEX not in os.environ
