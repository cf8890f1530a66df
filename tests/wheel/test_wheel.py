"""The wheel as a stranger gets it: built, installed in a clean environment; lesson 02 run from an empty folder."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # The build tools are those of this environment: no second download.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return next(out.glob("minikv-*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheel, tmp_path_factory) -> Path:
    """A new environment with the wheel, its dependencies and a kernel, and nothing of this checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    # Not compiled: of the thousands of files that come, these tests import some.
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run(
        *install,
        "-c",
        ROOT / "constraints.txt",
        wheel,
        "ipykernel",
        "nbclient",
        "nbval",
        "pytest",
        cwd=folder,
    )
    return python


def test_the_wheel_holds_the_course_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    lessons = [name for name in names if "/shipped/notebooks/" in name]
    assert {Path(name).parent.name for name in lessons} == {"en", "zh"}
    for folder in ("notebooks", "exercises", "solutions"):
        for lang in ("en", "zh"):
            assert f"minikv/course/shipped/{folder}/{lang}/02_how_many_bytes.ipynb" in names
    assert "minikv/py.typed" in names
    assert "minikv/messages/errors.toml" in names
    assert "minikv/course/widgets/budget.js" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]
    assert wheel.stat().st_size < 10 * 2**20


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_lesson_02_runs_where_only_the_wheel_is(clean_python, tmp_path, lang):
    lesson = ROOT / "notebooks" / lang / "02_how_many_bytes.ipynb"
    (tmp_path / lesson.name).write_bytes(lesson.read_bytes())
    code = (
        "import nbformat, sys\nfrom nbclient import NotebookClient\n"
        "notebook = nbformat.read(sys.argv[1], 4)\nNotebookClient(notebook, timeout=120).execute()\n"
        "nbformat.write(notebook, 'done.ipynb')\nimport minikv; print(minikv.__file__)"
    )
    where = run(clean_python, "-c", code, lesson.name, cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert str(ROOT) not in where.replace(str(tmp_path), "")
    done = json.loads((tmp_path / "done.ipynb").read_text())
    outputs = [out for cell in done["cells"] if cell["cell_type"] == "code" for out in cell["outputs"]]
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert any("application/vnd.jupyter.widget-view+json" in out.get("data", {}) for out in outputs)


def test_the_installed_command_plans_and_copies_the_course(clean_python, tmp_path):
    told = json.loads(run(clean_python, "-m", "minikv", "plan", "DeepSeek-V3", "--gpu", "H200", "--tp", "8",
                          "--json", cwd=tmp_path))  # fmt: skip
    assert told["token_bytes"] == 70_272
    run(clean_python, "-m", "minikv", "lab", "--copy-only", "--folder", "course", cwd=tmp_path)
    assert (tmp_path / "course" / "notebooks" / "zh" / "02_how_many_bytes.ipynb").is_file()
    assert (tmp_path / "course" / "solutions" / "en" / "02_how_many_bytes.ipynb").is_file()
