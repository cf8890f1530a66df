"""Building with real kernels: what runs, what is kept, what is written, and that it can be repeated."""

import base64
import io
import itertools
import json
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import nbformat
import pytest

from tools.notebooks.__main__ import main
from tools.notebooks.build import MEMORY, build
from tools.notebooks.course import open_course
from tools.notebooks.execute import WIDGET_VIEW, Run, make_reproducible
from tools.notebooks.photos import find_chromium, insert_pictures, known_pictures, small, take_photos
from tools.notebooks.stamps import package_stamp, run_key

EN = Path("notebooks/en/01_second.ipynb")
SHA = "0123456789abcdef"


def build_quietly(root: Path, *names: str, force: bool = False):
    course = open_course(root)
    return build(course, course.targets(names), force=force, say=lambda line: None)


def contents(root: Path) -> dict[Path, str]:
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in root.rglob("*.ipynb")}


def cells(root: Path, path: Path = EN) -> dict:
    return {cell.id: cell for cell in nbformat.read(root / path, as_version=4).cells}


def touch_package(root: Path) -> None:
    (root / "minikv/new.py").write_text("x = 1\n")


@pytest.fixture
def shows(built_once, monkeypatch):
    """In the place of kernels: a cell shows what it does in the built sample, or the text that is in ``shows``.

    The clock goes on. For tests of what runs, what is kept and what is written; real kernels run in the others.
    """
    texts: dict[str, str] = {}
    known = {}
    for path in built_once.rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        known |= {(notebook.cells[0].source, cell.id): cell for cell in notebook.cells}
    ticks = itertools.count()

    def run(notebook):
        made = deepcopy(notebook)
        for cell in made.cells:
            if cell.cell_type == "code":
                ran = known[made.cells[0].source, cell.id]
                cell.outputs, cell.execution_count = deepcopy(ran.outputs), ran.execution_count
                for output in cell.outputs if cell.id in {*texts, "clock"} else ():
                    if output.output_type == "stream":
                        output.text = texts.get(cell.id, f"{next(ticks)}\n")
                    else:
                        output.data["text/plain"] = texts[cell.id]
        return Run(made, 0.0)

    monkeypatch.setattr(
        "tools.notebooks.build.execute_all",
        lambda notebooks, root, photos, jobs, done: [run(notebook) for notebook in notebooks],
    )
    return texts


def test_outputs_are_there_and_name_no_run(built):
    found = cells(built)
    assert found["bytes"].outputs[0].text == "64\n"
    assert found["widget"].outputs[0].data["text/plain"] == "64 bytes"
    assert "attempted" in cells(built, Path("exercises/zh/01_second.ipynb"))["stub"].outputs[0].text
    assert cells(built, Path("solutions/zh/01_second.ipynb"))["stub"].outputs[0].text.startswith("01.1：通过")
    notebook = nbformat.read(built / EN, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "minikv"}
    assert "version" not in notebook.metadata.language_info


def test_nothing_stale_runs_nothing_and_writes_nothing(built):
    report = build_quietly(built)
    assert (report.seconds, report.written, report.problems) == ({}, [], [])


def test_a_second_run_gives_the_same_bytes_except_in_measured_cells(built):
    before = contents(built)
    report = build_quietly(built, force=True)
    assert len(report.seconds) == len(before)
    assert set(report.written) <= {EN, Path("notebooks/zh/01_second.ipynb")}  # they hold the timing cell
    old = {cell.id: cell for cell in nbformat.reads(before[EN], as_version=4).cells}
    new = cells(built)
    assert {key for key in new if new[key] != old[key]} <= {"clock", "widget"}
    for found in (old, new):
        found["widget"].outputs[0].data.pop("image/png", None)
    assert old["widget"] == new["widget"]


def test_a_package_change_runs_everything_and_writes_nothing_where_outputs_stay(built, shows):
    before = contents(built)
    touch_package(built)
    report = build_quietly(built)
    assert len(report.seconds) == len(before)
    assert report.written == []  # not even the timing cell: its old number is as true
    assert contents(built) == before
    assert build_quietly(built).seconds == {}


def test_a_package_change_that_shows_is_written_and_keeps_timings_that_say_the_same(built, shows):
    clock = cells(built)["clock"].outputs
    touch_package(built)
    shows["widget"] = "64 bytes!"
    report = build_quietly(built, "01")
    assert EN in report.written
    assert cells(built)["widget"].outputs[0].data["text/plain"] == "64 bytes!"
    assert cells(built)["clock"].outputs == clock
    shows["clock"] = "17 ns\n"
    build_quietly(built, "01", force=True)
    assert cells(built)["clock"].outputs[0].text == "17 ns\n"


def test_a_change_of_prose_is_written_without_running(built):
    path = built / "notebooks/src/01_second.py"
    path.write_text(path.read_text(encoding="utf-8").replace("# How much?", "# How many?"), encoding="utf-8")
    outputs = cells(built)["clock"].outputs
    report = build_quietly(built)
    assert report.seconds == {}
    assert set(report.written) == {EN, Path("notebooks/zh/01_second.ipynb")}
    assert "How many?" in cells(built)["question"].source
    assert cells(built)["clock"].outputs == outputs


