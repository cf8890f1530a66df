"""A pytest plugin: writes what became of each test to ``--gpu-json FILE`` as soon as it is over.

A test that has a row in the file is left out: a run that was cut goes on. One that ran when it was cut runs last, for
it may have been the reason. tools.gpu says in the end whether the file is complete.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import kept, write_rows

RUNNING = "running"
KEPT = "gpu_kept"  # what xdist's workers are told: all have to collect the same
BROKEN_DEVICE = 70  # the exit code of a process whose GPU answers no more


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-json", type=Path, default=None, help="write each test's outcome here")


def pytest_configure(config: pytest.Config) -> None:
    json_file = config.getoption("--gpu-json")
    if json_file is None:
        return
    if hasattr(config, "workerinput"):  # of xdist: only the process that gets every report writes
        config.pluginmanager.register(_Chooser(config.workerinput[KEPT]))
        return
    before = kept(json_file).get("rows", [])
    config.pluginmanager.register(_Chooser({row["test"]: row["outcome"] for row in before}))
    config.pluginmanager.register(_Recorder(json_file, before))


class _Chooser:
    """Runs what ``kept`` (a test's id to its outcome) does not have, and what was running last."""

    def __init__(self, kept: dict[str, str]):
        self.kept = kept

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEPT] = self.kept

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = [item for item in items if self.kept.get(item.nodeid, RUNNING) != RUNNING]
        left = [item for item in items if item not in known]
        items[:] = sorted(left, key=lambda item: item.nodeid in self.kept)
        config.hook.pytest_deselected(items=known)

    def pytest_runtest_teardown(self) -> None:
        # What reads or writes out of bounds spoils the device for every later test of its process.
        if not _device_answers():
            sys.stdout.flush()
            os._exit(BROKEN_DEVICE)


class _Recorder:
    """One row a test: its id, "passed", "failed", "skipped" or ``RUNNING``, the seconds of all phases, and why not
    passed.
    """

    def __init__(self, json_file: Path, before: list[dict[str, Any]]):
        self.json_file = json_file
        self.rows: dict[str, dict[str, Any]] = {row["test"]: row for row in before}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.rows[nodeid] = {"test": nodeid, "outcome": RUNNING, "seconds": 0.0}
        self._write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"test": report.nodeid, "outcome": RUNNING, "seconds": 0.0})
        row["seconds"] = round(row["seconds"] + report.duration, 3)
        if report.outcome != "passed":
            row["outcome"] = report.outcome
            row["reason"] = _reason(report)
        if report.when == "teardown" and row["outcome"] == RUNNING:
            row["outcome"] = "passed"
        if report.when == "teardown" or report.outcome != "passed":
            self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.rows[report.nodeid] = {"test": report.nodeid, "outcome": "failed", "reason": _reason(report)}

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _write(self) -> None:
        write_rows(self.json_file, list(self.rows.values()), complete=False)


def _device_answers() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"the GPU answers no more: {error}", flush=True)
        return False
    return True


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The last 2,000 characters of what pytest prints about it; of a skip its reason. Without this machine's paths."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    said = str(report.longrepr).replace(f"{Path.cwd()}{os.sep}", "")
    return said.replace(sys.prefix, "(python)")[-2000:]
