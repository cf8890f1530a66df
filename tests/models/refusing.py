"""What the tests of ``load`` do to a folder, and what they expect of a refusal."""

import json
from pathlib import Path

import pytest

from minikv.errors import ConfigError, MiniKVError
from minikv.models import load


def edit(folder: Path, **fields) -> None:
    """Change the config.json; None takes a field away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def refused(name, kind: type[MiniKVError] = ConfigError, **options) -> MiniKVError:
    with pytest.raises(kind) as caught:
        load(name, **options)
    assert caught.value.text("zh") != caught.value.text("en")
    return caught.value
