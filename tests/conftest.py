"""What holds for every test: without a GPU the Triton kernels run in Triton's interpreter.

It has to be said before anything imports Triton, whose own functions are otherwise made for compiling and cannot be
interpreted any more; and importing a model of transformers imports Triton. So it is said here, before any test file is
read. A test that compiles kernels starts a process without it: ``tests.kernels.subprocesses``.
"""

import gc
import os
from contextlib import suppress

import pytest

# Each worker has a core, and so have the processes that its tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["MINIKV_PROGRESS"] = os.environ["MINIKV_LEADERBOARD"] = "off"  # what tests solve is nobody's
os.environ["MINIKV_CHECKED"] = "1"  # what the package hands to its own kernels is checked
os.environ["MINIKV_LANG"] = "en"  # and not that of whoever runs the tests

from hypothesis import settings

from tests.costs import function_of, listed

# Until all tests are collected: the modules of torch and thousands of items are made, and none of them goes.
gc.disable()

HAS_GPU = False
with suppress(ImportError):  # the tests of the core run without torch: tools/versions.py
    import torch

    HAS_GPU = torch.cuda.is_available()
    if not HAS_GPU:
        os.environ["TRITON_INTERPRET"] = "1"

# The same examples each time; and no test fails for being slow, which is what a busy machine is.
settings.register_profile("minikv", derandomize=True, database=None, deadline=None)
settings.load_profile("minikv")


def pytest_collection_finish():
    """From here on garbage is collected, but none is looked for in what is there now: a second each time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """What ``slow.txt`` lists is slow: ``make test-quick`` leaves it out.

    Without a GPU the tests marked ``gpu`` are left out; with ``-m gpu`` they are skipped, so that they are seen.
    """
    slow = listed()
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)
    if HAS_GPU:
        return
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if "gpu" in config.option.markexpr:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch can use"))
    elif marked:
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
