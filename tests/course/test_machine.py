"""The doctor's findings: right on every machine, and a finding, never a crash, where torch itself fails."""

import sys
from types import SimpleNamespace

import pytest

from minikv.course import machine
from minikv.course.machine import examine


def findings() -> dict[str, machine.Finding]:
    found = examine()
    for finding in found:
        for lang in ("en", "zh"):
            assert "\n" not in finding.line(lang)
    return {finding.topic: finding for finding in found}


def install_torch(monkeypatch, **cuda) -> None:
    """A torch with one H100 whose ``torch.cuda`` answers as ``cuda`` says."""
    answers = {
        "is_available": lambda: True,
        "mem_get_info": lambda: (70 * 2**30, 79 * 2**30),
        "get_device_capability": lambda: (9, 0),
        "get_device_name": lambda: "NVIDIA H100",
        "device_count": lambda: 2,
    }
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(**answers | cuda)))
    monkeypatch.setattr(machine, "_version", lambda name: "99.0")


def raises(error: Exception):
    def fail():
        raise error

    return fail


def test_a_gpu_is_described(monkeypatch):
    install_torch(monkeypatch)
    found = findings()
    assert found["gpu"].state == "ok"
    assert found["gpu"].values["total_bytes"] == 79 * 2**30
    assert "2 x NVIDIA H100 (compute capability 9.0)" in found["gpu"].line("en")
    assert found["kernels"].key == "kernels_compiled"


@pytest.mark.parametrize(
    "call", ["is_available", "mem_get_info", "get_device_capability", "get_device_name", "device_count"]
)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with `TORCH_USE_CUDA_DSA`"
        ),
        OSError("libcuda.so.1"),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_gpu_that_fails_is_a_note_with_the_reason(monkeypatch, call, error):
    install_torch(monkeypatch, **{call: raises(error)})
    found = findings()
    assert (found["gpu"].state, found["gpu"].key) == ("note", "gpu_fails")
    assert found["gpu"].values["reason"].startswith(type(error).__name__)
    assert str(error).partition("\n")[0] in found["gpu"].line("zh")
    assert found["kernels"].key == "kernels_reference"
    assert found["torch"].state == "ok"


def test_no_torch_is_missing_and_not_broken(monkeypatch):
    real = machine._version
    monkeypatch.setattr(machine, "_version", lambda name: None if name == "torch" else real(name))
    found = findings()
    assert (found["torch"].state, found["torch"].key) == ("missing", "absent")
    assert found["gpu"].key == "gpu_unknown"
    assert found["kernels"].key == "kernels_reference"


@pytest.mark.parametrize(
    ("capability", "key"),
    [
        ((7, 0), "kernels_old_gpu"),
        ((7, 5), "kernels_no_bf16"),
        ((8, 0), "kernels_compiled"),
        ((8, 9), "kernels_compiled"),
        ((10, 3), "kernels_compiled"),
        ((12, 0), "kernels_compiled"),
    ],
)
def test_kernels_depend_on_the_capability(monkeypatch, capability, key):
    install_torch(monkeypatch, get_device_capability=lambda: capability)
    assert findings()["kernels"].key == key


@pytest.mark.parametrize(
    ("found", "least", "older"),
    [
        ("2.8.0", "2.8", False),
        ("2.8.0+cu128", "2.8", False),
        ("2.8.0.post1", "2.8", False),
        ("2.8.0rc1", "2.8", True),
        ("2.8.0rc1", "2.8.1", True),
        ("2.8.0rc2", "2.8.0rc1", False),
        ("2.8.0.dev20250601+cpu", "2.8", True),
        ("2.7.1", "2.8", True),
        ("2.10.0", "2.8", False),
        ("0.9.3", "0.9.21", True),
        ("10", "6", False),
        ("git-1a2b3c", "2.8", False),
    ],
)
def test_versions_compare_as_pip_compares_them(found, least, older):
    assert machine._is_older(found, least) is older
