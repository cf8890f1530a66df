"""The packages that minikv requires, and whether they are installed in a sufficient version.

The versions come from the packages' metadata. No package is imported, so a broken one cannot break the report.
"""

import platform
from collections.abc import Iterator
from importlib.metadata import requires

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from minikv.course.finding import Finding
from minikv.extras import ENGINE, INSTALL_ENGINE, installed, is_older

# name: the oldest sufficient release, as pyproject.toml declares it (a test compares).
NEEDED = {name: ENGINE[name] for name in ("torch", "transformers")}
NEEDED |= {"ipywidgets": "7.7", "anywidget": "0.9.21", "plotly": "6"}
# These get a line only where something is wrong with them.
NEEDED_UNSAID = {"numpy": "1.26", "joblib": "1.5", "safetensors": ENGINE["safetensors"]}
WANTED = {"jupyterlab": "4.2", "triton": "3.6", "accelerate": "1.0", "nvidia-ml-py": "12"}


def package_findings() -> list[Finding]:
    """The required packages, then the optional ones; below each the requirements of its own that are not met."""
    found = [_needed(name, least) for name, least in NEEDED.items()]
    unsaid = [_needed(name, least) for name, least in NEEDED_UNSAID.items()]
    found += [finding for finding in unsaid if finding.state != "ok"]
    found += [_wanted(name, least) for name, least in WANTED.items()]
    told = {finding.topic for finding in found if finding.state != "ok"}
    return [line for finding in found for line in (finding, *_unmet(finding, told))]


def _needed(name: str, least: str) -> Finding:
    found = installed(name)
    if found is None:
        return Finding(name, "missing", "absent", {"name": name, "wanted": _wanted_of(name, least)})
    return _old_or_present(name, found, least, "missing")


def _wanted(name: str, least: str) -> Finding:
    found = installed(name)
    if found is not None:
        return _old_or_present(name, found, least, "note")
    key = f"without_{name.replace('-', '_')}"
    if name == "triton" and platform.system() != "Linux":
        return Finding(name, "note", "triton_elsewhere", {"system": platform.system()})
    return Finding(name, "note", key, {"least": least})


def _old_or_present(name: str, found: str, least: str, state: str) -> Finding:
    if is_older(found, least):
        values = {"name": name, "found": found, "least": least, "wanted": _wanted_of(name, least)}
        return Finding(name, state, "too_old", values)
    return Finding(name, "ok", "present", {"name": name, "found": found})


def _wanted_of(name: str, least: str) -> str:
    """The argument of pip: one command installs all that the engine needs."""
    return INSTALL_ENGINE if name in ENGINE else f"{name}>={least}"


def _unmet(finding: Finding, told: set[str]) -> Iterator[Finding]:
    """The unmet requirements of the package of ``finding``, except those that have a line in ``told`` already.

    transformers raises on import if a package of its own has the wrong version; other packages may still work.
    """
    if finding.key != "present":
        return
    state = "missing" if finding.topic == "transformers" else "note"
    for line in requires(finding.topic) or ():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.name in told or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found = installed(wanted.name)
        if found is None or not _fits(found, wanted):
            said = f"{wanted.name}{wanted.specifier}"
            key = "unmet_absent" if found is None else "unmet"
            yield Finding(wanted.name, state, key, {"name": finding.topic, "wanted": said, "found": found})


def _fits(found: str, wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(Version(found), prereleases=True)
    except InvalidVersion:
        return True
