"""The first cell of every notebook: it installs from the repository, only where the import fails, and says so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minikv.i18n import LANGUAGES
from tools.notebooks.compose import compose, setup_cell
from tools.notebooks.course import open_course
from tools.notebooks.execute import execute_all
from tools.notebooks.texts import TEXTS
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


NOWHERE = Project("minikv", "https://nowhere.invalid/x", on_index=False)


def checked_cell(project: Project = OURS) -> str:
    return setup_cell(project, "02", "zh") + "\nassert check == '02', predict == 'zh'"


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
        assert cells[0].source == setup_cell(OURS, target.stem.split("_")[0], target.lang)
        assert not [cell for cell in cells[1:] if "%pip" in cell.source]


def test_where_minikv_is_there_nothing_is_installed(tmp_path):
    stand_in(tmp_path)
    assert run_cell(checked_cell(NOWHERE), tmp_path, magic="1/0") == ([], "")


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
    told = run_cell(checked_cell(), hidden, magic=installs)
    assert told == ([f'install -qqq "{OURS.requirement}"'], "")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_where_pip_fails_the_cell_fails_with_one_sentence_in_the_reader_s_language(lang, hidden):
    asked, error = run_cell(setup_cell(NOWHERE, "02", lang), hidden, magic="pass")
    assert asked == [f'install -qqq "{NOWHERE.requirement}"']
    assert error.startswith("SystemExit")
    assert TEXTS[lang]["unreachable"].format(repository=NOWHERE.repository) in error
    assert "Traceback" not in error


def test_the_real_pip_says_nothing_of_its_own_where_the_address_is_dead(hidden):
    environment = {"GIT_ALLOW_PROTOCOL": "file", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    _, error = run_cell(setup_cell(NOWHERE, "02", "en"), hidden, **environment)
    said = [line for line in error.splitlines() if line.strip() and "restart the kernel" not in line]
    assert len(said) <= 4, error
    assert TEXTS["en"]["unreachable"].format(repository=NOWHERE.repository) in error


def test_another_module_that_is_missing_is_named(tmp_path):
    (tmp_path / "minikv").mkdir()
    (tmp_path / "minikv/__init__.py").write_text("")
    (tmp_path / "minikv/course.py").write_text("import no_such_module")
    _, error = run_cell(checked_cell(), tmp_path, magic="1/0")
    assert error.startswith("ModuleNotFoundError")
    assert "no_such_module" in error


def test_the_cell_says_whether_minikv_is_on_the_package_index():
    for lang in LANGUAGES:
        for on_index in (False, True):
            cell = setup_cell(Project("minikv", OURS.repository, on_index), "02", lang)
            assert (TEXTS[lang]["not_on_index"] in cell) != on_index
            assert ("git+" in cell) != on_index


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
    cell = checked_cell(Project(OURS.name, OURS.repository, on_index=False))
    _, error = run_cell(ONLY_FROM.format(site=str(site)) + cell, here, **environment)
    assert error == ""
    assert (site / "minikv/course.py").read_text() == STAND_IN


def test_a_build_and_nbval_install_nothing(sample, tmp_path):
    """Without the package at its root a lesson's first cell fails, though pip is called: no index, no git."""
    shutil.rmtree(sample / "minikv")
    (sample / "minikv.py").write_text("raise ImportError('hidden')\n")
    told = checked_cell().replace(" -qqq", "")  # with what pip says of it
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(told)])
    [run] = execute_all([notebook], sample, tmp_path, 1)
    printed = "".join(out.get("text", "") for out in run.notebook.cells[0].outputs)
    assert "ImportError" in run.problem
    assert "not allowed" in printed
