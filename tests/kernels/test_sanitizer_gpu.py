"""compute-sanitizer over the attention kernels: reads and writes out of bounds, and races in shared memory.

A part of ``python -m tools.gpu`` of its own, the last one: a test under it takes minutes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHOSEN = "(decode and fp8_scaled) or (prefill and window and splits) or latents"
LIMIT_S = 240
# What it says where it cannot do its work here, as in a container that may not watch other processes.
REFUSALS = (
    "Device not supported",
    "terminated before first instrumented API call",
    "Internal Sanitizer Error",
)


def command(tool: str, sanitizer: str) -> list[str]:
    # torch asks for what it may be refused, and goes on: that is no fault of a kernel.
    options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
    tests = str(Path(__file__).with_name("test_attention_gpu.py"))
    pytest_options = ["-q", "-x", "-p", "no:cacheprovider", tests, "-k", f"({CHOSEN}) and not large"]
    return [sanitizer, *options, sys.executable, "-m", "pytest", *pytest_options]


def refusal(said: str) -> str:
    """The line of the sanitizer that says why it cannot watch; "" where it could."""
    return next(
        (line.strip("= ") for line in said.splitlines() if any(word in line for word in REFUSALS)), ""
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        pytest.skip("compute-sanitizer is not installed here")
    # Each tensor an allocation of its own: what lies past its end, but within torch's segment, would not be seen.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command(tool, sanitizer), env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{tool} did not end within {LIMIT_S} s: {(error.stdout or b'')[-1000:]!r}")
    said = done.stdout + done.stderr
    if done.returncode and refusal(said):
        pytest.skip(f"compute-sanitizer cannot watch this machine's GPU: {refusal(said)}")
    assert done.returncode == 0, said[-3000:]


def test_the_sanitizer_sees_every_tensor_alone_and_only_what_kernels_do():
    given = command("racecheck", "sanitizer")
    assert given[:3] == ["sanitizer", "--tool", "racecheck"]
    assert given[given.index("--report-api-errors") + 1] == "no"
    assert (Path(__file__).parent / "test_attention_gpu.py").samefile(given[-3])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("1 passed", ""),
        ("========= Invalid __global__ read of size 4 bytes", ""),
        (
            "x\n========= Error: Device not supported. Please refer to\n",
            "Error: Device not supported. Please refer to",
        ),
    ],
)
def test_a_device_that_it_cannot_watch_is_told_from_a_fault(said, why):
    assert refusal(said) == why