def test_a_change_of_code_runs_that_lesson_alone(built, shows):
    shows["bytes"] = "72\n"
    path = built / "notebooks/src/01_second.py"
    path.write_text(path.read_text(encoding="utf-8").replace("4 * 8", "4 * 9"), encoding="utf-8")
    report = build_quietly(built)
    assert set(report.seconds) == {EN, Path("notebooks/zh/01_second.ipynb")}
    assert cells(built)["bytes"].outputs[0].text == "72\n"


def test_outputs_that_somebody_else_put_there_are_replaced(built, shows):
    before = contents(built)[EN]
    (built / EN).write_text(before.replace("64\\n", "65\\n"), encoding="utf-8")
    assert set(build_quietly(built).seconds) == {EN}
    assert cells(built)["bytes"].outputs[0].text == "64\n"


def test_without_its_memory_the_build_trusts_nothing(built, shows):
    (built / MEMORY).unlink()
    assert set(build_quietly(built, "00").seconds) == set(
        Path("notebooks", n, "00_first.ipynb") for n in ("en", "zh")
    )


def test_a_cell_that_raises_is_named_and_the_old_notebook_stays(built, capsys):
    path = built / "notebooks/src/00_first.py"
    path.write_text(path.read_text(encoding="utf-8").replace("1 + 1", "1 / 0"), encoding="utf-8")
    before = contents(built)
    assert main(["--root", str(built), "build", "00"]) == 1
    printed = capsys.readouterr()
    assert "notebooks/en/00_first.ipynb [cell sum]: " in printed.err
    assert "ZeroDivisionError" in printed.err
    assert contents(built) == before


def test_a_package_that_cannot_be_imported_is_not_fetched_from_elsewhere(built, capsys):
    for path in (built / "minikv").glob("*.py"):
        path.unlink()
    (built / "minikv/__init__.py").write_text("raise ImportError")
    assert main(["--root", str(built), "build", "00"]) == 1
    assert "notebooks/en/00_first.ipynb [cell minikv-setup]: " in capsys.readouterr().err


def test_a_broken_source_does_not_stop_the_other_lessons(built, shows):
    path = built / "notebooks/src/01_second.py"
    path.write_text(path.read_text(encoding="utf-8") + '\n# %% [raw] key="x"\n1\n', encoding="utf-8")
    report = build_quietly(built, "00", force=True)
    assert report.problems == []
    assert len(report.seconds) == 2
    assert len(build_quietly(built).problems) == 1


def test_an_unknown_name_is_one_line(sample, capsys):
    assert main(["--root", str(sample), "build", "99"]) == 1
    assert "No lesson is called 99" in capsys.readouterr().err


def test_hash_shows_then_writes(sample, capsys):
    path = sample / "notebooks/src/01_second.py"
    good = path.read_text(encoding="utf-8")
    assert main(["hash", str(path)]) == 0
    path.write_text(good.replace("# How much?", "# How many?"), encoding="utf-8")
    assert main(["hash", str(path)]) == 1
    assert 'src="37e706fa" should be' in capsys.readouterr().out
    assert main(["hash", str(path), "--write"]) == 0
    assert main(["hash", str(path)]) == 0
    path.write_text(good.replace(' src="37e706fa"', ""), encoding="utf-8")
    assert main(["hash", str(path), "--write"]) == 0
    assert path.read_text(encoding="utf-8") == good


# ---- without a kernel


def widget_notebook(model_id: str) -> nbformat.NotebookNode:
    view = {"model_id": model_id, "version_major": 2, "version_minor": 0}
    metadata = {"minikv": {"photo": SHA}}
    outputs = [nbformat.v4.new_output("display_data", {WIDGET_VIEW: view}, metadata=metadata) for _ in "ab"]
    cell = nbformat.v4.new_code_cell(
        "show()", id="w", outputs=outputs, metadata={"execution": {"iopub.status.busy": "2026"}}
    )
    return nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {"state": {}}})


def test_model_ids_depend_on_cell_and_place_only():
    one, other = widget_notebook("abc"), widget_notebook("def")
    for notebook in (one, other):
        make_reproducible(notebook)
    assert one == other
    assert "widgets" not in one.metadata
    ids = [output.data[WIDGET_VIEW]["model_id"] for output in one.cells[0].outputs]
    assert len(set(ids)) == 2


def test_a_picture_is_kept_while_its_page_is_the_same():
    old = widget_notebook("abc")
    insert_pictures(old, {SHA: "PNG"})
    new = widget_notebook("def")
    assert insert_pictures(new, known_pictures([old])) == []
    assert new.cells[0].outputs[0].data["image/png"] == "PNG"
    assert insert_pictures(new, {}) == [SHA, SHA]
    assert "image/png" not in new.cells[0].outputs[0].data


