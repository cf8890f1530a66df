"""Fixtures of the command line's tests."""

import pytest

from minikv.engine.simulate import write_mooncake
from tests.cli.inside import Terminal
from tests.cli.simulating import TRACE


@pytest.fixture
def terminal(monkeypatch, capsys):
    """``terminal("generate", "...")`` runs the command in this process."""
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def load_file(tmp_path):
    """A file of ``TRACE``: what ``minikv simulate`` reads."""
    write_mooncake(TRACE, tmp_path / "load.jsonl")
    return str(tmp_path / "load.jsonl")
