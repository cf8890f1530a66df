"""The doctor's findings: right on every machine, and a finding, never a crash, where torch itself fails."""

import sys
from types import SimpleNamespace

import pytest

import minikv.memory.nvml  # with the real torch: some tests put another in its place  # noqa: F401
from minikv.course import machine, packages
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
    monkeypatch.delenv("MINIKV_KERNELS", raising=False)
    monkeypatch.setattr(machine, "installed", lambda name: "99.0")
    monkeypatch.setattr(packages, "installed", lambda name: "99.0")


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
    real = packages.installed
    for module in (machine, packages):
        monkeypatch.setattr(module, "installed", lambda name: None if name == "torch" else real(name))
    monkeypatch.delenv("MINIKV_KERNELS", raising=False)
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


def test_a_driver_that_does_not_say_who_else_is_on_the_gpu_is_a_note_with_the_reason(monkeypatch):
    install_torch(monkeypatch)
    monkeypatch.setattr("minikv.memory.nvml.other_processes", lambda index: (None, "pid 7 is not listed"))
    assert "pid 7 is not listed" in findings()["nvml"].line("en")
    monkeypatch.setattr("minikv.memory.nvml.other_processes", lambda index: (0, None))
    assert "nvml" not in findings()


@pytest.mark.parametrize("chosen", ["reference", "triton"])
def test_a_choice_of_kernels_is_named(monkeypatch, chosen):
    install_torch(monkeypatch)
    monkeypatch.setenv("MINIKV_KERNELS", chosen)
    for lang in ("en", "zh"):
        assert f"MINIKV_KERNELS={chosen}" in findings()["kernels"].line(lang)
