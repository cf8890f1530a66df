"""Kernels that speak over Unix sockets instead of TCP ports.

A kernel manager picks five free TCP ports, lets go of them, and starts a kernel that binds them a second later.
Of two kernels that start at once, one can lose a port to the other; if it is the port of its outputs (iopub), that
kernel neither dies nor answers, and the run ends in "Kernel didn't respond in 60 seconds". A socket in a folder of
its own cannot be taken.
"""

import os
import tempfile
from pathlib import Path

from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.manager import KernelManager
from traitlets import default


class UnixSockets(ConnectionFileMixin):
    """Mix into a KernelManager, before it. Windows has no such sockets and keeps its ports."""

    @default("transport")
    def _sockets_where_there_are_any(self) -> str:
        return "tcp" if os.name == "nt" else "ipc"

    @default("ip")
    def _folder_of_the_sockets(self) -> str:
        if self.transport == "tcp":
            return "127.0.0.1"
        # Kept on the manager: the folder goes when the manager does. Its path must stay below 100 bytes.
        self._sockets = tempfile.TemporaryDirectory(prefix="minikv-", ignore_cleanup_errors=True)
        return str(Path(self._sockets.name, "socket"))


class UnixSocketKernel(UnixSockets, KernelManager):
    """The manager that nbval gets."""
