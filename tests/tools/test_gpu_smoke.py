"""The first look on a machine without a GPU: the same checks, small and interpreted, and what it says of a fault."""

import pytest
import torch

from benchmarks.kernels_cases import Heads
from benchmarks.kernels_timing import Stopwatch
from tools.gpu import smoke

pytest.importorskip("triton")
SMALL = smoke.Sizes(Heads(4, 2, 32), (20, 3), (5, 3), 4, 32, 16)
NAMES = [
    "decode",
    "prefill",
    "MLA decode",
    "MLA prefill",
    "MLA prefill, expanded",
    "store",
    "move",
    "fp8 decode",
    "graph capture and replay",
]


@pytest.fixture
def watch(monkeypatch):
    """In place of a GPU: Triton's interpreter, and a graph that calls again."""
    monkeypatch.setenv("MINIKV_KERNELS", "triton")
    monkeypatch.setattr(smoke, "ROUNDS", 1)
    monkeypatch.setattr(smoke, "REPLAYS", 1)
    monkeypatch.setattr(smoke, "captured", lambda calls: lambda: [call() for call in calls])
    monkeypatch.setattr(Stopwatch, "compare", lambda self, runs, rounds: {"": self.first(runs[""][0])[1]})
    return Stopwatch(torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_every_check_agrees_with_the_reference_and_says_how_long_it_took(watch):
    rows = list(smoke.look(watch, SMALL))
    assert [row["check"] for row in rows] == NAMES
    assert [row["problem"] for row in rows] == [""] * len(NAMES)
    for row in rows:
        assert row["us"] > 0
        assert row["first_s"] > 0
        assert " us  first call " in smoke.line(row)


@pytest.mark.parametrize(
    ("operation", "broken"),
    [
        ("paged_decode", {"decode", "fp8 decode", "graph capture and replay"}),
        ("store_kv", {"store"}),
        ("latent_prefill", {"MLA prefill"}),
    ],
)
def test_a_kernel_that_is_wrong_or_cannot_run_is_named_and_the_others_go_on(
    watch, monkeypatch, operation, broken
):
    monkeypatch.setenv("MINIKV_KERNELS", "reference")

    def fails(*given, **options):
        raise RuntimeError("an illegal memory access was encountered\nadvice")

    monkeypatch.setattr(smoke.kernels, operation, fails)
    rows = {row["check"]: row for row in smoke.look(watch, SMALL)}
    assert {name for name, row in rows.items() if row["problem"]} == broken
    row = rows[min(broken)]
    assert row["problem"] == "RuntimeError: an illegal memory access was encountered"
    assert "BROKEN" in smoke.line(row)


def test_a_graph_that_keeps_what_it_was_captured_with_is_found(watch, monkeypatch):
    monkeypatch.setenv("MINIKV_KERNELS", "reference")

    def frozen(calls):
        for call in calls:
            call()
        return lambda: None

    monkeypatch.setattr(smoke, "captured", frozen)
    rows = {row["check"]: row["problem"] for row in smoke.look(watch, SMALL)}
    assert {name for name, problem in rows.items() if problem} == {"graph capture and replay"}
    assert "DisagreementError" in rows["graph capture and replay"]


def test_without_a_gpu_it_refuses_in_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert smoke.main(["--json", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().out == "No CUDA device that torch can use: the first look needs one.\n"
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("DisagreementError: off", 1)])
def test_one_that_is_broken_makes_the_exit_code(monkeypatch, tmp_path, problem, code, capsys):
    row = {"check": "decode", "us": 12.3, "first_s": 1.5, "problem": problem}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Fake H100")
    monkeypatch.setattr(smoke, "Stopwatch", lambda device: None)
    monkeypatch.setattr(smoke, "look", lambda watch: iter([row]))
    assert smoke.main(["--json", str(tmp_path / "x.json")]) == code
    assert f"{1 - code} of 1 agree" in capsys.readouterr().out