def test_the_stamp_of_the_package_sees_names_and_contents(sample):
    stamps = [package_stamp(sample)]
    touch_package(sample)
    stamps.append(package_stamp(sample))
    (sample / "minikv/new.py").rename(sample / "minikv/newer.py")
    stamps.append(package_stamp(sample))
    assert len(set(stamps)) == 3
    cell = nbformat.v4.new_code_cell("1", id="a")
    assert run_key([cell], "x") != run_key([cell], "y")


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_a_photo_shows_the_element_and_asks_nobody(tmp_path, monkeypatch):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/a.png"
        page = f'<img src="{address}"><script>fetch("{address}").catch(() => {{}})</script>'
        (tmp_path / f"{SHA}.html").write_text(page + '<div id="photo" style="width:40px;height:20px"></div>')
        (tmp_path / f"{'e' * 16}.html").write_text("<p>no such element</p>")
        monkeypatch.setattr("tools.notebooks.photos.PAGE_SECONDS", 3)
        pictures = take_photos({SHA, "e" * 16, "f" * 16}, tmp_path, find_chromium())
        server.shutdown()
    assert asked == []
    assert set(pictures) == {SHA}  # the others have no element or no page
    png = base64.b64decode(pictures[SHA])
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (40, 20)


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_a_page_whose_script_raises_has_no_picture(tmp_path):
    half = '<div id="photo" style="width:40px;height:20px"></div>'
    scripts = {
        SHA: "undefined.length",
        "e" * 16: "Promise.reject(new Error('late'))",
        "f" * 16: "let whole = 1",
    }
    for sha, script in scripts.items():
        (tmp_path / f"{sha}.html").write_text(f'{half}<script type="module">{script}</script>')
    assert set(take_photos(set(scripts), tmp_path, find_chromium())) == {"f" * 16}


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_a_chinese_page_is_left_out_where_no_font_draws_it(tmp_path, monkeypatch):
    for sha, lang in ((SHA, "en"), ("e" * 16, "zh-CN")):
        page = f'<html lang="{lang}"><div id="photo" style="width:40px;height:20px"></div></html>'
        (tmp_path / f"{sha}.html").write_text(page)
    monkeypatch.setattr("tools.notebooks.photos._HAS_CHINESE", "() => false")
    assert set(take_photos({SHA, "e" * 16}, tmp_path, find_chromium())) == {SHA}
    monkeypatch.setattr("tools.notebooks.photos._HAS_CHINESE", "() => true")
    assert set(take_photos({SHA, "e" * 16}, tmp_path, find_chromium())) == {SHA, "e" * 16}


def test_a_picture_of_few_colours_is_kept_to_the_pixel_and_one_of_many_becomes_smaller():
    from PIL import Image

    def png(picture):
        written = io.BytesIO()
        picture.save(written, "PNG")
        return written.getvalue()

    def pixels(data):
        return Image.open(io.BytesIO(data)).convert("RGB").tobytes()

    few = png(Image.frombytes("RGB", (60, 40), bytes(i // 12 * 29 % 251 for i in range(60 * 40 * 3))))
    assert pixels(small(few)) == pixels(few)
    text = Image.effect_noise((300, 200), 90).convert("RGB")  # of many greys
    text.paste((219, 166, 198), (10, 10, 22, 22))
    patch = Image.open(io.BytesIO(small(png(text)))).convert("RGB").getpixel((15, 15))
    assert max(abs(one - other) for one, other in zip(patch, (219, 166, 198), strict=True)) < 12
    many = png(Image.effect_noise((200, 100), 60).convert("RGB").resize((400, 200)))
    assert len(small(many)) <= len(many)
    assert Image.open(io.BytesIO(small(many))).size == (400, 200)


def test_without_a_chromium_pictures_are_kept_and_their_absence_is_said(built, shows, monkeypatch):
    monkeypatch.setattr("tools.notebooks.build.find_chromium", lambda: None)
    path = Path("notebooks/zh/01_second.ipynb")
    notebook = nbformat.read(built / path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("image/png", None)
    nbformat.write(notebook, built / path)
    said = []
    course = open_course(built)
    other = nbformat.read(built / EN, as_version=4)
    next(cell for cell in other.cells if cell.id == "widget").outputs[0].data["image/png"] = "AAAA"
    nbformat.write(other, built / EN)
    build(course, course.targets(("01",)), force=True, say=said.append)
    assert cells(built)["widget"].outputs[0].data["image/png"] == "AAAA"
    assert cells(built, path)["widget"].outputs[0].data["image/png"] == "AAAA"  # the same page
    for lang in ("en", "zh"):
        (built / f"notebooks/{lang}/01_second.ipynb").unlink()
    build(course, course.targets(("01",)), say=said.append)
    assert "image/png" not in cells(built)["widget"].outputs[0].data
    assert any("no picture for widget" in line and "CHROMIUM" in line for line in said)


def test_memory_stands_outside_the_notebooks(built):
    memory = json.loads((built / MEMORY).read_text())
    assert set(memory) == {path.as_posix() for path in contents(built)}
