"""Widgets of lessons that work on their pages: recorded ones alone, live ones with the package's Python in the browser.

A notebook keeps a picture of a widget. The cells that make some of the widgets, those that need no model and no
measurement, run once more when the site is built, with the assignments of earlier cells that they read. What the
widget's script asks for is then in the page. A widget with controls asks Python for each answer
(``browser/widgets.py``), the others have all of their states with them. Of widgets that need torch or numpy the
states lie in ``recorded/`` (``record.py``).
"""

import ast
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard
from unittest.mock import patch

import anywidget

from minikv.course import t
from minikv.course.motion import BatchingMotion, MemoryBarMotion, PagingMotion
from minikv.course.widgets import (
    BlocksWidget,
    EngineWidget,
    FleetWidget,
    GrowthWidget,
    HeatMapWidget,
    PoolWidget,
    SegmentsWidget,
)
from minikv.course.widgets.base import script, style
from tools.site.browser.widgets import LIVE

SETUP = "minikv-setup"
# Lesson and cell.
CELLS = (
    ("02", "widget_code"),
    ("04", "widget"),
    ("07", "story_cat"),
    ("07", "story_big"),
    ("08", "growing_bar"),
    ("08", "widget"),
    ("09", "paging_motion"),
    ("09", "widget"),
    ("10", "widget"),
    ("11a", "seats_motion"),
    ("12", "widget"),
    ("16", "story"),
)
# The same for widgets that record.py runs, with the earlier cells that belong to them from the first line to the last.
RECORDED: dict[tuple[str, str], tuple[str, ...]] = {
    ("00", "live"): (),
    ("00", "still"): ("live",),
    ("00", "pool"): ("fill",),
    ("06", "growth_widget"): (),
    ("08", "live_pool"): (),
    ("11a", "many_code"): (),
    ("11b", "widget"): (),
    ("11c", "together_code"): (),
    ("14", "heat_map"): (),
    ("14", "live"): (),
    ("15", "shared"): (),
    ("16", "live_answers"): (),
    ("17", "widget"): (),
    ("18", "widget"): (),
}
GIVEN = {"here": None}  # in place of what a lesson measures on its machine
FOLDER = Path(__file__).with_name("recorded")
# Script and style of monitors, which import torch: the site is built without it.
MONITORS = {
    "monitor_eviction": (
        "bar.js form.js buttons.js readout.js live.js table.js chart.js shades.js monitor_eviction.js".split(),
        ["heat_map.css", "monitor_eviction.css"],
    ),
    "monitor_memory": (
        "bar.js form.js buttons.js readout.js live.js parts.js chart.js monitor_memory.js".split(),
        [],
    ),
}


@dataclass(frozen=True)
class Offered:
    """A widget on a page: the files of its script and style, its values, and how Python makes it (None: recorded).

    ``recorded`` is the file of its values and states in ``recorded/``, "" where they are in the page.
    """

    name: str
    traits: dict[str, Any]
    live: dict[str, Any] | None = None
    recorded: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def offered(number: str, cells: Sequence[Mapping[str, Any]], lang: str, key: str) -> Offered | None:
    """Return the widget that the cell ``key`` of a lesson shows, None where the site has its picture alone."""
    if (number, key) in RECORDED:
        return _recorded(number, cells, lang, key)
    if (number, key) not in CELLS:
        return None
    shown: list[Any] = []
    presses: list[tuple[str, ...]] = []
    act = PoolWidget.act

    def pressed(pool: PoolWidget, *press: str) -> None:
        presses.append(press)
        act(pool, *press)

    with patch.object(PoolWidget, "act", pressed):
        run(code_of(cells, key), number, lang, lambda widget, **_: shown.append(widget))
    [widget] = shown
    name = name_of(widget)
    live: dict[str, Any] | None = None
    if name in LIVE:
        live = {"widget": name, "lang": lang, "start": widget.state}
    if isinstance(widget, PoolWidget):
        sizes = {"num_blocks": len(widget.frames[0]["cells"]), "block_size": widget.form["block_size"]}
        live = {"lang": lang, "start": sizes, "presses": presses}
    if isinstance(widget, PagingMotion):
        widget.step = len(widget.states) // 2  # of an empty pool nothing can be seen
    return Offered(name, traits_of(widget), live)


def name_of(widget: anywidget.AnyWidget) -> str:
    """Return the name of a widget's files."""
    return next(name for name, cls in widget_classes().items() if isinstance(widget, cls))


def traits_of(widget: anywidget.AnyWidget) -> dict[str, Any]:
    """Return the values that a widget's script reads."""
    ours = [each for each, trait in widget.traits(sync=True).items() if _is_ours(each, trait)]
    return {each: getattr(widget, each) for each in ours}


