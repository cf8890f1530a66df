"""A plugin that measures what tests cost, and writes those that ``make test-quick`` leaves out to ``tests/slow.txt``.

    OMP_NUM_THREADS=1 pytest -p tests.costs -p no:xdist tests/engine

CPU seconds, those of the processes that a test waits for included, so that other work on the machine matters little.
What the file says of test files that were not run stays. Of a test with parameters the mean counts, and of one with
``in_turn`` the mean of its values.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

LISTED = Path(__file__).parent / "slow.txt"
LEAST = 0.1  # CPU seconds a test
SPENT: dict[str, list[float]] = defaultdict(list)


def function_of(nodeid: str) -> str:
    """A test without its parameters."""
    return nodeid.partition("[")[0]


def listed() -> frozenset[str]:
    """Test functions, as ``tests/engine/test_llm.py::test_one``."""
    return frozenset(LISTED.read_text(encoding="utf-8").split())


def is_there(name: str) -> bool:
    """Whether the test file is: where it was renamed, its new name has to be measured."""
    return (LISTED.parent.parent / name.partition("::")[0]).is_file()


def cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = cpu_seconds()
    try:
        return (yield)
    finally:
        turns = getattr(item.function, "turns", 1)
        SPENT[function_of(item.nodeid)].append((cpu_seconds() - start) / turns)


def pytest_sessionfinish():
    files = {name.partition("::")[0] for name in SPENT}
    slow = {name for name, costs in SPENT.items() if sum(costs) / len(costs) >= LEAST}
    kept = {name for name in listed() if name.partition("::")[0] not in files and is_there(name)}
    LISTED.write_text("\n".join(sorted(slow | kept)) + "\n", encoding="utf-8")
