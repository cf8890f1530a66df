"""`make test-colab`: the pins are Colab's, the wheel may replace plotly alone, and a cell that fails is told."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from minikv.course.packages import NEEDED, NEEDED_UNSAID, WANTED, is_older
from tools import colab
from tools.colab import MAY_BE_REPLACED, colab_pins, pinned, prepare, read_report, table
from tools.environments import Environment

PINS = colab_pins(colab.CONSTRAINTS.read_text(encoding="utf-8"))

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="notebooks.en.02_how_many_bytes.ipynb" name="Cell 0" time="3.5" />
<testcase classname="notebooks.en.02_how_many_bytes.ipynb" name="Cell 1" time="0.25" />
<testcase classname="solutions.zh.10_kernels.ipynb" name="Cell 0" time="1.0">
<failure message="Notebook cell execution failed">Cell 0: Cell outputs differ
 assert reference_output == test_output failed</failure></testcase>
<testcase classname="solutions.zh.10_kernels.ipynb" name="Cell 1" time="1.0">
<skipped message="Previous cell timed out, expected cell to fail" /></testcase>
</testsuite></testsuites>"""


def test_every_pin_is_one_release_and_reads_as_pip_reads_it():
    for pin in PINS:
        assert re.fullmatch(r"==[\w.]+", str(Requirement(pin).specifier)), pin
    assert pinned(PINS)["ipywidgets"] == "7.7.1"
    assert pinned(["jupyter_client==7.4.9", 'triton==3.6.0; sys_platform == "linux"']) == {
        "jupyter-client": "7.4.9",
        "triton": "3.6.0",
    }


def test_only_what_may_be_replaced_is_older_than_the_package_asks_for():
    """A Colab session keeps what it has loaded: a floor above Colab's version breaks the first cell of every lesson."""
    least = NEEDED | NEEDED_UNSAID | WANTED
    old = {name for name, has in pinned(PINS).items() if name in least and is_older(has, least[name])}
    assert old == MAY_BE_REPLACED


def test_another_torch_takes_the_triton_that_it_wants():
    pins = pinned(colab_pins("# a comment\ntorch==2.11.0\ntriton==3.6.0\ntorchvision==1\n", "2.13.0"))
    assert pins == {"torch": "2.13.0", "torchvision": "1"}


def test_a_report_is_read_by_notebook():
    outcomes = read_report(REPORT)
    good, bad = outcomes["notebooks/en/02_how_many_bytes.ipynb"], outcomes["solutions/zh/10_kernels.ipynb"]
    assert (good.seconds, good.problems) == (3.75, [])
    assert bad.problems == ["Cell 0: Cell outputs differ", "Cell 1: timed out"]
    lines = table(outcomes).splitlines()
    assert lines[1].startswith("ok ")
    assert [line for line in lines if line.startswith("FAILED")] == [lines[2]]
    assert lines[-1] == "1 passed, 1 failed"


def test_a_notebook_that_nbval_did_not_run_has_failed(monkeypatch):
    monkeypatch.setattr(colab.subprocess, "run", lambda *command, **options: None)
    outcomes = colab.run(Environment(Path("nowhere")), ["notebooks/en/02_how_many_bytes.ipynb"], jobs=1)
    assert "FAILED" in table(outcomes)


@pytest.mark.parametrize(
    ("has", "replaced"),
    [
        ({}, {}),
        ({"plotly": "7.1.0"}, {"plotly": ("5.24.1", "7.1.0")}),
        ({"torch": "2.11.0+cu128"}, {}),
        ({"ipywidgets": "8.1.9"}, {"ipywidgets": ("7.7.1", "8.1.9")}),
    ],
)
@pytest.mark.parametrize("engine", [{}, {"accelerate": "1.15.0"}, {"hf-xet": "1.8.0"}])
def test_what_the_wheel_replaced_and_what_its_engine_brings_is_found(
    monkeypatch, tmp_path, has, replaced, engine
):
    def build(command, **options):
        (Path(command[command.index("--outdir") + 1]) / "minikv-0-py3-none-any.whl").touch()

    monkeypatch.setattr(colab.subprocess, "run", build)
    monkeypatch.setattr(Environment, "make", lambda self, installs: False)
    installed = []
    monkeypatch.setattr(Environment, "install", lambda self, *arguments: installed.append(arguments[-1]))
    there = pinned(PINS) | has

    def versions(self):
        return there | engine if installed[-1].endswith("[engine]") else there

    monkeypatch.setattr(Environment, "versions", versions)
    brought = {name: (there.get(name, "nothing"), version) for name, version in engine.items()}
    assert prepare(Environment(tmp_path)) == replaced | brought
