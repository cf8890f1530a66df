"""No test of this folder asks the real hub, or finds what this machine has cached; and a folder to be damaged."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of tiny-gqa."""
    from minikv.models.sources import find_folder

    return Path(shutil.copytree(find_folder("tiny-gqa"), tmp_path / "copy"))
