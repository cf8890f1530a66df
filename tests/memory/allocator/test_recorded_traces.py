"""The model beside what a real GPU said: every recorded trace is replayed, and every figure is equal.

``python -m tools.gpu --part allocator-traces`` makes the recording on a machine with a GPU.
"""

import json

import pytest

from tools.gpu.__main__ import ROOT
from tools.gpu.parts import RESULTS
from tools.gpu.traces import difference

RECORDING = ROOT / RESULTS / "allocator_traces.cuda.json"


def test_the_model_repeats_every_recorded_trace():
    if not RECORDING.is_file():
        pytest.skip(
            "owed: no trace of a real GPU is recorded yet; python -m tools.gpu --part allocator-traces"
        )
    told = json.loads(RECORDING.read_text(encoding="utf-8"))
    assert told["device"], "a recording names its device"
    assert told["versions"]["torch"], "and its torch"
    assert told["rows"]
    found = [said for said in map(difference, told["rows"]) if said]
    assert not found, "\n".join(found[:5])
