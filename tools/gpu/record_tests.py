"""A pytest plugin: writes what became of each test to ``--gpu-json FILE`` as soon as it is over."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import write_rows


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-json", type=Path, default=None, help="write each test's outcome here")


def pytest_configure(config: pytest.Config) -> None:
    json_file = config.getoption("--gpu-json")
    if json_file is not None:
        config.pluginmanager.register(_Recorder(json_file))


class _Recorder:
    """One row a test: its id, "passed", "failed" or "skipped", the seconds of all phases, and why not passed."""

    def __init__(self, json_file: Path):
        self.json_file = json_file
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(
            report.nodeid, {"test": report.nodeid, "outcome": "passed", "seconds": 0.0}
        )
        row["seconds"] = round(row["seconds"] + report.duration, 3)
        if report.outcome != "passed":
            row["outcome"] = report.outcome
            row["reason"] = _reason(report)
        if report.when == "teardown":
            write_rows(self.json_file, list(self.rows.values()), complete=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.rows[report.nodeid] = {"test": report.nodeid, "outcome": "failed", "reason": _reason(report)}

    def pytest_sessionfinish(self) -> None:
        write_rows(self.json_file, list(self.rows.values()), complete=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The last 2,000 characters of what pytest prints about it; of a skip its reason. Without this machine's paths."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    said = str(report.longrepr).replace(f"{Path.cwd()}{os.sep}", "")
    return said.replace(sys.prefix, "(python)")[-2000:]
