"""The page of the model: tiny-gqa, computed by ``assets/model.js`` in the reader's browser."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from minikv.look import stylesheet
from tools.project import ROOT

EXAMPLE = "ada paris the old cat sleeps near ben oslo a red door waits behind the small tree ? ada"
ANSWER = 4  # tokens that it writes, as model_page.js has them
PAGE = 4  # tokens of a page, as there
ONE_RUN: dict[str, Any] = {
    "policy": "keydiff",
    "budget": 4,
    "n_sink": 1,
    "n_recent": 3,
}  # changes what it answers
MODEL_RUN = Path(__file__).with_name("recorded") / "model.json"
POLICIES = ("full", "streaming", "h2o", "knorm", "keydiff")  # as model.js has them
_FOLDER = ROOT / "minikv" / "models" / "data" / "tiny-gqa"
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_SAID = (
    "loading failed now next evicted unknown verdict verdict_full layer page head".split()
)  # by the script


def values(said: dict[str, str]) -> dict[str, Any]:
    """What the page's template asks for: the first text and its recorded run, the policies, and the script's words."""
    run = json.loads(MODEL_RUN.read_text(encoding="utf-8"))
    words = run["tokens"]
    held = range(len(words))
    layers = [(list(_pages(words, held, kept)), list(_pages(words, kept))) for kept in run["kept"]]
    numbers = {"tokens": len(words), "pages": len(layers[0][0])}
    numbers |= {"budget": ONE_RUN["budget"], "kept": len(run["kept"][0]), "kept_pages": len(layers[0][1])}
    return {
        "layers": layers,
        "run_said": said["model_example_lead"].format(**numbers),
        "verdict": said["model_verdict"].format(full=run["full"], written=run["written"]),
        "example": EXAMPLE,
        "policies": POLICIES,
        "words": {name: said[f"model_{name}"] for name in _SAID},
    }


def _pages(
    words: list[str], slots: Iterable[int], marked: Iterable[int] = ()
) -> Iterator[list[tuple[str, str]]]:
    """The pages of one layer, (kind, word) a slot: the words at ``slots`` in their order, those ``marked`` as new."""
    cells = [("new" if slot in marked else "held", words[slot]) for slot in slots]
    cells += [("empty", "")] * (-len(cells) % PAGE)
    for begin in range(0, len(cells), PAGE):
        yield cells[begin : begin + PAGE]


def write_assets(assets: Path) -> None:
    """Write the model's files, and the look of all widgets."""
    folder = assets / _FOLDER.name
    folder.mkdir()
    for name in _FILES:
        shutil.copy(_FOLDER / name, folder)
    (assets / "look.css").write_text(stylesheet(), encoding="utf-8")
