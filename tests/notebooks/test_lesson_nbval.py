"""Our nbval plugin on the built sample: strict, but for pictures, metadata and standard error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOK = Path("notebooks/en/01_second.ipynb")


def run_nbval(root: Path, *options: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}  # where tools/ is; minikv is the sample's
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "tools.notebooks.nbval_rules", "-p", "no:cacheprovider"]
    command += ["--nbval", "--nbval-current-env", "--rootdir", str(root), *options, str(NOTEBOOK)]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)


def edit_output(root: Path, key: str, change) -> None:
    notebook = json.loads((root / NOTEBOOK).read_text(encoding="utf-8"))
    change(next(cell for cell in notebook["cells"] if cell["id"] == key)["outputs"])
    (root / NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")


def test_pictures_metadata_and_warnings_do_not_count(built):
    edit_output(built, "widget", lambda outputs: outputs[0]["data"].update({"image/png": "AAAA"}))
    edit_output(built, "widget", lambda outputs: outputs[0].update(metadata={"other": 1}))
    warning = {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]}
    edit_output(built, "bytes", lambda outputs: outputs.append(warning))
    result = run_nbval(built)
    assert result.returncode == 0, result.stdout


def test_a_different_text_fails(built):
    edit_output(built, "bytes", lambda outputs: outputs[0].update(text=["65\n"]))
    edit_output(built, "widget", lambda outputs: outputs[0]["data"].update({"text/plain": ["65 bytes"]}))
    result = run_nbval(built)
    assert result.returncode == 1, result.stdout
    assert "2 failed" in result.stdout


@pytest.mark.skipif(os.name == "nt", reason="its Python is a shell script")
def test_the_cells_run_with_the_python_that_is_asked_for(built, tmp_path):
    """Of another Python nothing of this checkout is seen: it has a minikv of its own, or the first cell fails."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "PYTHONPATH=[$PYTHONPATH]" >> {tmp_path}/started\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    result = run_nbval(built, "--kernel-python", str(python))
    assert result.returncode in (0, 1), result.stdout
    assert set((tmp_path / "started").read_text().split()) == {"PYTHONPATH=[]"}
