"""The profiler puts seconds and bytes where they belong; the instrument is scripted here, real in tests/cli."""

import json

import pytest

from minikv.engine import profile as module
from minikv.engine.ext.events import Event, StepEvent
from minikv.engine.profile import Profiler


class Script:
    """A gauge whose level the test sets. ``peak`` is the highest level since the last reset."""

    def __init__(self, name="rss", has_peak=True):
        self.name, self._has_peak = name, has_peak
        self.level = self.most = 100

    def set(self, *levels):
        for self.level in levels:
            self.most = max(self.most, self.level)

    def now(self):
        return self.level

    def peak(self):
        return self.most if self._has_peak else None

    def reset(self):
        self.most = self.level


def step(prefill, decode, seconds=0.5):
    none = (0,)
    return StepEvent(0.0, 0, seconds, prefill, decode, 1, 0, none, none, (8,), none, 16)


@pytest.fixture
def script(monkeypatch):
    gauge = Script()
    monkeypatch.setattr(module, "gauge", lambda device: gauge)
    return gauge


def test_a_phase_has_its_own_peak_and_not_the_one_before(script):
    profiler = Profiler("cpu")
    with profiler.phase("load"):
        script.set(900, 300)
    with profiler.phase("warmup", tokens=12):
        script.set(450, 310)
    load, warmup = profiler.profile().phases
    assert (load.name, load.before, load.after, load.peak, load.tokens) == ("load", 100, 300, 900, None)
    assert (warmup.before, warmup.after, warmup.peak, warmup.tokens) == (300, 310, 450, 12)
    assert min(load.seconds, warmup.seconds) >= 0


def test_steps_are_prefill_if_they_have_any_and_decode_otherwise(script):
    profiler = Profiler("cpu")
    with profiler.phase("allocate"):
        script.set(200)
    script.set(700, 210)
    profiler(step(30, 0, seconds=2.0))
    profiler(Event("first", 0.0, "a", 0, 1))
    script.set(260, 212)
    profiler(step(0, 4))
    script.set(500, 220)
    profiler(step(10, 4, seconds=1.0))
    script.set(240, 221)
    profiler(step(0, 5))
    _, prefill, decode = profiler.profile().phases
    assert (prefill.name, prefill.steps, prefill.tokens, prefill.seconds) == ("prefill", 2, 44, 3.0)
    assert (prefill.before, prefill.after, prefill.peak) == (200, 220, 700)
    assert (decode.name, decode.steps, decode.tokens, decode.seconds) == ("decode", 2, 9, 1.0)
    assert (decode.before, decode.after, decode.peak) == (210, 221, 260)


def test_a_phase_that_raises_is_not_kept(script):
    profiler = Profiler("cpu")
    with pytest.raises(RuntimeError), profiler.phase("load"):
        raise RuntimeError
    assert profiler.profile().phases == ()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["rss", "torch"])
def test_the_table_and_the_json_say_what_was_measured_by_what(script, name, lang):
    script.name = name
    profiler = Profiler("cpu")
    for phase in ("load", "warmup", "allocate"):
        with profiler.phase(phase):
            script.set(script.level + 2**20)
    profiler(step(3, 0))
    profiler(step(0, 1))
    found = profiler.profile()
    lines = found.text(lang).splitlines()
    assert len(lines) == 1 + 1 + 5 + 1
    assert ("VmHWM" in lines[-1]) == (name == "rss")
    assert "1.00 MiB" in lines[2]
    told = json.loads(json.dumps(found.as_dict()))
    assert [phase["name"] for phase in told["phases"]] == ["load", "warmup", "allocate", "prefill", "decode"]
    assert told["instrument"] == name
    assert told["phases"][3]["ms"] == 500
    assert found.text("en") != found.text("zh")


def test_a_peak_that_nobody_tells_is_none_and_said(script):
    script._has_peak = False
    profiler = Profiler("cpu")
    with profiler.phase("load"):
        script.set(900, 300)
    profiler(step(3, 0))
    profiler(step(3, 0))
    assert [phase.peak for phase in profiler.profile().phases] == [None, None]
    assert "does not tell the peak" in profiler.profile().text()
