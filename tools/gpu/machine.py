"""What this machine is, asked in a process of its own: the one that starts the parts must hold no GPU memory."""

import json
import subprocess
import sys
from dataclasses import dataclass

from packaging.version import Version

LEAST = {"torch": "2.11", "triton": "3.6", "transformers": "5.15"}

_QUESTION = """
import json, os, platform
from importlib.metadata import PackageNotFoundError, version
def find(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
told = {name: find(name) for name in ("torch", "triton", "transformers", "numpy")}
told |= {"python": platform.python_version(), "interpret": os.environ.get("TRITON_INTERPRET")}
try:
    import torch
    told["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
except Exception as error:
    told["device"], told["error"] = None, f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Machine:
    """The GPU's name as torch gives it, torch's version, and the other versions in words."""

    device: str
    torch: str
    others: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.device, f"torch {self.torch}", self.others]))


def find_machine() -> Machine | str:
    """This machine, or one sentence that says why the parts cannot run here."""
    done = subprocess.run([sys.executable, "-c", _QUESTION], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"Python could not be asked about this machine: {done.stderr.strip()[-200:]}"
    return judge(json.loads(done.stdout.splitlines()[-1]))


def judge(told: dict[str, str | None]) -> Machine | str:
    """The machine that ``told`` describes, or the reason why it will not do."""
    for name, least in LEAST.items():
        found = told.get(name)
        if found is None:
            return f"{name} is not installed: python -m tools.gpu needs {name} >= {least} and a CUDA device."
        if Version(found) < Version(least):
            return (
                f"{name} {found} is too old: python -m tools.gpu needs {name} >= {least} and a CUDA device."
            )
    device = told.get("device")
    if device is None:
        why = f" ({told['error']})" if told.get("error") else ""
        return f"No CUDA device that torch can use{why}: run python -m tools.gpu on a machine with one."
    if told.get("interpret") not in (None, "", "0"):
        return f"TRITON_INTERPRET is set beside {device}: the kernels would be interpreted, not compiled. Unset it."
    others = [
        f"{name} {told[name]}" for name in ("triton", "transformers", "numpy", "python") if told.get(name)
    ]
    return Machine(device, str(told["torch"]), ", ".join(others))
