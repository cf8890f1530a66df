"""Kernels of the tests and of the build take no port that another could take first."""

import os
from pathlib import Path

import pytest

from tools.notebooks.execute import ThisPythonKernel
from tools.notebooks.sockets import UnixSocketKernel

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets")


@pytest.mark.parametrize("manager_class", [UnixSocketKernel, ThisPythonKernel])
def test_each_manager_has_a_folder_of_its_own(manager_class):
    one, other = manager_class(), manager_class()
    assert one.transport == other.transport == "ipc"
    assert one.ip != other.ip
    assert Path(one.ip).parent.is_dir()
    assert len(one.ip) < 100


def test_nbvals_kernel_answers_and_its_folder_goes_with_it():
    manager = UnixSocketKernel(kernel_name="python3")
    folder = Path(manager.ip).parent
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=180)
        assert sorted(path.name for path in folder.iterdir()) == [f"socket-{n}" for n in range(1, 6)]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not list(folder.glob("socket-*"))
    manager._sockets.cleanup()
