"""Run notebooks in clean kernels and make their outputs the same from run to run."""

import asyncio
import hashlib
import os
import re
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError
from nbformat import NotebookNode
from traitlets import default

from tools.notebooks.sockets import UnixSockets

CELL_SECONDS = 120
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def kernel_environment(root: Path) -> dict[str, str]:
    """What a kernel prints must not depend on who started it: the build and nbval both use this.

    The package that a lesson imports is the one at ``root``; pip finds nothing and git fetches nothing, so a setup
    cell that cannot import it fails instead of installing another one. What is solved and scored is nobody's: it is
    not written to the progress and the leaderboard of whoever builds.
    """
    found = os.environ.get("PYTHONPATH")
    return {
        "COLUMNS": "100",
        "GIT_ALLOW_PROTOCOL": "none",
        "HF_HUB_OFFLINE": "1",
        "MINIKV_LEADERBOARD": "off",
        "MINIKV_PROGRESS": "off",
        "PIP_NO_INDEX": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": f"{root.resolve()}{os.pathsep}{found}" if found else str(root.resolve()),
        "PYTHONUTF8": "1",
    }


@dataclass(frozen=True)
class Run:
    """What became of one notebook. ``problem`` is "" where every cell ran."""

    notebook: NotebookNode
    seconds: float
    problem: str = ""


class ThisPythonKernel(UnixSockets, AsyncKernelManager):
    """Starts kernels of the running Python, whatever kernels this machine has registered."""

    @default("kernel_spec_manager")
    def _only_the_native_kernel(self) -> KernelSpecManager:
        return KernelSpecManager(parent=self, kernel_dirs=[])


def execute_all(
    notebooks: list[NotebookNode], root: Path, photos: Path, jobs: int, done=lambda index, run: None
) -> list[Run]:
    """Execute copies of ``notebooks`` with the package at ``root``, ``jobs`` at a time.

    ``done(index, run)`` is called after each. ``photos`` is the folder where ``minikv.course.show`` leaves
    pages to be photographed.
    """

    async def all_of_them() -> list[Run]:
        free = asyncio.Semaphore(jobs)

        async def one(index: int, notebook: NotebookNode) -> Run:
            async with free:
                run = await _execute(notebook, root, photos)
            done(index, run)
            return run

        return await asyncio.gather(*(one(i, notebook) for i, notebook in enumerate(notebooks)))

    return asyncio.run(all_of_them())


async def _execute(notebook: NotebookNode, root: Path, photos: Path) -> Run:
    copy = deepcopy(notebook)
    begin = time.perf_counter()
    problem = ""
    with tempfile.TemporaryDirectory(prefix="minikv-lesson-", ignore_cleanup_errors=True) as folder:
        here, ipython = Path(folder, "here"), Path(folder, "ipython")
        here.mkdir()
        ipython.mkdir()
        client = NotebookClient(
            copy,
            kernel_name="python3",
            kernel_manager_class=ThisPythonKernel,
            timeout=CELL_SECONDS,
            store_widget_state=False,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(here)}},
        )
        environment = os.environ | kernel_environment(root)
        environment |= {"MINIKV_PHOTOS": str(photos), "IPYTHONDIR": str(ipython)}
        log = Path(folder, "kernel.log")  # the process's own words; of interest only where it dies
        try:
            with log.open("w") as stderr:
                await client.async_execute(env=environment, stderr=stderr)
        except (CellExecutionError, CellControlSignal) as error:
            problem = f"{_last_run_cell(copy)}]: {_plain(str(error))}"
        except RuntimeError as error:  # the kernel did not start, or died
            problem = f"{_last_run_cell(copy)}]: {error}\n{_plain(log.read_text()[-2000:])}"
    copy.metadata = deepcopy(notebook.metadata)  # nbclient wrote this kernel's Python version into it
    make_reproducible(copy)
    return Run(copy, time.perf_counter() - begin, problem)


def make_reproducible(notebook: NotebookNode) -> None:
    """In place: widgets' model ids become hashes of cell id and output index; widget state goes."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        for index, output in enumerate(cell.outputs):
            view = output.get("data", {}).get(WIDGET_VIEW)
            if view:
                view["model_id"] = hashlib.sha256(f"{cell.id}/{index}".encode()).hexdigest()[:32]


def _last_run_cell(notebook: NotebookNode) -> str:
    started = [cell.id for cell in notebook.cells if cell.get("execution_count")]
    return f"cell {started[-1]}" if started else "first cell"


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
