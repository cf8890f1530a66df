"""A pytest plugin for ``pytest -p tools.notebooks.nbval_rules --nbval``: how our notebooks are compared.

It gives the kernels the environment that the build gave them and sockets of their own, and leaves standard error
out: warnings there name paths and versions. Pictures, widget views and metadata are left out by nbval itself.

``--kernel-python PATH`` runs the cells with another Python and the minikv that is installed there (tools/colab.py).
"""

import os

import nbval.kernel
import pytest
from nbval.plugin import IPyNbFile

from tools.notebooks.execute import kernel_environment
from tools.notebooks.sockets import UnixSocketKernel


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernel-python", help="The Python of the kernels, with a minikv of its own.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbval", default=False):
        python = config.getoption("--kernel-python", default=None)
        os.environ.update(kernel_environment(config.rootpath))
        if python:
            os.environ.pop("PYTHONPATH", None)  # it leads to this checkout
        nbval.kernel.KernelManager = kernel_manager(python)  # nbval has no option for it


def kernel_manager(python: str | None) -> type[UnixSocketKernel]:
    """The manager that nbval gets: kernels of this Python, or of the one at ``python``."""
    if python is None:
        return UnixSocketKernel
    command = [python]

    class OtherPython(UnixSocketKernel):
        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            return [*command, *super().format_kernel_cmd(extra_arguments)[1:]]

    return OtherPython


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, IPyNbFile):
        collector.skip_compare = (*collector.skip_compare, "stderr")  # pyright: ignore[reportAttributeAccessIssue]
