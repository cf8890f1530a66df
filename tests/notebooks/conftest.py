"""The sample course under samples/, copied to a folder of its own and, once a session, built there."""

import shutil
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).with_name("samples")
sys.path.insert(0, str(REPOSITORY))  # tools/ is not installed


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """Root of a repository that holds the sample's sources and our glossary, not built."""
    return copy_sample(tmp_path / "course")


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, executed with real kernels and the stub of minikv that it holds. Not to be changed."""
    from tools.notebooks.build import build
    from tools.notebooks.course import open_course

    root = copy_sample(tmp_path_factory.mktemp("built") / "course")
    course = open_course(root)
    report = build(course, course.targets(), say=lambda line: None)
    assert not report.problems, report.problems
    return root


@pytest.fixture
def built(built_once: Path, tmp_path: Path) -> Path:
    """A copy of the built sample to break."""
    root = tmp_path / "built"
    shutil.copytree(built_once, root)
    return root


def copy_sample(root: Path) -> Path:
    shutil.copytree(SAMPLES, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs").mkdir()
    (root / "minikv/course/data").mkdir(parents=True)
    shutil.copy(REPOSITORY / "minikv/course/data/glossary.toml", root / "minikv/course/data")
    return root
