"""A JupyterLab of the tests' own, and what a reader does in it: open a notebook, run all cells.

Every file that Jupyter keeps (settings, workspaces, kernels' connection files) goes to one temporary folder,
so that the developer's own Jupyter neither changes the test nor is changed by it.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat

START_S, READY_MS, RUN_MS, ENDED_MS = 120, 120_000, 180_000, 5_000

ACTIVE_CELL = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"

# The DOM shows an idle kernel before the notebook has a session; running then does nothing, silently.
_READY = """() => {
  const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
  const kernel = session?.session?.kernel;
  return Boolean(session?.isReady && kernel?.connectionStatus === "connected" && kernel?.status === "idle");
}"""

_EXECUTE = """async (code) => {
  await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code }).done;
}"""
# No name is left in the kernel, and no widget, which the next notebook would ask for.
_FORGET = "from ipywidgets import Widget; Widget.close_all(); get_ipython().reset(new_session=False)"

_RUN_CELLS = """(ids) => {
  const { commands, shell } = window.jupyterapp, notebook = shell.currentWidget.content;
  const run = async () => {
    for (const id of ids) {
      notebook.activeCellIndex = notebook.widgets.findIndex((cell) => cell.model.id === id);
      await commands.execute("notebook:run-cell");
    }
    window.allCellsRan = true;
  };
  window.allCellsRan = false;
  run();
}"""

_ERRORS = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells;
  return cells.flatMap((cell) => cell.outputs ?? []).filter((output) => output.output_type === "error")
    .map((output) => `${output.ename}: ${output.evalue}`);
}"""


@dataclass(frozen=True)
class Lab:
    """A running server at ``http://127.0.0.1:PORT``; ``root`` is the folder of its notebooks, and of their kernel."""

    origin: str
    token: str
    root: Path

    def open_notebook(self, page, name: str) -> None:
        """Open the notebook ``name`` of ``root``, and wait until it can run.

        A page that shows this JupyterLab stays where it is, and its notebook has the kernel that runs, if there is one:
        it has imported torch. Else the page is loaded.
        """
        if page.url.startswith(f"{self.origin}/lab"):
            running = self.kernels()
            options = {"path": name} | ({"kernel": {"id": running[0]}} if running else {})
            page.evaluate(
                "options => { window.jupyterapp.commands.execute('docmanager:open', options) }", options
            )
        else:
            page.goto(f"{self.origin}/lab/tree/{name}?token={self.token}&reset")
        page.wait_for_function(_READY, timeout=READY_MS)

    def execute(self, page, code: str) -> None:
        """Run ``code`` in the kernel of the open notebook, and in no cell of it."""
        page.evaluate(_EXECUTE, code)

    def forget(self, page) -> bool:
        """Take from the kernel of the open notebook all that its cells have made; what is imported stays.

        Whether that could be done: a cell that goes on running is not waited for.
        """
        from playwright.sync_api import TimeoutError as StillBusy

        try:
            page.wait_for_function(_READY, timeout=ENDED_MS)
        except StillBusy:
            return False
        self.execute(page, _FORGET)
        return True

    def kernels(self) -> list[str]:
        """The ids of those that run."""
        return [kernel["id"] for kernel in json.loads(self._ask("GET", "/api/kernels"))]

    def open_cells(self, page, *sources: str) -> None:
        """Open a new notebook with these cells."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in sources],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        self.open_copy(page, notebook, secrets.token_hex(4))

    def open_copy(self, page, notebook: nbformat.NotebookNode, stem: str) -> None:
        """Open a copy of ``notebook``, for JupyterLab saves what it runs.

        A page that had another notebook of that name would show it.
        """
        nbformat.write(notebook, self.root / f"{stem}.ipynb")
        self.open_notebook(page, f"{stem}.ipynb")

    def start_all(self, page) -> None:
        """Run all cells without waiting for them; ``window.allCellsRan`` turns true when the last has ended."""
        page.evaluate("""() => {
          window.allCellsRan = false;
          window.jupyterapp.commands.execute("notebook:run-all-cells").then(() => { window.allCellsRan = true; });
        }""")

    def run_all(self, page) -> list[str]:
        """Run all cells, wait for the last, and return the errors that they show ("NameError: ...")."""
        self.start_all(page)
        page.wait_for_function("window.allCellsRan", timeout=RUN_MS)
        return page.evaluate(_ERRORS)

    def run_cells(self, page, ids: list[str]) -> list[str]:
        """Run these cells alone, one after the other; the errors that they show."""
        page.evaluate(_RUN_CELLS, ids)
        page.wait_for_function("window.allCellsRan", timeout=RUN_MS)
        return page.evaluate(_ERRORS)

    def shut_kernels_down(self) -> None:
        """End every kernel of this server, and forget what its notebooks had open."""
        while sessions := json.loads(self._ask("GET", "/api/sessions")):
            self._ask("DELETE", f"/api/sessions/{sessions[0]['id']}")  # and others that share its kernel

    def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(
            self.origin + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        # A proxy that is set for the outside world has no business on 127.0.0.1.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.read()


def change_theme(page, theme: str) -> None:
    """``theme``: "Light" or "Dark". It stays for the notebooks that are opened next."""
    name, light = f"JupyterLab {theme}", str(theme == "Light").lower()
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
    page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
    # JupyterLab takes its splash away by a timer, and trips over it if the theme changes again before that.
    page.wait_for_selector("#jupyterlab-splash", state="detached")


@contextmanager
def running_lab(home: Path) -> Iterator[Lab]:
    """Start a JupyterLab that keeps everything under ``home`` and serves ``home/notebooks``; end it after."""
    root = home / "notebooks"
    root.mkdir(parents=True)
    log_path = home / "lab.log"
    _write_settings(home / "settings")
    port, token = _free_port(), secrets.token_hex(16)
    lab = Lab(f"http://127.0.0.1:{port}", token, root)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",  # window.jupyterapp
        "--LabApp.extension_manager=readonly",  # it would list extensions from the package index
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers of CI
    with log_path.open("w") as log:
        server = subprocess.Popen(
            command, env=_environment(home), cwd=home, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_until_it_answers(lab, server, log_path)
            yield lab
            lab.shut_kernels_down()
        finally:
            server.terminate()
            server.wait(timeout=30)


def _environment(home: Path) -> dict[str, str]:
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {**os.environ, **{name: str(home / folder) for name, folder in own.items()}}


def _write_settings(folder: Path) -> None:
    """News and update checks are requests to the outside: off. What is below the window is drawn all the same."""
    for name, settings in (
        ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
        ("notebook-extension/tracker", {"windowingMode": "none"}),
    ):
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_it_answers(lab: Lab, server: subprocess.Popen, log_path: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            lab._ask("GET", "/api/status")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start within {START_S} s:\n{log_path.read_text()[-3000:]}")