def run(code: str, number: str, lang: str, show: Callable[..., None]) -> None:
    """Run a cell with what it reads, in the reader's language; ``show`` is called with its widget."""
    say = partial(t, lesson=number, lang=lang)
    given: dict[str, Any] = {**GIVEN, "show": show}
    given["t"] = lambda key, **values: lang if key == "lang" else say(key, **values)
    exec(code, given)


def digest_of(code: str) -> str:
    """Return what a recording keeps of the code that it was made with."""
    return sha256(code.encode()).hexdigest()[:16]


def recorded_name(number: str, key: str, lang: str) -> str:
    """Return the file of a recording, below the folder of them."""
    return f"{lang}/{number}_{key}.json"


def _recorded(number: str, cells: Sequence[Mapping[str, Any]], lang: str, key: str) -> Offered | None:
    """Return a recorded widget, None where the cell is another one by now: the page then has its new picture."""
    name = recorded_name(number, key, lang)
    path = FOLDER / name
    if not path.is_file():
        return None
    head = json.loads(path.read_text(encoding="utf-8").partition("\n")[0] + "]}")
    if head["digest"] != digest_of(code_of(cells, key, RECORDED[number, key])):
        return None
    return Offered(head["name"], {}, recorded=name)


def code_of(cells: Sequence[Mapping[str, Any]], key: str, whole: Sequence[str] = ()) -> str:
    """Return the cell behind the imports, functions and assignments of earlier cells that bind what it reads.

    Of the cells ``whole`` every line is kept.
    """
    code = [cell for cell in cells if cell["cell_type"] == "code" and cell["id"] != SETUP]
    place = next(place for place, cell in enumerate(code) if cell["id"] == key)
    given = {*GIVEN, "show", "t"}
    kept: list[str] = []
    wanted = set[str]()
    for cell in reversed(code[: place + 1]):
        source = "".join(cell["source"])
        if cell["id"] in (key, *whole):
            kept.append(source)
            for statement in reversed(ast.parse(source).body):
                wanted = wanted - _bound(statement) | _read(statement)
            continue
        for statement in reversed(ast.parse(source).body):
            if _bound(statement) & wanted - given:
                wanted = wanted - _bound(statement) | _read(statement)
                kept.append(ast.unparse(statement))
    return "\n".join(reversed(kept))


def _bound(statement: ast.stmt) -> set[str]:
    """The names that an import, a function or an assignment binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name.partition(".")[0] for each in statement.names}
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {node.id for target in targets for node in ast.walk(target) if _is_name(node, ast.Store)}


def _read(statement: ast.stmt) -> set[str]:
    """The names that it reads, but for those of its own comprehensions, loops, contexts and parameters."""
    nodes = list(ast.walk(statement))
    inside = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for part in nodes:
        own = getattr(part, "optional_vars", None) or getattr(part, "target", None)
        if own is not None and not isinstance(part, ast.AugAssign):
            inside |= {node.id for node in ast.walk(own) if _is_name(node, ast.Store)}
    return {node.id for node in nodes if _is_name(node, ast.Load)} - inside


def _is_name(node: ast.AST, use: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, use)


def _is_ours(name: str, trait: Any) -> bool:
    """Whether it is a value that a script reads, and no trait of every widget, as its layout is."""
    return not name.startswith("_") and str(trait.this_class.__module__).startswith("minikv.")


@cache
def widget_classes() -> dict[str, type[anywidget.AnyWidget]]:
    """Return {name of its files: class} of every widget that a page has, but for the monitors."""
    live = {name: getattr(import_module(f"minikv.course.widgets.{name}"), cls) for name, cls in LIVE.items()}
    motions = (BatchingMotion, MemoryBarMotion, PagingMotion)
    return {
        **live,
        **{cls._name: cls for cls in motions},
        "engine": EngineWidget,
        "fleet": FleetWidget,
        "growth": GrowthWidget,
        "heat_map": HeatMapWidget,
        "pool": PoolWidget,
        "blocks": BlocksWidget,  # behind the pool, which is one too
        "segments": SegmentsWidget,
    }


def write_assets(assets: Path) -> None:
    """Write each widget's script and style, and the recordings."""
    folder = assets / "widgets"
    folder.mkdir()
    files = {name: (str(cls._esm), str(cls._css)) for name, cls in widget_classes().items()}
    files |= {name: (script(*js), style(*css)) for name, (js, css) in MONITORS.items()}
    for name, (js, css) in files.items():
        (folder / f"{name}.js").write_text(js, encoding="utf-8")
        (folder / f"{name}.css").write_text(css, encoding="utf-8")
    shutil.copytree(FOLDER, assets / "recorded")
