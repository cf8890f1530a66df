"""Environments are made once, and anew where what goes into them has changed; a failed one is never taken for ready."""

import os
import shutil
import subprocess
import sys

import pytest

from tools.environments import ROOT, Environment


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An empty folder as an environment, and the installations that were asked for: written down, not made."""
    made = Environment(tmp_path / "venv")
    done: list[tuple[str, ...]] = []

    def install(self, *arguments):
        if "fails" in arguments:
            raise subprocess.CalledProcessError(1, ["pip", *arguments])
        done.append(arguments)

    monkeypatch.setattr(Environment, "install", install)
    monkeypatch.setattr(
        Environment, "_uninstall", lambda self, *packages: done.append(("without", *packages))
    )
    monkeypatch.setattr(Environment, "_create", lambda self: self.folder.mkdir(exist_ok=True))
    return made, done


def test_a_change_of_anything_that_goes_in_makes_it_anew(environment, tmp_path, monkeypatch):
    made, done = environment
    monkeypatch.setattr("tools.environments.ROOT", tmp_path)
    pins = tmp_path / "pins.txt"
    pins.write_text("a==1\n")
    assert made.make([["-c", "pins.txt", "a"], ["b"]])
    assert done == [("-c", "pins.txt", "a"), ("b",)]
    assert not made.make([["-c", "pins.txt", "a"], ["b"]])
    pins.write_text("a==2\n")
    assert made.make([["-c", "pins.txt", "a"], ["b"]])
    assert made.make([["-c", "pins.txt", "a"]])
    assert len(done) == 5


def test_after_a_failure_it_is_made_anew(environment):
    made, _ = environment
    assert made.make([["a"]])
    with pytest.raises(subprocess.CalledProcessError):
        made.make([["b"], ["fails"]])
    assert made.make([["a"]]), "what is there is neither the old one nor the new one"


def test_what_came_along_unwanted_is_removed_before_it_counts_as_made(environment, monkeypatch):
    made, done = environment
    assert made.make([["a"]], ["b", "c"])
    assert done == [("a",), ("without", "b", "c")]
    assert made.is_made([["a"]], ["b", "c"])
    assert not made.is_made([["a"]], ["b"])
    assert not made.make([["a"]], ["b", "c"])

    def fails(self, *packages):
        raise subprocess.CalledProcessError(1, ["pip", "uninstall", *packages])

    monkeypatch.setattr(Environment, "_uninstall", fails)
    with pytest.raises(subprocess.CalledProcessError):
        made.make([["a"]], ["c"])
    assert not made.is_made([["a"]], ["c"])


def test_nothing_of_this_checkout_leads_into_it(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & Environment.variables().keys()


@pytest.fixture
def make(tmp_path):
    """The lines that make would run for a target, in a folder where nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def lines(target: str) -> list[str]:
        # The tests may have been started by make: that one's flags are not for this one.
        alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        command = ["make", "-n", target]
        done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return lines


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_lab_says_what_it_takes_before_pip_shows_its_progress(make):
    lines = make("lab")
    [pip] = [number for number, line in enumerate(lines) if "pip install" in line]
    assert '-e ".[lab]"' in lines[pip]
    assert "quiet" not in lines[pip]
    said = " ".join(lines[:pip])
    assert all(word in said for word in ("minutes", "分钟", "MB to download", "MB、占用磁盘"))
    assert "minikv lab" in lines[-1]


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_test_installs_what_developers_need_once(make, tmp_path):
    for target in ("test", "test-quick", "test-colab", "test-python", "bench", "bench-vllm", "notebooks"):
        assert [line for line in make(target) if '-e ".[dev]"' in line], target
    for name in ("bin/python", ".ready", ".ready-lab"):
        (tmp_path / ".venv" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv" / name).touch()
    assert not [line for target in ("test", "lab") for line in make(target) if "pip" in line]
