"""A pytest plugin for ``pytest -p tools.notebooks.nbval_rules --nbval``: how our notebooks are compared.

It gives the kernels the environment that the build gave them and sockets of their own, and leaves standard error
out: warnings there name paths and versions. Pictures, widget views and metadata are left out by nbval itself.
"""

import os

import nbval.kernel
import pytest
from nbval.plugin import IPyNbFile

from tools.notebooks.execute import kernel_environment
from tools.notebooks.sockets import UnixSocketKernel


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbval", default=False):
        os.environ.update(kernel_environment(config.rootpath))
        os.environ["MINIKV_PROGRESS"] = "off"  # our solutions are nobody's progress
        nbval.kernel.KernelManager = UnixSocketKernel  # nbval has no option for it


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, IPyNbFile):
        collector.skip_compare = (*collector.skip_compare, "stderr")  # pyright: ignore[reportAttributeAccessIssue]
