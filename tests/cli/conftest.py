"""Fixtures of the command line's tests."""

import pytest

from minikv.models import load
from minikv.simulate import write_mooncake
from tests.cli.inside import Terminal
from tests.cli.simulating import TRACE
from tests.cli.watching import RUN, lines


@pytest.fixture
def terminal(monkeypatch):
    """``terminal("generate", "...")`` runs the command in this process."""
    return Terminal(monkeypatch)


@pytest.fixture
def load_file(tmp_path):
    """A file of ``TRACE``: what ``minikv simulate`` reads."""
    write_mooncake(TRACE, tmp_path / "load.jsonl")
    return str(tmp_path / "load.jsonl")


@pytest.fixture
def file(tmp_path):
    """A file of the events of ``RUN``: what ``minikv watch`` reads."""
    path = tmp_path / "events.jsonl"
    path.write_text(lines(RUN))
    return path


@pytest.fixture(scope="session")
def loaded():
    return load("tiny-gqa")


@pytest.fixture
def loaded_once(loaded, monkeypatch):
    """Loading is looked at elsewhere."""

    def quick(name, *, dtype, device, tp=1):
        known = (name, dtype, device, tp) == ("tiny-gqa", "auto", "auto", 1)
        return loaded if known else load(name, dtype=dtype, device=device, tp=tp)

    monkeypatch.setattr("minikv.models.load", quick, raising=False)
