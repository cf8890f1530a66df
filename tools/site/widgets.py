"""Widgets of lessons that work on their pages: recorded ones alone, live ones with the package's Python in the browser.

A notebook keeps a picture of a widget. Here the cells that make some of the widgets run once more, when the site is
built: those that need no model and no measurement. What the widget's script asks for is then in the page. A widget with
controls asks Python for each answer (``browser/widgets.py``), the others have all of their states with them.
"""

from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anywidget

from minikv.course import t
from minikv.course.motion import BatchingMotion, MemoryBarMotion, PagingMotion
from minikv.course.widgets import SegmentsWidget
from tools.site.browser.widgets import LIVE

# Lesson and cell -> what earlier cells of the lesson have defined, or in place of what a machine would measure.
CELLS = {
    ("02", "widget_code"): "",
    ("04", "widget"): "here = None",
    ("07", "story_cat"): """
from minikv.plan import CacheSpec
spec = CacheSpec.from_config("Llama-3.1-8B")
token, MIB = spec.bytes_for(1), 2**20
""",
    ("07", "story_big"): """
from minikv.course.widgets.segments import AllocatorStep, SegmentsWidget
from minikv.memory import AllocatorSettings
from minikv.plan import CacheSpec, find_gpu, find_model, weight_bytes
spec = CacheSpec.from_config("Llama-3.1-8B")
expandable = AllocatorSettings(expandable_segments=True)
""",
    ("08", "growing_bar"): "",
    ("09", "paging_motion"): "from minikv.blocks import BlockManager",
    ("10", "widget"): "",
    ("11a", "seats_motion"): """
from minikv.course.lessons.l11a.load import Ask, run_batches, run_load
answers = (3, 14, 5, 9, 4, 12, 2, 7)
asks = [Ask(tuple(range(100 * i, 100 * i + 8)), new) for i, new in enumerate(answers)]
options = dict(num_blocks=64, max_num_seqs=4, max_batched_tokens=64)
static, continuous = run_batches(asks, 4, **options), run_load(asks, **options)
""",
    ("12", "widget"): "",
    ("16", "story"): "from minikv.course.lessons.l16.culprit import culprit",
}


@dataclass(frozen=True)
class Offered:
    """A widget on a page: the files of its script and style, its values, and how Python makes it (None: recorded)."""

    name: str
    traits: dict[str, Any]
    live: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def offered(number: str, key: str, source: str, lang: str) -> Offered | None:
    """Return the widget that the cell ``key`` of a lesson shows, None where the site has its picture alone."""
    before = CELLS.get((number, key))
    if before is None:
        return None
    shown: list[Any] = []
    say = partial(t, lesson=number, lang=lang)
    given: dict[str, Any] = {"show": lambda widget, **_: shown.append(widget)}
    given["t"] = lambda key, **values: lang if key == "lang" else say(key, **values)
    exec(before, given)
    exec(source, given)
    [widget] = shown
    name = next(name for name, cls in widget_classes().items() if isinstance(widget, cls))
    ours = [each for each, trait in widget.traits(sync=True).items() if _is_ours(each, trait)]
    live = {"widget": name, "lang": lang, "start": widget.state} if name in LIVE else None
    return Offered(name, {each: getattr(widget, each) for each in ours}, live)


def _is_ours(name: str, trait: Any) -> bool:
    """Whether it is a value that a script reads, and no trait of every widget, as its layout is."""
    return not name.startswith("_") and str(trait.this_class.__module__).startswith("minikv.")


@cache
def widget_classes() -> dict[str, type[anywidget.AnyWidget]]:
    """Return {name of its files: class} of every widget that a page has."""
    live = {name: getattr(import_module(f"minikv.course.widgets.{name}"), cls) for name, cls in LIVE.items()}
    recorded = (BatchingMotion, MemoryBarMotion, PagingMotion)
    return live | {"segments": SegmentsWidget} | {cls._name: cls for cls in recorded}


def write_assets(assets: Path) -> None:
    """Write each widget's script and style."""
    folder = assets / "widgets"
    folder.mkdir()
    for name, cls in widget_classes().items():
        (folder / f"{name}.js").write_text(str(cls._esm), encoding="utf-8")
        (folder / f"{name}.css").write_text(str(cls._css), encoding="utf-8")
