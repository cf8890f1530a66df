"""The memory monitor: every byte of the report by kind, whatever the report, and peaks that stay."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from minikv import LLM
from minikv.course import monitor
from minikv.course.widgets.history import Point
from minikv.course.widgets.monitor_chart import draw_chart
from minikv.course.widgets.monitor_memory import FREE, MemoryMonitor, WatchedMemory
from minikv.course.widgets.parts import LOOKS
from minikv.engine.ext.graph_memory import GraphMemory
from minikv.engine.memory_report import MemoryReport
from minikv.errors import ArgumentError
from minikv.look import look
from minikv.memory import MemoryStats
from tests.course.monitor_world import Parked, no_thread_is_left

MIB = 2**20


@pytest.fixture(autouse=True)
def _ends():
    with no_thread_is_left():
        yield


def cpu(rng: random.Random) -> MemoryReport:
    stats = MemoryStats("cpu", 2**34, rng.randint(0, 2**33), rng.randint(1, 2**31), 2**32, None, None)
    return MemoryReport(
        model="m",
        stats=stats,
        weight_bytes=rng.randint(0, 2**30),
        absent_bytes=0,
        buffer_bytes=rng.randint(0, 2**10),
        kv_bytes=rng.randint(0, 2**30),
        padding_bytes=rng.choice([0, 512]),
    )


def cuda(rng: random.Random) -> MemoryReport:
    others = rng.choice([None, rng.randint(0, 2**28)])
    stats = MemoryStats("cuda:0", 2**34, rng.randint(0, 2**33), 2**30, 2**31, 2**31, 0, others)
    return replace(cpu(rng), stats=stats)


class Fake:
    """An LLM that says what it is told to."""

    def __init__(self, draw, rng):
        self.draw, self.rng = draw, rng

    def memory_report(self):
        self.last = self.draw(self.rng)
        return self.last


@pytest.mark.parametrize("draw", [cpu, cuda])
def test_the_view_is_the_report_by_kind(draw):
    for number in range(20):
        llm, now = Fake(draw, random.Random(number)), [0.0]
        watched = WatchedMemory(None, llm, clock=lambda now=now: now[0])
        most = 0
        for turn in range(30):
            now[0] = 10.0 + turn / 5
            seen = watched.look()
            parts = {kind: max(0, size) for kind, size in llm.last.parts().items()}
            assert seen.parts == parts
            used = sum(parts.values()) - parts[FREE]
            most = max(most, used)
            assert seen.peak.total == most
            for lang in ("en", "zh"):
                view = watched.draw(seen, lang)
                rows = {row["key"]: row["bytes"] for row in view["rows"]}
                assert rows.pop("total") == sum(parts.values())
                assert rows == parts
                chart = view["chart"]
                drawn = {one["key"]: chart["values"][one["key"]] for one in chart["kinds"]}
                newest = {kind: values[-1] for kind, values in drawn.items()}
                assert newest == {kind: parts.get(kind, 0) for kind in drawn}
                assert sum(newest.values()) == used
                assert max(map(sum, zip(*drawn.values(), strict=True))) == chart["top"]
                assert chart["top"] == most
                assert chart["seconds"][-1] == pytest.approx(turn / 5, abs=0.01)
                lengths = {len(values) for values in (chart["seconds"], *chart["values"].values())}
                assert lengths == {len(chart["seconds"])}
            text = watched.text(seen, "en")
            assert not any(row["exact"] in text for row in view["rows"] if row["bytes"] > 10**4)


def test_every_kind_has_a_look_of_its_own_in_its_bar():
    """With eviction's records, or with graphs, which an LLM that evicts does not capture; with host memory on a CPU."""
    host, graphs = SimpleNamespace(present_bytes=2**20), GraphMemory(3, 2**20, 2**20, 2**20)
    more = (
        {},
        {"record_bytes": 2**20},
        {"graphs": graphs},
        {"host": host},
        {"host": host, "record_bytes": 2**20},
    )
    for draw in (cpu, cuda):
        for number in range(20):
            report = replace(draw(random.Random(number)), **more[number % len(more)])
            watched = WatchedMemory(None, Fake(lambda _, report=report: report, None))
            kinds = list(watched.look().parts)
            assert len({LOOKS[kind] for kind in kinds}) == len(kinds), kinds


def test_no_two_looks_are_alike_and_each_that_is_named_exists():
    drawn = {name: look(name) for name in LOOKS.values()}
    assert (
        len({one.fill for one in drawn.values()}) == len({one.tile for one in drawn.values()}) == len(drawn)
    )


def test_the_host_without_an_llm():
    with monitor.memory("cpu") as made:
        stats = MemoryStats.read("cpu")
        rows = {row["key"]: row["bytes"] for row in made.view["rows"]}
        assert set(rows) == {"process", FREE, "total"}
        assert abs(rows["process"] - stats.allocated) < 200 * MIB
        assert rows["total"] == rows["process"] + rows[FREE]
    text = made.text()
    assert "this process (RSS)" in text
    assert not any(row["exact"] in text for row in made.view["rows"]), "no figure of this run"
    for row in made.view["rows"]:
        assert row["exact"] in made.summary()
    made.close()


def test_an_llm_s_own_parts_and_its_end():
    with LLM("tiny-gqa", num_blocks=20, block_size=4, max_model_len=64, device="cpu") as llm:
        clock = Parked()
        made = MemoryMonitor(None, llm, "zh", 5, clock)
        clock.settle()
        due = llm.memory_report()
        rows = {row["key"]: row["bytes"] for row in made.view["rows"]}
        assert rows["kv"] == due.kv_bytes
        assert rows["weights"] == due.weight_bytes - (due.absent_bytes or 0)
    assert not made.tick()
    assert made.view["error"]
    assert rows["kv"] == {row["key"]: row["bytes"] for row in made.view["rows"]}["kv"]
    made.close()
    for options in ({}, {"device": "cpu"}):
        with pytest.raises(ArgumentError):
            monitor.memory(llm=llm, **options)


@pytest.mark.parametrize("device", ["cuda:99", "meta", "nonsense", 3.5, object()])
def test_a_device_without_memory_to_read_is_refused(device):
    with pytest.raises(ArgumentError):
        monitor.memory(device)


def test_a_reader_that_fails_ends_it(monkeypatch):
    clock = Parked()
    made = MemoryMonitor("cpu", None, "en", 5, clock)
    clock.settle()

    def gone(device):
        raise OSError("driver gone")

    monkeypatch.setattr("minikv.course.widgets.monitor_memory.MemoryStats", SimpleNamespace(read=gone))
    assert not made.tick()
    assert not made.running
    assert "driver gone" in made.view["status"]
    made.close()


def test_the_history_stays_small_however_long_it_runs():
    watched = WatchedMemory("cpu", None)
    for turn in range(1000):
        watched._history.add(float(turn), {"process": 1.0})
    seen = watched.look()
    assert len(seen.points) <= 122
    assert len(watched.draw(seen, "en")["chart"]["seconds"]) == len(seen.points)


def test_looks_within_a_hundredth_of_a_second_stand_side_by_side():
    points = [Point(turn / 1000, {"process": turn}) for turn in range(20)]
    seconds = draw_chart(points, {"process": "rest"}, "widgets_monitor.kind_", str, "en")["seconds"]
    assert len(set(seconds)) == len(points)  # two looks at one place are a wall in the curve
    assert seconds == sorted(seconds)
