"""Packages that are missing, too old, or do not get what they want: a line each, with the way out."""

import platform
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from minikv.course import packages
from minikv.course.packages import NEEDED, NEEDED_UNSAID, WANTED, package_findings

ROOT = Path(__file__).parents[2]
LINE_NEEDS_NO_INSTALL = {"triton_elsewhere"}


def findings() -> dict[str, packages.Finding]:
    found = package_findings()
    for finding in found:
        for lang in ("en", "zh"):
            assert "\n" not in finding.line(lang)
            if finding.state != "ok" and finding.key not in LINE_NEEDS_NO_INSTALL:
                assert re.search(r'pip install (-U )?"\S+"', finding.line(lang)), finding.line(lang)
    return {finding.topic: finding for finding in found}


@pytest.fixture
def pretend(monkeypatch):
    """``pretend(torch=None, plotly="5.24.1")``: these are not installed, or in another version."""

    real = packages.installed

    def install(**versions: str | None) -> None:
        named = {name.replace("_", "-"): found for name, found in versions.items()}
        monkeypatch.setattr(packages, "installed", lambda name: named[name] if name in named else real(name))

    return install


def declared(table: list[str]) -> dict[str, str]:
    return {one.name: next((part.version for part in one.specifier), "") for one in map(Requirement, table)}


def test_the_releases_asked_for_are_those_that_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    core, engine, lab = (
        declared(table) for table in (project["dependencies"], extras["engine"], extras["lab"])
    )
    told = NEEDED | NEEDED_UNSAID | WANTED
    for name, least in told.items():
        assert Version((core | engine | lab)[name]) == Version(least), name
    # The doctor is written with these, and cannot start without them.
    assert core.keys() - told.keys() == {"typer", "rich", "psutil", "packaging"}
    assert engine.keys() <= told.keys()
    assert lab.keys() == {"minikv", "jupyterlab"}


def test_the_core_declares_nothing_that_computes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brings = {Requirement(line).name for line in project["dependencies"]}
    assert not brings & {Requirement(line).name for line in project["optional-dependencies"]["engine"]}


def test_what_is_tested_here_is_complete():
    assert {finding.state for finding in findings().values()} == {"ok"}


@pytest.mark.parametrize("name", [*NEEDED, *NEEDED_UNSAID])
def test_what_everything_needs_is_missing_or_too_old(pretend, name):
    pretend(**{name.replace("-", "_"): None})
    absent = findings()[name]
    assert (absent.state, absent.key) == ("missing", "absent")
    pretend(**{name.replace("-", "_"): "0.0.1"})
    old = findings()[name]
    assert (old.state, old.key) == ("missing", "too_old")
    assert "0.0.1" in old.line("zh")


@pytest.mark.parametrize("name", WANTED)
def test_what_some_parts_want_is_a_note(pretend, monkeypatch, name):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    pretend(**{name.replace("-", "_"): None})
    absent = findings()[name]
    assert absent.state == "note"
    assert name in absent.line("en")
    pretend(**{name.replace("-", "_"): "0.0.1"})
    assert (findings()[name].state, findings()[name].key) == ("note", "too_old")


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_where_triton_does_not_exist_nobody_is_told_to_install_it(pretend, monkeypatch, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    pretend(triton=None)
    for lang in ("en", "zh"):
        line = findings()["triton"].line(lang)
        assert "Linux" in line
        assert system in line
        assert "pip" not in line


@pytest.mark.parametrize("name", ["tokenizers", "huggingface-hub", "safetensors"])
@pytest.mark.parametrize("found", [None, "0.0.1"])
def test_a_package_that_transformers_refuses_to_work_with_is_missing(pretend, name, found):
    pretend(**{name.replace("-", "_"): found})
    lines = [finding for finding in package_findings() if finding.topic == name]
    assert len(lines) == 1, "one thing is said once"
    assert lines[0].state == "missing"
    for lang in ("en", "zh"):
        assert name in lines[0].line(lang)


@pytest.mark.parametrize("name", ["jupyterlab_widgets", "widgetsnbextension", "psygnal", "narwhals"])
def test_what_another_package_does_not_get_is_a_note(monkeypatch, name):
    real = packages.installed
    monkeypatch.setattr(packages, "installed", lambda asked: None if asked == name else real(asked))
    finding = findings()[name]
    assert (finding.state, finding.key) == ("note", "unmet_absent")


@pytest.mark.parametrize(
    ("found", "least", "older"),
    [
        ("2.8.0", "2.8", False),
        ("2.8.0+cu128", "2.8", False),
        ("2.8.0.post1", "2.8", False),
        ("2.8.0rc1", "2.8", True),
        ("2.8.0rc1", "2.8.1", True),
        ("2.8.0rc2", "2.8.0rc1", False),
        ("2.8.0.dev20250601+cpu", "2.8", True),
        ("2.7.1", "2.8", True),
        ("2.10.0", "2.8", False),
        ("0.9.3", "0.9.21", True),
        ("10", "6", False),
        ("git-1a2b3c", "2.8", False),
    ],
)
def test_versions_compare_as_pip_compares_them(found, least, older):
    assert packages.is_older(found, least) is older
