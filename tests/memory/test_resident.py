"""What of some addresses is in memory: pages that were touched, of anonymous memory and of a mapped file."""

import sys

import numpy as np
import pytest
import torch

from minikv.memory.resident import extent_bytes, extents, resident_bytes

MIB = 2**20
PAGE = 4096


def test_each_byte_counts_once():
    whole = torch.zeros(1000)
    other = torch.zeros(10, dtype=torch.int8)
    found = extents([whole[10:20], whole.view(10, 100).T, whole, other, torch.zeros(0)])
    assert extent_bytes(found) == 4000 + 10
    assert [start for start, _ in found] == sorted(start for start, _ in found)


def test_overlapping_storages_are_joined():
    base = torch.zeros(100, dtype=torch.uint8)
    pieces = [
        torch.empty(0, dtype=torch.uint8).set_(base.untyped_storage()[a:b]) for a, b in ((0, 60), (40, 90))
    ]
    assert extent_bytes(extents(pieces)) == 90
    assert extents([]) == []


def pagemap(path, present):
    """A pagemap that says of each page whether it is there."""
    entries = np.array([there << 63 | 7 for there in present], np.uint64)
    path.write_bytes(entries.tobytes())
    return path


@pytest.mark.parametrize(
    ("extent", "resident"),
    [
        ((0, 3 * PAGE), 2 * PAGE),
        ((0, PAGE), PAGE),
        ((PAGE, 2 * PAGE), 0),
        ((10, PAGE), PAGE - 10),
        ((10, 20), 10),
        ((PAGE - 1, 2 * PAGE + 5), 1 + 5),
        ((2 * PAGE + 7, 3 * PAGE - 1), PAGE - 8),
    ],
)
def test_parts_of_pages_count_as_parts(extent, resident, tmp_path):
    path = pagemap(tmp_path / "pagemap", [1, 0, 1])
    assert resident_bytes([extent], path, PAGE) == resident
    assert resident_bytes([extent, (0, PAGE)], path, PAGE) == resident + PAGE


def test_a_system_that_does_not_say_gives_none(tmp_path):
    assert resident_bytes([(0, 10)], tmp_path / "absent") is None
    assert resident_bytes([(0, 9 * PAGE)], pagemap(tmp_path / "short", [1, 1]), PAGE) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_untouched_memory_is_not_there_and_touched_memory_is(tmp_path):
    whole = torch.empty(64 * MIB, dtype=torch.uint8)
    found = extents([whole])
    assert resident_bytes(found) < MIB
    whole.fill_(1)
    assert resident_bytes(found) == 64 * MIB

    file = tmp_path / "weights"
    file.write_bytes(bytes(16 * MIB))
    mapped = torch.from_file(str(file), shared=False, size=16 * MIB, dtype=torch.uint8)
    found = extents([mapped])
    assert resident_bytes(found) == 0
    assert int(mapped.sum()) == 0
    assert resident_bytes(found) == 16 * MIB
