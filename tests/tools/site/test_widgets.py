"""Widgets of lessons on their pages: what the cell shows, with all of its states, or answered by Python in the page.

Of those that need torch or numpy the recordings are held against the widgets themselves.
"""

import json
import random
import subprocess
import sys
import zipfile
from functools import partial

import pytest

from minikv.cache import find_codec
from minikv.cache.layout import paged_layout
from minikv.course.widgets import AllocationWidget, GrowthWidget, PoolWidget
from minikv.course.widgets.monitor_eviction import EvictionMonitor
from minikv.course.widgets.monitor_memory import MemoryMonitor
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec
from tests.longer import usual_if
from tools.notebooks.course import Target, open_course
from tools.project import ROOT
from tools.site import record
from tools.site.browser.widgets import LIVE, answer, pressed
from tools.site.calculator import write_package
from tools.site.markdown import Prose
from tools.site.notebook import NotebookPage, Pictures
from tools.site.record import AXES, changes, recording
from tools.site.widgets import (
    CELLS,
    FOLDER,
    MONITORS,
    RECORDED,
    Offered,
    offered,
    recorded_name,
    widget_classes,
    write_assets,
)
from tools.site.words import words

LESSONS = {lesson.number: lesson.stem for lesson in open_course(ROOT).lessons}


def cells_of(number: str, lang: str) -> list[dict]:
    path = ROOT / Target("lesson", lang, LESSONS[number]).path
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def offer(number: str, key: str, lang: str) -> Offered:
    found = offered(number, cells_of(number, lang), lang, key)
    assert found is not None
    return found


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_cells_make_their_widgets_in_the_reader_s_language(lang):
    seen = set()
    for number, key in CELLS:
        found = offer(number, key, lang)
        whole = json.loads(json.dumps(found.as_dict(), ensure_ascii=False))
        assert any("\u4e00" <= letter <= "\u9fff" for letter in str(whole["traits"])) == (lang == "zh")
        assert (found.live is None) == (found.name not in {*LIVE, "pool"})
        seen.add(found.name)
    for number, key in RECORDED:
        found = offer(number, key, lang)
        assert found.recorded == recorded_name(number, key, lang)
        seen.add(found.name)
    assert seen == {*widget_classes(), *MONITORS}
    assert offered("02", cells_of("02", lang), lang, "another") is None


def test_python_in_the_page_answers_what_the_widget_answers(tmp_path):
    package, folder = tmp_path / "minikv.zip", tmp_path / "unpacked"
    write_package(package)
    zipfile.ZipFile(package).extractall(folder)
    asked = []
    for place, (number, key) in enumerate(CELLS):
        found = offer(number, key, LANGUAGES[place % 2])
        if found.name in LIVE:
            assert json.loads(answer(json.dumps({**found.live, "state": {}}))) == json.loads(
                json.dumps(found.traits["view"])
            )
            asked.append(json.dumps({**found.live, "state": found.traits["state"]}))
    assert len(asked) == len(LIVE)
    assert in_the_browser(folder, "answer", asked) == [answer(each) for each in asked]


