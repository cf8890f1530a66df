"""Where vLLM has no wheel, ``python -m tools.vllm`` says what it lacks; ``Peer`` says and does the rest."""

import platform
import sys

import pytest

from tools import vllm
from tools.environments import Environment


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda patch: None, None),
        (lambda patch: patch(sys, "platform", "darwin"), ("Linux", "darwin")),
        (lambda patch: patch(platform, "machine", lambda: "riscv64"), ("x86_64", "riscv64")),
        (lambda patch: patch(vllm, "PYTHONS", ((3, 1), (3, 2))), ("3.1 to 3.2", "--python")),
    ],
    ids=["nothing", "system", "processor", "python"],
)
def test_what_is_lacking_is_said(monkeypatch, tmp_path, change, said):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(vllm, "PYTHONS", (sys.version_info[:2], sys.version_info[:2]))
    change(monkeypatch.setattr)
    told = vllm.PEER.lacks(Environment(tmp_path))
    assert (told is None) == (said is None)
    assert all(word in told for word in said or ())
