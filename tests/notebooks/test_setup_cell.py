"""The first cell of every notebook: it installs from the repository, only where the import fails, and says so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.notebooks.compose import SETUP, compose
from tools.notebooks.course import open_course
from tools.notebooks.execute import execute_all
from tools.project import Project, read_project

OURS = read_project()

# Runs a cell as a notebook does, and tells whether it failed and what pip was asked for.
SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
cell, magic = json.loads(sys.argv[1])
shell = InteractiveShell.instance()
asked = []
if magic is not None:
    def pip(line):
        asked.append(line)
        exec(magic)
    shell.register_magic_function(pip, magic_name="pip")
result = shell.run_cell(cell)
error = result.error_before_exec or result.error_in_exec
print("\\nTOLD" + json.dumps([asked, type(error).__name__ if error else ""]))
"""
STAND_IN = "def start(number, lang):\n    return (number, lang, 'shown', 'explained', 't')\n"


def setup_cell(requirement: str) -> str:
    return (
        SETUP.format(requirement=requirement, number="02", lang="zh")
        + "\nassert check == '02', predict == 'zh'"
    )


def run_cell(cell: str, folder: Path, magic: str | None = None, **environment: str) -> tuple[list[str], str]:
    """What ``%pip`` was asked for, and the name of the error, in a Python that finds modules in ``folder`` alone."""
    command = [sys.executable, "-c", SHELL, json.dumps([cell, magic])]
    env = {**os.environ, "PYTHONPATH": str(folder), "IPYTHONDIR": str(folder / "ipython"), **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert "TOLD" in done.stdout, done.stdout + done.stderr
    asked, error = json.loads(done.stdout.rpartition("TOLD")[2])
    return asked, error + done.stdout.partition("TOLD")[0] * bool(error)


def stand_in(folder: Path) -> None:
    (folder / "minikv").mkdir(parents=True)
    (folder / "minikv/__init__.py").write_text("")
    (folder / "minikv/course.py").write_text(STAND_IN)


@pytest.fixture
def hidden(tmp_path):
    """A folder first on Python's path in which ``import minikv`` fails, as where it is not installed."""
    (tmp_path / "minikv.py").write_text(
        "raise ModuleNotFoundError('No module named minikv', name='minikv')\n"
    )
    return tmp_path


def test_every_notebook_begins_with_it(sample):
    course = open_course(sample)
    for target in course.targets():
        cells = [
            cell for cell in compose(course, target, course.read(target)).cells if cell.cell_type == "code"
        ]
        wanted = SETUP.format(
            requirement=OURS.requirement, number=target.stem.split("_")[0], lang=target.lang
        )
        assert cells[0].source == wanted
        assert not [cell for cell in cells[1:] if "%pip" in cell.source]


def test_where_minikv_is_there_nothing_is_installed(tmp_path):
    stand_in(tmp_path)
    assert run_cell(setup_cell("minikv @ git+https://nowhere.invalid/x"), tmp_path, magic="1/0") == ([], "")


def test_where_it_is_not_pip_is_asked_once_and_the_lesson_starts(hidden):
    """The stand-in for pip puts the package where the failed import stood."""
    installs = (
        "import os, pathlib\n"
        "os.remove('minikv.py')\n"
        "pathlib.Path('minikv').mkdir()\n"
        "pathlib.Path('minikv/__init__.py').write_text('')\n"
        f"pathlib.Path('minikv/course.py').write_text({STAND_IN!r})\n"
        "import importlib; importlib.invalidate_caches()"
    )
    told = run_cell(setup_cell(OURS.requirement), hidden, magic=installs)
    assert told == ([f'install "{OURS.requirement}"'], "")


def test_where_pip_fails_the_cell_fails_and_says_what_is_missing(hidden):
    asked, error = run_cell(setup_cell("minikv"), hidden, magic="print('no network')")
    assert asked == ['install "minikv"']
    assert error.startswith("ModuleNotFoundError")
    assert "no network" in error
    assert "No module named minikv" in error


# Until pip has put a package into the folder, none is found, whatever this Python has installed.
ONLY_FROM = """
import os, sys
class OnlyFrom:
    def find_spec(self, name, path=None, target=None):
        if name == "minikv" and not os.path.exists({site!r} + "/minikv/__init__.py"):
            raise ModuleNotFoundError("No module named minikv", name="minikv")
sys.meta_path.insert(0, OnlyFrom())
sys.path.insert(0, {site!r})
"""


@pytest.mark.skipif(not shutil.which("git"), reason="pip clones with git")
def test_the_real_pip_installs_from_the_repository(tmp_path):
    """The cell as it ships, through IPython's own %pip and git, which is told that the address is a folder here."""
    source, site, here = (tmp_path / name for name in ("repository", "site", "here"))
    stand_in(source)
    site.mkdir()
    here.mkdir()
    build_system = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    (source / "pyproject.toml").write_text(build_system + '[project]\nname = "minikv"\nversion = "0"\n')
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=source, check=True)
    # Without a network, and beside this Python's packages: built with what is installed here, put into a folder.
    environment = {
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{source.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": OURS.repository,
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads the negative option so: 0 is "no isolation"
        "PIP_TARGET": str(site),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    requirement = Project(OURS.name, OURS.repository, on_index=False).requirement
    _, error = run_cell(ONLY_FROM.format(site=str(site)) + setup_cell(requirement), here, **environment)
    assert error == ""
    assert (site / "minikv/course.py").read_text() == STAND_IN


def test_a_build_and_nbval_install_nothing(sample, tmp_path):
    """Without the package at its root a lesson's first cell fails, though pip is called: no index, no git."""
    shutil.rmtree(sample / "minikv")
    (sample / "minikv.py").write_text("raise ImportError('hidden')\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(setup_cell(OURS.requirement))])
    [run] = execute_all([notebook], sample, tmp_path, 1)
    printed = "".join(out.get("text", "") for out in run.notebook.cells[0].outputs)
    assert "ImportError" in run.problem
    assert "not allowed" in printed
