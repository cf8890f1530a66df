"""What ``pip install "minikv[engine]"`` brings: a lesson runs."""

import json
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, install, run


@pytest.fixture(scope="module")
def clean_python(wheel, tmp_path_factory) -> Path:
    """What ``pip install "minikv[engine]"`` brings, and a kernel."""
    # Not compiled: of the thousands of files that come, these tests import some.
    kernel = ("--no-compile", "ipykernel", "nbclient", "nbval", "pytest")
    return install(tmp_path_factory.mktemp("engine") / "venv", f"{wheel}[engine]", *kernel)


@pytest.mark.parametrize("lang", ["en", pytest.param("zh", marks=pytest.mark.long)])
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
