"""Fixtures of the command line's tests."""

import pytest

from tests.cli.inside import Terminal


@pytest.fixture
def terminal(monkeypatch, capsys):
    """``terminal("generate", "...")`` runs the command in this process."""
    return Terminal(monkeypatch, capsys)
