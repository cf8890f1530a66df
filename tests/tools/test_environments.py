"""Environments are made once, and anew where what goes into them has changed; a failed one is never taken for ready."""

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


def test_nothing_of_this_checkout_leads_into_it(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & Environment.variables().keys()
