"""The page of the calculator: the budget widget of lesson 02, answered by the package's own Python in the browser.

Pyodide runs in a worker of the page, with the files of ``minikv`` that plan and nothing else. Without it the page is a
text: a table of the catalogue, computed when the site is built.
"""

import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import rich

from minikv import plan_memory
from minikv.course.widgets.fields import offered_models
from minikv.errors import MiniKVError
from minikv.plan import CacheSpec
from tools.project import ROOT
from tools.site import pyodide
from tools.site.browser import widgets

GPU = "H200"  # of the table
# What plans, and what the widget says: no ``__init__`` of the course, which imports what notebooks need.
_OURS = (
    "minikv/*.py",
    "minikv/blocks/*.py",
    "minikv/look/*.py",
    "minikv/look/*.css",
    "minikv/messages/*.toml",
    "minikv/plan/**/*.py",
    "minikv/plan/**/*.json",
    "minikv/course/widgets/*.js",
    "minikv/course/widgets/*.css",
)
_SHARED = ("allocation_case", "base", "blocks", "budget_view", "fields", "form", "parts", "pool", "table")
_WIDGETS = tuple(f"minikv/course/widgets/{name}.py" for name in (*_SHARED, *widgets.LIVE))
_MOTION = tuple(
    f"minikv/course/motion/{name}.py" for name in ("paging_nano", "paging_states", "paging_view", "scene")
)
_NANO = tuple(f"minikv/nano/{name}.py" for name in ("__init__", "block_manager", "scheduler", "sequence"))
_ALONE = (*_WIDGETS, *_MOTION, *_NANO)
# Their own Python, in browser/; the last three stand for libraries that a notebook has.
_PAGES = {
    "calculator": "calculator",
    "playground": "playground",
    "widgets": "widgets",
    "anywidget": "stand_in",
    "traitlets": "stand_in",
    "numpy": "numbers",
}
_RICH = ("__init__.py", "_extension.py", "cells.py", "_unicode_data/*.py")  # how wide a letter is


@dataclass(frozen=True)
class Row:
    """A model of the catalogue: bytes of each token, what a sequence costs whatever its length, and how many tokens the
    cache of ``GPU`` holds (0: not even the weights)."""

    model: str
    token_bytes: int
    fixed_bytes: int
    tokens: int


def values(python: Path | None) -> dict[str, Any]:
    """What the page's template asks for: the megabytes that Python has (0: it is absent), and the table's rows."""
    return {"size": pyodide.megabytes(python), "rows": rows()}


@cache
def rows() -> list[Row]:
    specs = {name: CacheSpec.from_config(name) for name in offered_models()}
    return [Row(name, spec.slope(), spec.constant_state_bytes, _tokens(name)) for name, spec in specs.items()]


def _tokens(name: str) -> int:
    try:
        return int(plan_memory(name, gpu=GPU).max_tokens)
    except MiniKVError:
        return 0


def write_assets(assets: Path, python: Path | None) -> None:
    """Write what the page loads when it is asked to."""
    if python is not None:
        pyodide.copy_to(python, assets / "pyodide")
        write_package(assets / "minikv.zip")


def write_package(path: Path) -> None:
    """Write the Python that the pages run: ours, their own, and what of rich measures words."""
    files = {name: ROOT / name for name in _ALONE}
    for pattern in _OURS:
        files |= {found.relative_to(ROOT).as_posix(): found for found in ROOT.glob(pattern)}
    folder = Path(rich.__file__).parent
    for pattern in _RICH:
        files |= {f"rich/{found.relative_to(folder).as_posix()}": found for found in folder.glob(pattern)}
    files |= {f"{name}.py": Path(__file__).with_name("browser") / f"{own}.py" for name, own in _PAGES.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, file in sorted(files.items()):
            # The same bytes for the same files, whenever it is written.
            package.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
