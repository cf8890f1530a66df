"""Widgets of lessons that work on their pages: recorded ones alone, live ones with the package's Python in the browser.

A notebook keeps a picture of a widget. The cells that make some of the widgets, those that need no model and no
measurement, run once more when the site is built, with the assignments of earlier cells that they read. What the
widget's script asks for is then in the page. A widget with controls asks Python for each answer
(``browser/widgets.py``), the others have all of their states with them.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

import anywidget

from minikv.course import t
from minikv.course.motion import BatchingMotion, MemoryBarMotion, PagingMotion
from minikv.course.widgets import PoolWidget, SegmentsWidget
from tools.site.browser.widgets import LIVE

SETUP = "minikv-setup"
# Lesson and cell.
CELLS = (
    ("02", "widget_code"),
    ("04", "widget"),
    ("07", "story_cat"),
    ("07", "story_big"),
    ("08", "growing_bar"),
    ("09", "paging_motion"),
    ("09", "widget"),
    ("10", "widget"),
    ("11a", "seats_motion"),
    ("12", "widget"),
    ("16", "story"),
)
GIVEN = {"here": None}  # in place of what a lesson measures on its machine


@dataclass(frozen=True)
class Offered:
    """A widget on a page: the files of its script and style, its values, and how Python makes it (None: recorded)."""

    name: str
    traits: dict[str, Any]
    live: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def offered(number: str, cells: Sequence[Mapping[str, Any]], lang: str, key: str) -> Offered | None:
    """Return the widget that the cell ``key`` of a lesson shows, None where the site has its picture alone."""
    if (number, key) not in CELLS:
        return None
    shown: list[Any] = []
    say = partial(t, lesson=number, lang=lang)
    given: dict[str, Any] = {**GIVEN, "show": lambda widget, **_: shown.append(widget)}
    given["t"] = lambda key, **values: lang if key == "lang" else say(key, **values)
    exec(_slice(cells, key, given), given)
    [widget] = shown
    name = next(name for name, cls in widget_classes().items() if isinstance(widget, cls))
    ours = [each for each, trait in widget.traits(sync=True).items() if _is_ours(each, trait)]
    live = {"widget": name, "lang": lang, "start": widget.state} if name in LIVE else None
    if isinstance(widget, PagingMotion):
        widget.step = len(widget.states) // 2  # of an empty pool nothing can be seen
    return Offered(name, {each: getattr(widget, each) for each in ours}, live)


def _slice(cells: Sequence[Mapping[str, Any]], key: str, given: Mapping[str, Any]) -> str:
    """Return the cell behind the imports and assignments of earlier cells that bind what it reads."""
    code = [cell for cell in cells if cell["cell_type"] == "code" and cell["id"] != SETUP]
    place = next(place for place, cell in enumerate(code) if cell["id"] == key)
    source = "".join(code[place]["source"])
    kept, wanted = [source], set[str]()
    for statement in reversed(ast.parse(source).body):
        wanted = wanted - _bound(statement) | _read(statement)
    for cell in reversed(code[:place]):
        for statement in reversed(ast.parse("".join(cell["source"])).body):
            if _bound(statement) & wanted - given.keys():
                wanted = wanted - _bound(statement) | _read(statement)
                kept.append(ast.unparse(statement))
    return "\n".join(reversed(kept))


def _bound(statement: ast.stmt) -> set[str]:
    """The names that an import or an assignment binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name.partition(".")[0] for each in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {node.id for target in targets for node in ast.walk(target) if _is_name(node, ast.Store)}


def _read(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    inside = {
        node.id
        for part in nodes
        if isinstance(part, ast.comprehension)
        for node in ast.walk(part.target)
        if _is_name(node, ast.Store)
    }
    return {node.id for node in nodes if _is_name(node, ast.Load)} - inside


def _is_name(node: ast.AST, use: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, use)


def _is_ours(name: str, trait: Any) -> bool:
    """Whether it is a value that a script reads, and no trait of every widget, as its layout is."""
    return not name.startswith("_") and str(trait.this_class.__module__).startswith("minikv.")


@cache
def widget_classes() -> dict[str, type[anywidget.AnyWidget]]:
    """Return {name of its files: class} of every widget that a page has."""
    live = {name: getattr(import_module(f"minikv.course.widgets.{name}"), cls) for name, cls in LIVE.items()}
    recorded = (BatchingMotion, MemoryBarMotion, PagingMotion)
    return live | {"pool": PoolWidget, "segments": SegmentsWidget} | {cls._name: cls for cls in recorded}


def write_assets(assets: Path) -> None:
    """Write each widget's script and style."""
    folder = assets / "widgets"
    folder.mkdir()
    for name, cls in widget_classes().items():
        (folder / f"{name}.js").write_text(str(cls._esm), encoding="utf-8")
        (folder / f"{name}.css").write_text(str(cls._css), encoding="utf-8")
