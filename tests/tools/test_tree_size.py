"""The tree that goes to a machine with a GPU stays small."""

import subprocess

import pytest

from minikv.units import MIB
from tools.gpu.__main__ import ROOT


def test_the_tree_is_under_40_mib():
    """What git knows or would add, as it lies on the disk."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    assert sum(path.stat().st_size for path in paths if path.is_file()) < 40 * MIB
