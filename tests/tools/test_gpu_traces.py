"""Recorded traces: a recording says everything that a replay needs, and a wrong figure anywhere is found.

The recordings of a real device are replayed in tests/memory/allocator/test_recorded_traces.py.
"""

import json

import pytest

from benchmarks.report import SOURCES
from minikv.memory.allocator.caching_allocator import CachingAllocator
from tools.gpu import traces
from tools.gpu.traces import FIGURES, OPERATIONS, STATISTICS, ModelDevice, difference, operations, record

SEEDS = range(0, 100, 9)


class ElsewhereDevice(ModelDevice):
    """A device whose driver puts segments where it likes, from high addresses down."""

    def __init__(self):
        super().__init__()
        self.next = 2**47

    def malloc(self, size, stream, address=None):
        self.next -= 2**28
        return super().malloc(size, stream, self.next)


def through_json(row):
    return json.loads(json.dumps(row))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("device", [ModelDevice, ElsewhereDevice])
def test_a_recording_of_the_model_is_what_the_model_does(seed, device):
    used = device()
    row = through_json(record(seed, used))
    assert len(row["operations"]) == OPERATIONS
    assert difference(row) == ""
    assert used.memory_stats()["allocated_bytes.all.current"] == 0  # what was recorded is given back


def test_the_statistics_are_those_of_the_model():
    stats = CachingAllocator().memory_stats()
    assert set(STATISTICS) <= stats.keys()
    assert len(set(STATISTICS)) == len(STATISTICS)


def test_traces_hold_every_kind_of_operation_and_the_same_seed_is_the_same_trace():
    every = [entry for seed in SEEDS for entry in operations(seed)]
    assert {op for op, _, _ in every} == {"+", "-", "e"}
    assert {stream for op, _, stream in every if op == "+"} == {0, 1, 2}
    sizes = [size for op, size, _ in every if op == "+"]
    assert min(sizes) < 512
    assert max(sizes) > 20 * 2**20
    assert list(operations(5)) == list(operations(5)) != list(operations(6))


@pytest.mark.parametrize("column", range(-len(FIGURES), 0))
@pytest.mark.parametrize("place", [0, 17, OPERATIONS - 1])
def test_one_figure_that_is_512_bytes_off_is_found_where_it_stands(place, column):
    row = record(4, ModelDevice())
    words = row["operations"][place].split()
    words[column] = str(int(words[column]) + 1)
    row["operations"][place] = " ".join(words)
    found = difference(row)
    assert f"operation {place} " in found
    assert FIGURES[column] in found


def test_another_address_is_found():
    row = record(4, ModelDevice())
    # The second block of a segment that is there already: the device cannot have put it elsewhere.
    for place, line in enumerate(row["operations"]):
        words = line.split()
        if words[0] == "+" and words[6] == "0":
            words[3] = str(int(words[3]) + 1)
            row["operations"][place] = " ".join(words)
            break
    assert f"operation {place} " in difference(row)
    assert "address" in difference(row)


@pytest.mark.parametrize("index", range(0, len(STATISTICS), 7))
def test_a_wrong_final_statistic_is_found(index):
    row = record(4, ModelDevice())
    values = row["final"].split()
    values[index] = str(int(values[index]) + 1)
    row["final"] = " ".join(values)
    assert STATISTICS[index] in difference(row)


def test_a_device_that_counts_otherwise_is_found():
    """As a new version of torch might: here one that rounds to 1,024 bytes."""

    class Coarse(ModelDevice):
        def malloc(self, size, stream, address=None):
            return super().malloc(-(-size // 1024) * 1024, stream, address)

    assert all(difference(record(seed, Coarse())) for seed in SEEDS)


def test_traces_that_a_cut_run_has_kept_are_not_recorded_again(monkeypatch, tmp_path):
    class Fresh(ModelDevice):
        def reset(self):
            self.__init__()
            seen.append(self)
            if len(seen) == 3:
                raise KeyboardInterrupt

    seen, path = [], tmp_path / "traces.cuda.json"
    monkeypatch.setenv(SOURCES, "abc")
    monkeypatch.setattr(traces, "TRACES", 4)
    monkeypatch.setattr(traces, "RealDevice", Fresh)
    monkeypatch.setattr("sys.argv", ["traces", "--json", str(path)])
    with pytest.raises(KeyboardInterrupt):
        traces.main()
    assert traces.main() == 0
    assert len(seen) == 5  # two, the one that was cut, and two more
    told = json.loads(path.read_text())
    assert [row["trace"] for row in told["rows"]] == [0, 1, 2, 3]
    assert told["complete"] is True
    assert [difference(row) for row in told["rows"]] == [""] * 4
