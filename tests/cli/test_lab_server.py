"""``minikv lab`` as a learner starts it: JupyterLab on lesson 00, for this machine only, behind its token."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress

import psutil
import pytest

from tests.longer import usual_if

STAND_IN = """import os, signal, sys
print("JupyterLab", os.getpid(), os.environ["JUPYTER_CONFIG_PATH"], *sys.argv[1:], flush=True)
signal.pause()
"""
LAB = {"itself": "", "a child": "from minikv.cli import lab; lab.BECOMES_JUPYTER = False\n"}


@pytest.mark.skipif(not hasattr(signal, "pause"), reason="signals")
@pytest.mark.parametrize("how", LAB)
def test_jupyterlab_ends_with_minikv_lab(how, tmp_path, monkeypatch):
    (tmp_path / "jupyterlab").mkdir()
    (tmp_path / "jupyterlab" / "__init__.py").write_text("")
    (tmp_path / "jupyterlab" / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "theirs")
    code = f"{LAB[how]}from minikv.cli import main; main()"
    arguments = ["lab", "--no-browser", "--folder", str(tmp_path / "course")]
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as lab:
        try:
            said = [lab.stdout.readline() for _ in range(3)]
            assert "00_start_here.ipynb" in said[1], "what minikv says comes before what JupyterLab says"
            name, number, settings, *options = said[2].split()
            assert (name, settings.split(os.pathsep)[-1]) == ("JupyterLab", "theirs")
            assert {"--ip=127.0.0.1", "--no-browser"} <= set(options)
            jupyter = psutil.Process(int(number))
            assert (jupyter.pid == lab.pid) == (how == "itself")
            lab.terminate()
            lab.wait(timeout=60)
            psutil.wait_procs([jupyter], timeout=60)
            assert not jupyter.is_running()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(lab.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_listens(port: int) -> None:
    """JupyterLab prints its address a moment before it listens there."""
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        threading.Event().wait(0.05)
    raise AssertionError(f"nothing listens on port {port}")


@pytest.mark.slow
@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "en", ["en", "zh"]))
def test_lab_opens_the_course_behind_a_token(lang, tmp_path):
    port, home = free_port(), tmp_path / "home"
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "minikv", "lab", "--no-browser", "--port", str(port), "--lang", lang]
    server = subprocess.Popen(
        [*command, "--folder", str(tmp_path / "course")],
        env={**os.environ, **folders, "HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, link = [], None
        for line in server.stdout:
            said.append(line)
            link = re.search(rf"http://127\.0\.0\.1:{port}(/lab\S*)\?token=(\w+)", line)
            if link:
                break
        assert link, "".join(said)
        first, token = link.groups()
        assert first == f"/lab/tree/notebooks/{lang}/00_start_here.ipynb"
        # A proxy of the environment must not be asked for this machine's own address.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        origin = f"http://127.0.0.1:{port}"
        wait_until_it_listens(port)
        listing = f"{origin}/api/contents/notebooks/{lang}"
        with pytest.raises(urllib.error.HTTPError) as refused:
            direct.open(listing, timeout=30)
        assert refused.value.code == 403
        with direct.open(f"{listing}?token={token}", timeout=30) as answer:
            names = {entry["name"] for entry in json.load(answer)["content"]}
        assert {"00_start_here.ipynb", "02_how_many_bytes.ipynb"} <= names
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        with direct.open(f"{origin}/lab?token={token}", timeout=30) as answer:
            page = answer.read().decode()
        assert re.search(r'"disabledExtensions": \[[^]]*"@jupyterlab/apputils-extension:announcements"', page)
        server.terminate()
        rest = server.stdout.read()
        assert "Skipped" not in rest, "the address is the last thing that is said"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
