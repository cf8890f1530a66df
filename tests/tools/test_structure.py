"""The structure script counts what a token runs through: nano's path is short, and its files are the room's own."""

from pathlib import Path

from tools import structure


def called(depth):
    return called(depth - 1) if depth else Path


def test_calls_into_the_package_are_counted_and_others_are_not():
    from minikv.blocks import BlockManager

    trace, manager = structure.Trace(), BlockManager(4, 4)
    assert trace.of(lambda: called(3)) is Path
    assert (trace.calls, trace.depth, trace.files) == (0, 0, set())
    trace.of(lambda: manager.allocate("a", [1, 2, 3]))
    assert "minikv/blocks/pool.py" in trace.files
    assert {name for _, name in trace.functions} >= {"BlockManager.allocate", "BlockPool.allocate"}
    assert "minikv.blocks.manager.Allocation" in trace.data
    assert 2 <= trace.depth < trace.calls
    assert trace.checks == 0


def test_the_tables_have_a_row_for_each_part_and_room():
    rows = {row["what"]: row for row in structure.paths()}
    assert [name.split(": ")[1] for name in rows] == 2 * [
        "construction", "add_request", "prefill", "decode", "generate, in all",
    ]  # fmt: skip
    small, large = rows["nano: decode"], rows["LLM: decode"]
    assert 0 < small["files"] <= 7
    assert 0 < small["lines"] <= 1000
    assert all(small[key] < large[key] for key in ("files", "functions", "calls", "lines", "data classes"))
    rooms = {row["room"]: row for row in structure.rooms()}
    assert rooms["minikv"]["lines in all"] == sum(row["lines"] for row in rooms.values())
    assert rooms["minikv/nano"]["files"] == len(list((structure.PACKAGE / "nano").glob("*.py")))
    assert structure.table(list(rooms.values())).count("\n") == len(rooms) + 1
