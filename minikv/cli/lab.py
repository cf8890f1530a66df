"""``minikv lab``: copy the course to the reader's folder and open JupyterLab there."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from minikv.cli.options import Lang
from minikv.course.shipped import copy_course
from minikv.errors import ArgumentError, ConfigError, user_path
from minikv.i18n import pick_language, text

# Elsewhere os.execve starts a second process and ends the first, and the shell takes the terminal back.
BECOMES_JUPYTER = os.name == "posix"
FIRST_LESSON = "00_start_here.ipynb"


def lab(
    folder: str = "minikv-course",
    port: int = 8888,
    browser: Annotated[bool, typer.Option("--browser/--no-browser")] = True,
    copy_only: Annotated[bool, typer.Option("--copy-only")] = False,
    lang: Lang = "en",
) -> None:
    """Open the course in JupyterLab, bound to localhost and protected by its token."""
    lang = pick_language(lang)
    if not 1 <= port <= 65535:
        raise ArgumentError("out_of_range", what="--port", value=port, low=0, high=65535)
    target = user_path(folder)
    try:
        report = copy_course(target)
    except OSError as error:
        raise ConfigError("cannot_write", path=str(target), reason=error.strerror or str(error)) from error
    print(text("cli.lab_copied", lang, new=report.new, kept=report.kept, folder=target.resolve()))
    for yours in report.yours:
        key = "lab_yours_newer" if yours.newer else "lab_yours"
        print(text(f"cli.{key}", lang, name=yours.name, newer=yours.newer))
    if copy_only:
        return
    if find_spec("jupyterlab") is None:
        raise ConfigError("no_jupyterlab")
    first = Path("notebooks") / lang / FIRST_LESSON
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--ServerApp.root_dir={target.resolve()}",
        f"--LabApp.default_url=/lab/tree/{first.as_posix()}",
        "--Application.log_level=WARN",  # less would print messages about language servers after the address
    ]
    if not browser:
        command.append("--no-browser")
    if _is_root():
        command.append("--allow-root")
    print(text("cli.lab_opening", lang, first=first))
    sys.stdout.flush()
    environment = {**os.environ, "JUPYTER_CONFIG_PATH": _config_path(os.environ)}
    if BECOMES_JUPYTER:
        os.execve(command[0], command, environment)
    raise typer.Exit(_run(command, environment))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The exit code of ``command``, which ends with this process. JupyterLab handles Ctrl+C: it asks first."""
    with subprocess.Popen(command, env=environment) as child:
        for name in ("SIGTERM", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: child.terminate())
        while True:
            with suppress(KeyboardInterrupt):
                return child.wait()


def _config_path(environment: Mapping[str, str]) -> str:
    """Jupyter's path of settings, this package's first: they switch off the question about Jupyter's news."""
    ours, theirs = str(Path(__file__).parent / "jupyter"), environment.get("JUPYTER_CONFIG_PATH")
    return f"{ours}{os.pathsep}{theirs}" if theirs else ours


def _is_root() -> bool:
    """Whether this is root: Jupyter needs an option for root, and containers often have no other user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