def in_the_browser(folder, call: str, asked: list[str]) -> list[str]:
    """What ``widgets`` of the unpacked package answers in a Python without any library."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import widgets;"
        f"print(*map(widgets.{call}, json.load(sys.stdin)), sep='\\n')"
    )
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, str(folder)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_pool_in_the_page_does_what_the_lesson_s_pool_does(lang, tmp_path):
    package, folder = tmp_path / "minikv.zip", tmp_path / "unpacked"
    write_package(package)
    zipfile.ZipFile(package).extractall(folder)
    found = offer("09", "widget", lang)
    pool = PoolWidget(lang, **found.live["start"])
    presses = [tuple(press) for press in found.live["presses"]]
    for press in presses:
        pool.act(*press)
    assert found.traits["frames"] == pool.frames
    rest = random.Random(5)
    for _ in range(100):  # the pool fills, so that buttons are refused and sequences come and go
        name = rest.choice(["", *(name for name, _ in pool.targets)])
        press = (rest.choice(["step", "new", "share", "fork", "free"]), name)
        pool.act(*press)
        presses.append(press)
    asked = json.dumps({**found.live, "presses": presses})
    [told] = map(json.loads, in_the_browser(folder, "pressed", [asked]))
    assert told == json.loads(pressed(asked)) == {"frames": pool.frames, "targets": pool.targets}


def test_the_allocation_of_the_page_refuses_what_a_paged_cache_cannot_hold():
    """The page has no cache to ask: the states of a layer are what refuses a model of the catalogue."""
    widget = AllocationWidget()
    refused = []
    for name, _ in next(field for field in widget.form["fields"] if field["key"] == "model")["options"]:
        spec = CacheSpec.from_config(name)
        widget.state = {"model": name, "gpu": "B200", "tp": 8}
        if any(layer.state_bytes for layer in spec.layers):
            assert widget.view["error"]
            refused.append(name)
        else:
            assert paged_layout(spec, find_codec(spec.kv_dtype), block_size=16).kv_cache_groups
    assert "Whisper-large-v3" in refused


def unfolded(text: str) -> dict:
    """A recording as widgets.js reads it."""
    told, frame, frames = json.loads(text), {}, []

    def changed(old, change):
        if isinstance(change, list):
            return change[0]
        made = list(old) if isinstance(old, list) else dict(old)
        for key, one in change.items():
            place = int(key) if isinstance(old, list) else key
            made[place] = changed(old[place] if isinstance(old, list) else old.get(place), one)
        return made

    for change in told["frames"]:
        frame = changed(frame, change)
        frames.append(frame)
    return {**told, "frames": frames}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"a": [1, {"b": 2}]}),
        ({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}], "c": 3}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"a": [[1, 2], [3, 4]]}, {"a": [[1, 2], [3, []]]}),
    ],
)
def test_a_state_is_kept_as_what_has_changed(before, after):
    text = json.dumps({"frames": [[before], changes(before, after)]})
    assert unfolded(text)["frames"] == [before, after]


SLOW = {("14", "heat_map"), ("17", "widget"), ("00", "live"), ("00", "still"), ("11a", "many_code")}
MEASURED = {("14", "live"), ("16", "live_answers")}  # seconds, and bytes of this process


@pytest.mark.parametrize(("number", "key"), usual_if(lambda cell: cell not in SLOW, sorted(RECORDED)))
def test_a_recording_is_what_the_cell_shows_today(number, key):
    lang = LANGUAGES[len(key) % 2]
    kept = (FOLDER / recorded_name(number, key, lang)).read_text(encoding="utf-8")
    made = unfolded(recording(number, key, lang))
    if (number, key) in MEASURED:
        assert made["traits"]["form"] == unfolded(kept)["traits"]["form"]
        assert len(made["frames"]) > 3
    else:
        assert made == unfolded(kept)


def test_the_recordings_are_those_of_the_notebooks():
    said: list[str] = []
    assert record.main(["--check"], said.append) == 0, said
    names = {recorded_name(*cell, lang) for cell in RECORDED for lang in LANGUAGES}
    assert {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.json")} == names
    assert max(path.stat().st_size for path in FOLDER.rglob("*.json")) < 1_000_000


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_combination_of_settings_has_the_view_that_the_widget_answers(lang):
    told = unfolded((FOLDER / recorded_name("06", "growth_widget", lang)).read_text(encoding="utf-8"))
    widget = GrowthWidget(lang, step=50)
    assert [key for key, _ in told["axes"]] == list(AXES["growth"])
    for settings in ((0, 128, 8), (157, 256, 16), (200, 512, 64)):
        place = 0
        for (_, values), value in zip(told["axes"], settings, strict=True):
            place = place * len(values) + values.index(value)
        widget.state = dict(zip(AXES["growth"], settings, strict=True))
        assert told["frames"][place] == json.loads(json.dumps(widget.view))
    fields = {field["key"]: field for field in told["traits"]["form"]["fields"]}
    assert set(fields) == set(AXES["growth"])


def test_a_changed_cell_has_its_picture_until_it_is_recorded_anew():
    cells = cells_of("06", "en")
    cell = next(cell for cell in cells if cell["id"] == "growth_widget")
    cell["source"] = "".join(cell["source"]) + "\n# another"
    assert offered("06", cells, "en", "growth_widget") is None


def test_the_scripts_of_monitors_are_those_of_their_classes(tmp_path):
    write_assets(tmp_path)
    for name, cls in {"monitor_eviction": EvictionMonitor, "monitor_memory": MemoryMonitor}.items():
        assert (tmp_path / "widgets" / f"{name}.js").read_text(encoding="utf-8") == cls._esm
        assert (tmp_path / "widgets" / f"{name}.css").read_text(encoding="utf-8") == cls._css


def test_a_page_has_the_widget_beside_its_picture_and_without_python_the_picture(tmp_path):
    def html(size: int, number: str, key: str) -> str:
        cells = cells_of(number, "en")
        offers = partial(offered, number, cells, "en")
        page = NotebookPage(Prose(str), Pictures(tmp_path), "../pictures", words("en"), offers, size)
        return page.html([cell for cell in cells if cell["id"] == key])

    live, picture = (html(size, "10", "widget") for size in (14, 0))
    assert 'class="photo widget"' in live
    assert "14 MB" in live
    assert 'class="photo widget"' not in picture
    assert words("en")["photo"] in picture
    for size in (0, 14):
        recorded = html(size, "08", "growing_bar")
        assert 'class="photo widget"' in recorded
        assert "MB" not in recorded.partition("<img")[0]
        assert recorded.count("<img") == 1


def test_the_files_of_each_widget_are_there(tmp_path):
    write_assets(tmp_path)
    for name in (*widget_classes(), *MONITORS):
        assert "export default" in (tmp_path / "widgets" / f"{name}.js").read_text(encoding="utf-8")
        assert (tmp_path / "widgets" / f"{name}.css").stat().st_size > 100
