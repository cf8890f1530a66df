"""The page of the model: tiny-gqa, computed by ``assets/model.js`` in the reader's browser."""

import shutil
from pathlib import Path
from typing import Any

from minikv.look import stylesheet
from tools.project import ROOT

EXAMPLE = "ada paris the old cat sleeps near ben oslo a red door waits behind the small tree ? ada"
POLICIES = ("full", "streaming", "h2o", "knorm", "keydiff")  # as model.js has them
_FOLDER = ROOT / "minikv" / "models" / "data" / "tiny-gqa"
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_SAID = (
    "loading failed now next evicted unknown verdict verdict_full layer page head".split()
)  # by the script


def values(said: dict[str, str]) -> dict[str, Any]:
    """What the page's template asks for: the first text, the policies, and the script's words."""
    return {
        "example": EXAMPLE,
        "policies": POLICIES,
        "words": {name: said[f"model_{name}"] for name in _SAID},
    }


def write_assets(assets: Path) -> None:
    """Write the model's files, and the look of all widgets."""
    folder = assets / _FOLDER.name
    folder.mkdir()
    for name in _FILES:
        shutil.copy(_FOLDER / name, folder)
    (assets / "look.css").write_text(stylesheet(), encoding="utf-8")
